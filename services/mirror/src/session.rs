//! One session: from the peer's first frame to the first thing that goes wrong.

use crate::{
    Appended, Effects, Frames, Place,
    lane::{Append, Lane},
    receive::Receiver,
    wire::v1::Frame,
};
use anyhow::{Result, bail, ensure};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use kit::{backoff::Backoff, shutdown::CancellationToken};
use meridian_proto::CommitTime;
use std::{ops::RangeInclusive, time::Duration};
use tokio::time::{Instant, MissedTickBehavior};

/// How a session ended when nothing was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Asked to stop.
    Stopped,
    /// Begin another one at once.
    Again,
}

/// How often lag is told and silence is looked for.
const TICK: Duration = Duration::from_millis(500);
/// How long a stop waits for what is under way.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// An append that has ended.
struct Settled {
    lane: usize,
    records: usize,
    bytes: usize,
    offsets: RangeInclusive<u64>,
    as_of_ms: i64,
    ended: Option<CommitTime>,
    parked: usize,
    outcome: Result<Appended>,
}

pub(crate) struct Session<'a> {
    receiver: &'a mut Receiver,
    lanes: Vec<Lane>,
    under_way: FuturesUnordered<BoxFuture<'static, Settled>>,
    pending_bytes: usize,
    rejoin_at: Option<Instant>,
}

impl<'a> Session<'a> {
    pub fn new(receiver: &'a mut Receiver, places: Vec<Place>, rejoin_at: Option<Instant>) -> Self {
        let lanes = places.into_iter().map(Lane::new).collect();
        Self { receiver, lanes, under_way: FuturesUnordered::new(), pending_bytes: 0, rejoin_at }
    }

    /// Copies frames until something ends it. Appends may still be under way then.
    pub async fn copy(&mut self, mut frames: Frames, shutdown: &CancellationToken, backoff: &mut Backoff) -> Result<End> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            // A full hand is not silence of the peer.
            let reads = self.pending_bytes < self.receiver.limits.pending_bytes_max;
            heard = if reads { heard } else { Instant::now() };
            // In this order: what is always ready comes last.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(End::Stopped),
                Some(settled) = self.under_way.next(), if !self.under_way.is_empty() => {
                    if let Some(end) = self.settle(settled)? {
                        return Ok(end);
                    }
                }
                _ = tick.tick() => {
                    self.tell_lag().await;
                    ensure!(heard.elapsed() < self.receiver.limits.silence_max, "{} is silent", self.receiver.peer);
                    if self.rejoin_at.is_some_and(|at| at <= Instant::now()) {
                        return Ok(End::Again);
                    }
                }
                frame = frames.next(), if reads => {
                    let Some(frame) = frame else { bail!("{} ended the stream", self.receiver.peer) };
                    self.take(frame?)?;
                    heard = Instant::now();
                    self.receiver.meters.connected.set(1.0);
                    backoff.reset();
                }
            }
        }
    }

    fn take(&mut self, frame: Frame) -> Result<()> {
        if frame.records.is_empty() {
            self.lanes.iter_mut().for_each(|lane| lane.caught_up(frame.sent_us as i64 / 1000));
            return Ok(());
        }
        let Some(index) = self.lanes.iter().position(|lane| lane.is_of(&frame)) else {
            bail!("{} sent {}/{}, which was not asked for", self.receiver.peer, frame.topic, frame.partition);
        };
        let lane = &mut self.lanes[index];
        let accepted = lane.accept(frame);
        self.pending_bytes += accepted.bytes;
        self.receiver.meters.accepted(&accepted);
        if accepted.taken > 0 {
            self.receiver.release(&lane.partition);
        }
        if let Some(gap) = accepted.gap {
            let partition = (*lane.partition).clone();
            self.receiver.meters.alarm("gap");
            tracing::error!(peer = self.receiver.peer, %partition, expected = gap.expected, found = gap.found, "records are missing");
            self.receiver.hold(partition.clone());
            self.append(index);
            bail!("gap in {partition}: {} was expected, {} came", gap.expected, gap.found);
        }
        self.append(index);
        Ok(())
    }

    fn append(&mut self, index: usize) {
        let Receiver { effects, limits, refusals, .. } = &mut *self.receiver;
        if let Some(append) = self.lanes[index].take_append(limits.append_records_max, limits.append_bytes_max, refusals) {
            self.under_way.push(append_lane(effects, index, append));
        }
    }

    fn settle(&mut self, settled: Settled) -> Result<Option<End>> {
        let index = settled.lane;
        self.pending_bytes -= settled.bytes;
        if !self.note(settled)? {
            return Ok(Some(End::Again));
        }
        self.append(index);
        Ok(None)
    }

    /// Takes down what came of an append; false when the log refuses what it was given.
    fn note(&mut self, settled: Settled) -> Result<bool> {
        let Receiver { meters, refusals, .. } = &mut *self.receiver;
        let lane = &mut self.lanes[settled.lane];
        match settled.outcome? {
            Appended::All => {
                meters.appended(settled.records, settled.bytes, settled.parked);
                meters.hop(settled.ended, settled.as_of_ms);
                refusals.passed(&lane.partition, *settled.offsets.end());
                lane.appended(settled.as_of_ms);
                Ok(true)
            }
            Appended::Refused { reason } => {
                let (partition, offsets) = (&lane.partition, settled.offsets);
                tracing::error!(%partition, ?offsets, reason, "the local log refuses a record: it becomes a dead letter");
                meters.alarm("refused");
                ensure!(refusals.note(partition, offsets, reason), "{partition}: the stand-in is refused too");
                Ok(false)
            }
        }
    }

    /// Waits for what is under way; begins nothing new.
    pub async fn settle_all(&mut self, shutdown: &CancellationToken) {
        let stop = async {
            shutdown.cancelled().await;
            tokio::time::sleep(STOP_PATIENCE).await;
        };
        let mut stop = std::pin::pin!(stop);
        while !self.under_way.is_empty() {
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(settled) = self.under_way.next() => {
                    if let Err(error) = self.note(settled) {
                        tracing::debug!(error = format!("{error:#}"), "an append that was under way failed");
                    }
                }
            }
        }
    }

    async fn tell_lag(&mut self) {
        if let Ok(now) = (self.receiver.effects.host_time)(()).await {
            self.receiver.meters.lag(now, self.lanes.iter().map(Lane::as_of_ms));
        }
    }
}

fn append_lane(effects: &Effects, lane: usize, append: Append) -> BoxFuture<'static, Settled> {
    let Effects { park_record, append_local_log, host_time, .. } = effects.clone();
    let Append { letters, records, bytes, offsets, as_of_ms } = append;
    let (count, parked) = (records.len(), letters.len());
    async move {
        let outcome = async {
            // The dead letter first: a stand-in whose record is nowhere would be a loss.
            for letter in letters {
                park_record(letter).await?;
            }
            append_local_log(records).await
        };
        let outcome = outcome.await;
        Settled { lane, records: count, bytes, offsets, as_of_ms, ended: host_time(()).await.ok(), parked, outcome }
    }
    .boxed()
}
