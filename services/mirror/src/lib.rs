//! `own log → sender ⇢ receiver → log of the other region`
//!
//! In: this region's own topics, and the streams of the other regions' senders. Out: frames to whoever follows, and copies of the
//! other regions' topics. Promised: **every position of another region's log is appended once, in order, unchanged**; a gap is
//! seen, never jumped; **own topics only are served, so nothing goes round**; where to go on is read from the copy itself.

mod follow;
mod frame;
mod lane;
pub mod local_log;
mod meters;
mod receive;
mod session;
mod tail;
pub mod wire;

pub use follow::{Sender, serve};
pub use frame::frames_of;
pub use lane::CONTENT_TYPE_REFUSED;
pub use local_log::LocalLog;
pub use receive::receive;
pub use tail::{Tail as CopyTail, last_of_tail};

use adapters::redpanda::{DeadLetter, OutRecord};
use anyhow::{Result, bail, ensure};
use futures::stream::BoxStream;
use kit::{Effect, health::Health, shutdown::CancellationToken};
use meridian_proto::{CommitTime, PartitionId};
use serde::Deserialize;
use std::{sync::Arc, time::Duration};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

/// Everything the mirror does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Opens a tail of the own log from these places on.
    pub read_local_log: Effect<Vec<Place>, Opened>,
    /// Hands frames to a peer's stream.
    pub send_frames: Effect<Shipment, ()>,
    /// Asks a peer for its log.
    pub receive_frames: Effect<Ask, Received>,
    /// Appends copies of one partition, in order; ends only when the outcome is known or can't be known any more.
    pub append_local_log: Effect<Vec<OutRecord>, Appended>,
    /// Where the local copies of a region's log end, one place a partition.
    pub last_mirrored: Effect<String, Vec<Place>>,
    /// Puts a record aside, acknowledged.
    pub park_record: Effect<DeadLetter, ()>,
    /// This host's clock.
    pub host_time: Effect<(), CommitTime>,
}

/// A place in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The partition.
    pub partition: PartitionId,
    /// Origin offset wanted next.
    pub next: u64,
    /// The local copy holds nothing at all.
    pub empty: bool,
    /// Append time in the origin of what the copy holds last, milliseconds since the Unix epoch; 0 when unknown.
    pub as_of_ms: i64,
}

/// Frames of the own log as they come: each call waits for some, an empty answer means that there were none for a second.
pub type LocalTail = Effect<(), Vec<wire::v1::Frame>>;

/// What came of opening the own log.
pub enum Opened {
    /// It is open.
    Tail(LocalTail),
    /// This place lies before the log's start or beyond its end.
    OutOfRange {
        /// The place asked for.
        place: Place,
        /// The oldest offset kept.
        low: u64,
        /// One past the newest.
        high: u64,
    },
}

/// Frames on their way to a peer.
pub struct Shipment {
    /// The peer's stream.
    pub to: mpsc::Sender<Result<wire::v1::Frame, tonic::Status>>,
    /// In order.
    pub frames: Vec<wire::v1::Frame>,
}

/// What is asked of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Region of the peer.
    pub peer: String,
    /// One place a partition.
    pub from: Vec<Place>,
}

/// A peer's frames as they come.
pub type Frames = BoxStream<'static, Result<wire::v1::Frame>>;

/// What came of asking.
pub enum Received {
    /// The frames from here on.
    Following(Frames),
    /// The peer's log does not keep what was asked for.
    OutOfRange {
        /// Which partition.
        partition: PartitionId,
        /// The offset asked for.
        asked: u64,
        /// The oldest offset that the peer keeps.
        low: u64,
        /// One past its newest.
        high: u64,
    },
}

/// What came of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// All are in the log.
    All,
    /// The log will never take one of them, and why; which one is known when it was the only one. Those before it may be in the log.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Bounds of the mirror, and what must hold between them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Values in a frame; a single larger record is a frame of its own.
    pub frame_bytes_max: usize,
    /// How long the sender gathers.
    pub linger: Duration,
    /// Frames that wait for one peer's stream.
    pub frames_waiting_max: usize,
    /// Streams served at a time.
    pub streams_max: usize,
    /// A peer that takes nothing for this long loses its stream.
    pub send_timeout: Duration,
    /// At least this often something is sent, be it a heartbeat. The own log's tail answers after a second without records.
    pub heartbeat: Duration,
    /// A receiver that hears nothing for this long dials again.
    pub silence_max: Duration,
    /// Bound on dialling.
    pub connect_timeout: Duration,
    /// Bound on the peer's answer to an ask, after dialling.
    pub answer_timeout: Duration,
    /// Sent and not acknowledged by the other host for this long: the connection is dead. Overrides the kernel's retries.
    pub tcp_user_timeout: Duration,
    /// Received and not yet appended, for one peer; beyond it the stream is not read, so the sender waits.
    pub pending_bytes_max: usize,
    /// One append.
    pub append_bytes_max: usize,
    /// One append.
    pub append_records_max: usize,
    /// First and longest wait before a failed session is tried again.
    pub retry: (Duration, Duration),
    /// First and longest wait before a partition with a gap, or out of range, is asked for again; the others go on.
    pub hold: (Duration, Duration),
}

impl Default for Limits {
    fn default() -> Self {
        let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
        Self {
            frame_bytes_max: 256 << 10,
            linger: millis(1),
            frames_waiting_max: 8,
            streams_max: 32,
            send_timeout: seconds(30),
            heartbeat: seconds(1),
            silence_max: seconds(4),
            connect_timeout: seconds(3),
            answer_timeout: seconds(10),
            tcp_user_timeout: seconds(10),
            pending_bytes_max: 8 << 20,
            append_bytes_max: 1 << 20,
            append_records_max: 4096,
            retry: (millis(50), seconds(2)),
            hold: (seconds(1), seconds(60)),
        }
    }
}

impl Limits {
    /// # Errors
    /// When two of the bounds contradict each other.
    pub fn check(&self) -> Result<()> {
        ensure!(self.silence_max >= self.heartbeat * 3, "silence_max must span three heartbeats, else a late one cuts the stream");
        ensure!(self.tcp_user_timeout > self.silence_max, "tcp_user_timeout must exceed silence_max: the heartbeat decides first");
        ensure!(self.pending_bytes_max >= 2 * self.append_bytes_max, "pending_bytes_max must hold an append and the next");
        ensure!(self.append_bytes_max >= self.frame_bytes_max, "append_bytes_max must hold a frame");
        Ok(())
    }
}

/// The keys of `config.toml`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// This region.
    pub region: String,
    /// Where its log is.
    pub kafka_address: String,
    /// Admin address.
    pub listen: String,
    /// Where the sender listens.
    pub mirror_listen: String,
    /// `region=url` each.
    #[serde(deserialize_with = "kit::config::list")]
    pub mirror_peers: Vec<String>,
    /// Unread bytes on their way to this process, all peers together.
    pub mirror_window_bytes: u32,
}

impl Config {
    /// The compiled-in defaults, overridden by the environment.
    ///
    /// # Errors
    /// Names the key that is wrong.
    pub fn load() -> Result<Self> {
        kit::config::load(include_str!("../config.toml"))
    }

    /// (region, url) of each peer.
    ///
    /// # Errors
    /// When an entry is not `region=url`.
    pub fn peers(&self) -> Result<Vec<(String, String)>> {
        let pair = |entry: &String| match entry.split_once('=') {
            Some((region, url)) if !region.is_empty() && !url.is_empty() => Ok((region.to_owned(), url.to_owned())),
            _ => bail!("mirror_peers: {entry:?} is not region=url"),
        };
        self.mirror_peers.iter().map(pair).collect()
    }
}

/// Serves the own log on `listener` and copies every peer's, until asked to stop.
///
/// # Errors
/// When the bounds contradict each other, or serving ends by itself.
pub async fn run(
    effects: Effects,
    limits: Limits,
    region: String,
    peers: Vec<String>,
    listener: TcpListener,
    health: Health,
    shutdown: CancellationToken,
) -> Result<()> {
    limits.check()?;
    let limits = Arc::new(limits);
    let mut parts = JoinSet::new();
    parts.spawn(serve(effects.clone(), Arc::clone(&limits), region.clone(), listener, shutdown.clone()));
    if peers.is_empty() {
        parts.spawn(receive::find_log(effects.clone(), region, health.clone(), shutdown.clone()));
    }
    for peer in peers {
        parts.spawn(receive::receive(effects.clone(), Arc::clone(&limits), peer, health.clone(), shutdown.clone()));
    }
    while let Some(ended) = parts.join_next().await {
        ended??;
        ensure!(shutdown.is_cancelled(), "a part of the mirror ended by itself");
    }
    Ok(())
}
