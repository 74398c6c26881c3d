//! External effects held as values.

use crate::backoff::Backoff;
use anyhow::{Result, anyhow, bail};
use futures::future::{BoxFuture, FutureExt};
use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};
use tracing::Instrument;

/// An external effect held as a value: an async function with one input and one output.
///
/// An expected outcome is a variant of the output; `Err` means that the effect failed.
pub type Effect<In, Out> = Arc<dyn Fn(In) -> BoxFuture<'static, Result<Out>> + Send + Sync>;

/// Makes an effect of a closure.
pub fn effect<In, Out, Fut>(closure: impl Fn(In) -> Fut + Send + Sync + 'static) -> Effect<In, Out>
where
    Fut: Future<Output = Result<Out>> + Send + 'static,
{
    Arc::new(move |input| closure(input).boxed())
}

/// Makes an effect of an adapter's function and the context that it works on.
pub fn bind<Context, In, Out, Fut>(context: &Arc<Context>, function: fn(Arc<Context>, In) -> Fut) -> Effect<In, Out>
where
    Context: Send + Sync + 'static,
    In: 'static,
    Out: 'static,
    Fut: Future<Output = Result<Out>> + Send + 'static,
{
    let context = Arc::clone(context);
    Arc::new(move |input| function(Arc::clone(&context), input).boxed())
}

/// An effect that a test does not expect to be used.
///
/// # Panics
/// When called.
pub fn unused<In: 'static, Out: 'static>(name: &'static str) -> Effect<In, Out> {
    effect(move |_: In| async move { panic!("effect {name} was not expected to be used") })
}

/// Fails the first `count` calls without carrying them out, then passes on to `inner`.
pub fn fail_first<In: Send + 'static, Out: Send + 'static>(count: usize, inner: Effect<In, Out>) -> Effect<In, Out> {
    let left = Arc::new(AtomicUsize::new(count));
    effect(move |input| {
        let fails = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let inner = Arc::clone(&inner);
        async move {
            if fails {
                bail!("failed on purpose");
            }
            inner(input).await
        }
    })
}

/// Waits before each call.
pub fn delayed<In: Send + 'static, Out: Send + 'static>(delay: Duration, inner: Effect<In, Out>) -> Effect<In, Out> {
    effect(move |input| {
        let inner = Arc::clone(&inner);
        async move {
            tokio::time::sleep(delay).await;
            inner(input).await
        }
    })
}

/// Keeps a copy of every input.
pub fn recorded<In: Clone + Send + 'static, Out: Send + 'static>(inner: Effect<In, Out>) -> (Effect<In, Out>, Arc<Mutex<Vec<In>>>) {
    let inputs: Arc<Mutex<Vec<In>>> = Arc::default();
    let kept = Arc::clone(&inputs);
    let recording = effect(move |input: In| {
        if let Ok(mut kept) = kept.lock() {
            kept.push(input.clone());
        }
        inner(input)
    });
    (recording, inputs)
}

/// Span and metrics (`meridian_effect_seconds`, `meridian_effect_failures_total`, label `effect`) under the field's name.
pub fn timed<In: Send + 'static, Out: Send + 'static>(name: &'static str, inner: Effect<In, Out>) -> Effect<In, Out> {
    let seconds = metrics::histogram!("meridian_effect_seconds", "effect" => name);
    let failures = metrics::counter!("meridian_effect_failures_total", "effect" => name);
    Arc::new(move |input| {
        let (seconds, failures) = (seconds.clone(), failures.clone());
        let span = tracing::info_span!("effect", otel.name = name, effect = name);
        let started = Instant::now();
        let call = inner(input);
        async move {
            let result = call.await;
            seconds.record(started.elapsed().as_secs_f64());
            if result.is_err() {
                failures.increment(1);
            }
            result
        }
        .instrument(span)
        .boxed()
    })
}

/// At most `calls` at a time; the next ones wait for at most `patience`, then fail.
pub fn limited<In: Send + 'static, Out: Send + 'static>(calls: usize, patience: Duration, inner: Effect<In, Out>) -> Effect<In, Out> {
    let permits = Arc::new(Semaphore::new(calls));
    effect(move |input| {
        let (permits, inner) = (Arc::clone(&permits), Arc::clone(&inner));
        async move {
            let _permit = tokio::time::timeout(patience, permits.acquire()).await.map_err(|_| anyhow!("overloaded"))??;
            inner(input).await
        }
    })
}

/// Repeats a failed call up to `attempts` in all, with jittered backoff between. Only for effects that may be repeated.
pub fn retrying<In: Clone + Send + Sync + 'static, Out: Send + 'static>(
    attempts: usize,
    backoff: Backoff,
    inner: Effect<In, Out>,
) -> Effect<In, Out> {
    effect(move |input: In| {
        let inner = Arc::clone(&inner);
        let mut backoff = backoff.clone();
        async move {
            for _ in 1..attempts {
                match inner(input.clone()).await {
                    Ok(output) => return Ok(output),
                    Err(error) => tracing::debug!(error = format!("{error:#}"), "will repeat"),
                }
                backoff.wait().await;
            }
            inner(input).await
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn doubled(context: Arc<u32>, input: u32) -> Result<u32> {
        Ok(*context * input)
    }

    #[tokio::test(start_paused = true)]
    async fn wrappers_compose() {
        let (inner, inputs) = recorded(bind(&Arc::new(2), doubled));
        let outer = timed("doubled", retrying(3, Backoff::default(), fail_first(2, delayed(Duration::from_secs(1), inner))));
        assert_eq!(outer(21).await.unwrap(), 42);
        assert_eq!(*inputs.lock().unwrap(), [21], "failed calls were not carried out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_refuses_after_its_patience() {
        let slow = limited(1, Duration::from_secs(1), delayed(Duration::from_secs(5), bind(&Arc::new(2), doubled)));
        let (first, second) = tokio::join!(slow(1), slow(2));
        assert_eq!(first.unwrap(), 2);
        assert_eq!(second.unwrap_err().to_string(), "overloaded");
    }
}
