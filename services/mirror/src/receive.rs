//! The receiver: one task a peer. Sessions follow each other; each begins with where the local copy ends.

use crate::{
    Ask, Effects, Limits, Place, Received,
    lane::Refusals,
    meters::Meters,
    session::{End, Session},
};
use anyhow::{Context, Result, ensure};
use kit::{
    backoff::Backoff,
    health::Health,
    shutdown::{CancellationToken, until},
};
use meridian_proto::PartitionId;
use std::{collections::HashMap, sync::Arc};
use tokio::time::Instant;

/// What is known of one peer from session to session. Nothing here is progress: that is read from the copy.
pub(crate) struct Receiver {
    pub effects: Effects,
    pub limits: Arc<Limits>,
    pub peer: String,
    pub meters: Meters,
    pub refusals: Refusals,
    health: Health,
    holds: HashMap<PartitionId, Hold>,
    /// Where the peer's log begins, for copies that hold nothing yet.
    beginnings: HashMap<PartitionId, u64>,
}

struct Hold {
    until: Instant,
    backoff: Backoff,
}

/// Copies the peer's log until asked to stop.
///
/// # Errors
/// None: whatever goes wrong is told and tried again.
pub async fn receive(effects: Effects, limits: Arc<Limits>, peer: String, health: Health, shutdown: CancellationToken) -> Result<()> {
    let (meters, mut backoff) = (Meters::of(&peer), Backoff::new(limits.retry.0, limits.retry.1));
    let (refusals, holds, beginnings) = (Refusals::default(), HashMap::new(), HashMap::new());
    let mut receiver = Receiver { effects, limits, peer, meters, refusals, health, holds, beginnings };
    while !shutdown.is_cancelled() {
        let ended = receiver.session(&shutdown, &mut backoff).await;
        receiver.meters.connected.set(0.0);
        match ended {
            Ok(End::Stopped) => break,
            Ok(End::Again) => {}
            Err(error) => {
                tracing::warn!(
                    peer = receiver.peer,
                    error = format!("{error:#}"),
                    "copying was interrupted; it goes on from where the copy ends"
                );
                let waited = async {
                    backoff.wait().await;
                    Ok(())
                };
                until(&shutdown, waited).await?;
            }
        }
    }
    Ok(())
}

/// Where there is no peer nothing else would notice that the log is there: asks until it answers.
pub(crate) async fn find_log(effects: Effects, region: String, health: Health, shutdown: CancellationToken) -> Result<()> {
    let mut backoff = Backoff::default();
    let answered = async {
        while let Err(error) = (effects.last_mirrored)(region.clone()).await {
            health.unready("log", format!("{error:#}"));
            backoff.wait().await;
        }
        health.ready("log");
        shutdown.cancelled().await;
        Ok(())
    };
    until(&shutdown, answered).await.map(|_| ())
}

impl Receiver {
    async fn session(&mut self, shutdown: &CancellationToken, backoff: &mut Backoff) -> Result<End> {
        let Some(opened) = until(shutdown, self.open()).await? else { return Ok(End::Stopped) };
        let Some((places, received)) = opened else { return Ok(End::Again) };
        match received {
            Received::OutOfRange { partition, asked, low, high } => {
                self.out_of_range(&places, partition, asked, low..high);
                Ok(End::Again)
            }
            Received::Following(frames) => {
                tracing::info!(peer = self.peer, partitions = places.len(), "copying");
                let rejoin_at = self.holds.values().map(|hold| hold.until).filter(|until| *until > Instant::now()).min();
                let mut session = Session::new(self, places, rejoin_at);
                let ended = session.copy(frames, shutdown, backoff).await;
                // Nothing may read where the copy ends while an append is under way: it would be repeated.
                session.settle_all(shutdown).await;
                ended
            }
        }
    }

    /// Where the copy ends, and what the peer answers to that. `None`: everything is held; waited for the first hold to end.
    async fn open(&mut self) -> Result<Option<(Vec<Place>, Received)>> {
        let Effects { last_mirrored, receive_frames, host_time, .. } = &self.effects;
        let found = last_mirrored(self.peer.clone()).await.with_context(|| format!("where the copy of {} ends", self.peer));
        match &found {
            Ok(_) => self.health.ready("log"),
            Err(error) => self.health.unready("log", format!("{error:#}")),
        }
        let mut places = found?;
        ensure!(!places.is_empty(), "no topic of {} is here yet", self.peer);
        if let Ok(now) = host_time(()).await {
            self.meters.lag(now, places.iter().map(|place| place.as_of_ms));
        }
        let now = Instant::now();
        places.retain(|place| self.holds.get(&place.partition).is_none_or(|hold| hold.until <= now));
        if places.is_empty() {
            let first = self.holds.values().map(|hold| hold.until).min();
            tokio::time::sleep_until(first.unwrap_or(now)).await;
            return Ok(None);
        }
        for place in places.iter_mut().filter(|place| place.empty) {
            place.next = self.beginnings.get(&place.partition).copied().unwrap_or(place.next);
        }
        let received = receive_frames(Ask { peer: self.peer.clone(), from: places.clone() }).await?;
        Ok(Some((places, received)))
    }

    fn out_of_range(&mut self, places: &[Place], partition: PartitionId, asked: u64, kept: std::ops::Range<u64>) {
        let peer = &self.peer;
        let empty = places.iter().any(|place| place.partition == partition && place.empty);
        if empty && asked < kept.start {
            tracing::warn!(peer, %partition, first = kept.start, "the copy is new and begins where the peer's log begins now");
            self.beginnings.insert(partition, kept.start);
            return;
        }
        self.meters.alarm("out_of_range");
        tracing::error!(peer, %partition, asked, ?kept, "the peer does not keep what comes next here: the copy stands still until somebody looks");
        self.hold(partition);
    }

    /// Leaves the partition out for a while: longer each time, until it moves again.
    pub fn hold(&mut self, partition: PartitionId) {
        let (first, longest) = self.limits.hold;
        let new = || Hold { until: Instant::now(), backoff: Backoff::new(first, longest) };
        let hold = self.holds.entry(partition).or_insert_with(new);
        hold.until = Instant::now() + hold.backoff.next_delay();
    }

    /// The partition moves again.
    pub fn release(&mut self, partition: &PartitionId) {
        if !self.holds.is_empty() {
            self.holds.remove(partition);
        }
    }
}
