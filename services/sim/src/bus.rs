//! A fake of NATS: hints and signals, each of which may be lost.

use crate::world::Process;
use adapters::nats::SendSignal;
use anyhow::Result;
use std::{collections::BTreeSet, sync::Arc};

fn arrives(process: &Process) -> bool {
    let lost = process.draw(|random| random.chance(5));
    !lost && !process.world.state().regions[process.region].bus_down
}

/// See [`adapters::nats::send_change_hint`].
pub async fn hint_change(process: Arc<Process>, partition: u16) -> Result<()> {
    if arrives(&process) {
        process.short().await;
        process.world.state().regions[process.region].hints.insert(partition);
        process.world.told[process.region].notify_waiters();
    }
    Ok(())
}

/// See [`adapters::nats::send_signal`].
pub async fn send_signal(process: Arc<Process>, SendSignal { tenant, signal }: SendSignal) -> Result<()> {
    if arrives(&process) {
        process.world.state().regions[process.region].signals.insert(tenant, signal.signalled_us);
        process.world.told[process.region].notify_waiters();
    }
    Ok(())
}

/// Waits until `look` finds something that came.
async fn await_any<T>(process: &Process, look: impl Fn() -> Option<T>) -> T {
    loop {
        let mut told = std::pin::pin!(process.world.told[process.region].notified());
        told.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        told.await;
    }
}

/// See [`adapters::nats::await_change_hint`].
pub async fn await_hint(process: Arc<Process>, (): ()) -> Result<BTreeSet<u16>> {
    let look = || Some(std::mem::take(&mut process.world.state().regions[process.region].hints)).filter(|hints| !hints.is_empty());
    Ok(await_any(&process, look).await)
}

/// As `consumer::await_signal`, of the consumer's own region.
pub async fn await_signal(process: Arc<Process>, tenant: String) -> Result<u64> {
    Ok(await_any(&process, || process.world.state().regions[process.region].signals.remove(&tenant)).await)
}
