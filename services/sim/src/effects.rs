//! Fakes as effects of a process that may be killed, or stand still, before and after each of them.

use crate::world::Process;
use anyhow::Result;
use kit::Effect;
use std::{future::Future, sync::Arc};

/// An effect of a process: a fake with the shape of an adapter's function.
pub fn bind<In, Out, Fut>(process: &Arc<Process>, function: fn(Arc<Process>, In) -> Fut) -> Effect<In, Out>
where
    In: Send + 'static,
    Out: Send + 'static,
    Fut: Future<Output = Result<Out>> + Send + 'static,
{
    let process = Arc::clone(process);
    Arc::new(move |input| {
        let process = Arc::clone(&process);
        Box::pin(async move {
            process.gate().await;
            let output = function(Arc::clone(&process), input).await;
            process.gate().await;
            output
        })
    })
}

/// As [`bind`], for an effect that may be dropped while it waits: what it brought is never held back.
pub fn bind_droppable<In, Out, Fut>(process: &Arc<Process>, function: fn(Arc<Process>, In) -> Fut) -> Effect<In, Out>
where
    In: Send + 'static,
    Out: Send + 'static,
    Fut: Future<Output = Result<Out>> + Send + 'static,
{
    let process = Arc::clone(process);
    Arc::new(move |input| {
        let process = Arc::clone(&process);
        Box::pin(async move {
            process.gate().await;
            let output = function(Arc::clone(&process), input).await;
            process.gate_now().await;
            output
        })
    })
}
