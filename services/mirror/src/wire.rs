//! The stream between two regions: frames over gRPC. Nothing speaks Kafka across the WAN.

use crate::{Ask, Frames, Limits, Place, Received, Shipment};
use anyhow::{Context, Result, anyhow, bail};
use futures::{Stream, StreamExt, TryStreamExt};
use hyper_util::client::legacy::connect::HttpConnector;
use meridian_proto::{PartitionId, Topic};
use std::{collections::BTreeMap, sync::Arc};
use tonic::{Code, Request, Status, metadata::MetadataMap, transport::Endpoint};
use v1::{FollowRequest, From, mirror_client::MirrorClient};

/// Generated from `mirror/v1/mirror.proto`.
#[allow(missing_docs)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/meridian.mirror.v1.rs"));
}

/// The log has a record of at most a few MiB; a frame holds at least one.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The other regions' senders.
pub struct Peers {
    urls: BTreeMap<String, String>,
    own_region: String,
    limits: Limits,
    window_bytes: u32,
}

impl Peers {
    /// `peers` are (region, url). `window_bytes` is what all of them together may have under way to this process.
    ///
    /// # Errors
    /// When a peer is named twice or is this region itself, or a url cannot be read.
    pub fn new(own_region: &str, peers: Vec<(String, String)>, window_bytes: u32, limits: &Limits) -> Result<Self> {
        let count = peers.len().max(1) as u32;
        let mut urls = BTreeMap::new();
        for (region, url) in peers {
            Endpoint::from_shared(url.clone()).with_context(|| format!("url of the peer {region}: {url}"))?;
            if region == own_region || urls.insert(region.clone(), url).is_some() {
                bail!("the peer {region} is named twice, or is this region itself");
            }
        }
        Ok(Self { urls, own_region: own_region.into(), limits: limits.clone(), window_bytes: window_bytes / count })
    }

    /// Their names.
    pub fn regions(&self) -> impl Iterator<Item = &str> {
        self.urls.keys().map(String::as_str)
    }
}

/// Calls a peer's sender and asks it for everything from these places on.
///
/// # Errors
/// When the peer cannot be reached or answered in time, or refuses.
pub async fn receive_frames(peers: Arc<Peers>, ask: Ask) -> Result<Received> {
    let url = peers.urls.get(&ask.peer).with_context(|| format!("{} is no peer", ask.peer))?;
    let limits = &peers.limits;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_tcp_user_timeout(Some(limits.tcp_user_timeout));
    connector.set_keepalive(Some(limits.silence_max));
    let endpoint = Endpoint::from_shared(url.clone())?
        .connect_timeout(limits.connect_timeout)
        .initial_stream_window_size(peers.window_bytes)
        .initial_connection_window_size(peers.window_bytes)
        .http2_keep_alive_interval(limits.silence_max)
        .keep_alive_timeout(limits.silence_max)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| anyhow!("connect to {url}: {}", chain(&error)))?;
    let from = ask.from.iter().map(|place| From {
        topic: place.partition.topic.to_string(),
        partition: place.partition.partition.into(),
        offset: place.next,
    });
    let request = FollowRequest { region: peers.own_region.clone(), from: from.collect() };
    let mut client = MirrorClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let answer = tokio::time::timeout(limits.answer_timeout, client.follow(Request::new(request)));
    let answer = answer.await.with_context(|| format!("{} did not answer in time", ask.peer))?;
    received(&ask.peer, answer.map(tonic::Response::into_inner))
}

/// What a peer's answer to `Follow` means.
///
/// # Errors
/// When it refuses for another reason than its log's bounds.
pub fn received(peer: &str, answer: Result<impl Stream<Item = Result<v1::Frame, Status>> + Send + 'static, Status>) -> Result<Received> {
    match answer {
        Ok(stream) => Ok(Received::Following(frames(stream, peer))),
        Err(status) => match out_of_range(&status) {
            Some(refused) => Ok(refused),
            None => Err(anyhow!("{peer} refuses: {:?} {}", status.code(), status.message())),
        },
    }
}

fn frames(stream: impl Stream<Item = Result<v1::Frame, Status>> + Send + 'static, peer: &str) -> Frames {
    let peer = peer.to_owned();
    stream.map_err(move |status| anyhow!("{peer} ended the stream: {:?} {}", status.code(), status.message())).boxed()
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Hands frames to the peer's stream, in order.
///
/// # Errors
/// When the peer is gone, or took nothing for [`Limits::send_timeout`].
pub async fn send_frames(limits: Arc<Limits>, shipment: Shipment) -> Result<()> {
    for frame in shipment.frames {
        let sent = tokio::time::timeout(limits.send_timeout, shipment.to.send(Ok(frame))).await;
        sent.with_context(|| format!("the peer took nothing for {:?}", limits.send_timeout))?.context("the peer is gone")?;
    }
    Ok(())
}

const KEYS: [&str; 5] = ["meridian-topic", "meridian-partition", "meridian-asked", "meridian-low", "meridian-high"];

/// The status that says which place was asked for in vain, and what there is.
pub(crate) fn out_of_range_status(place: &Place, low: u64, high: u64) -> Status {
    let Place { partition: PartitionId { topic, partition }, next, .. } = place;
    let text = format!("{topic}/{partition}: offset {next} was asked for, the log keeps {low}..{high}");
    let values = [topic.to_string(), partition.to_string(), next.to_string(), low.to_string(), high.to_string()];
    let mut metadata = MetadataMap::new();
    for (key, value) in KEYS.into_iter().zip(values) {
        if let Ok(value) = value.parse() {
            metadata.insert(key, value);
        }
    }
    Status::with_metadata(Code::OutOfRange, text, metadata)
}

fn out_of_range(status: &Status) -> Option<Received> {
    let [topic, partition, asked, low, high] = KEYS.map(|key| status.metadata().get(key).and_then(|value| value.to_str().ok()));
    if status.code() != Code::OutOfRange {
        return None;
    }
    let partition = PartitionId { topic: topic?.parse().ok()?, partition: partition?.parse().ok()? };
    Some(Received::OutOfRange { partition, asked: asked?.parse().ok()?, low: low?.parse().ok()?, high: high?.parse().ok()? })
}

/// Reads a request: places on this region's own topics, each once.
pub(crate) fn places_of(request: FollowRequest, own_region: &str) -> Result<Vec<Place>, Status> {
    let mut places: Vec<Place> = Vec::with_capacity(request.from.len());
    for From { topic, partition, offset } in request.from {
        let topic: Topic = topic.parse().map_err(|error| Status::invalid_argument(format!("{error}")))?;
        if topic.region != own_region {
            return Err(Status::permission_denied(format!("{topic} is not {own_region}'s own: copies are not mirrored again")));
        }
        let partition = u16::try_from(partition).map_err(|_| Status::invalid_argument(format!("{topic} has no partition {partition}")))?;
        let partition = PartitionId { topic, partition };
        if places.iter().any(|place| place.partition == partition) {
            return Err(Status::invalid_argument(format!("{partition} is asked for twice")));
        }
        places.push(Place { partition, next: offset, empty: false, as_of_ms: 0 });
    }
    if places.is_empty() {
        return Err(Status::invalid_argument("no partition is asked for"));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(topic: &str, partition: u32) -> From {
        From { topic: topic.into(), partition, offset: 7 }
    }

    fn check(from: Vec<From>, expected: Result<usize, Code>) {
        let request = FollowRequest { region: "fra".into(), from };
        assert_eq!(places_of(request, "iad").map(|places| places.len()).map_err(|status| status.code()), expected);
    }

    #[test]
    fn only_own_topics_are_served() {
        check(vec![from("events.iad.g1", 0), from("events.iad.g1", 1)], Ok(2));
        check(vec![from("events.fra.g1", 0)], Err(Code::PermissionDenied));
        check(vec![from("events.sin.g1", 0)], Err(Code::PermissionDenied));
        check(vec![from("events.iad.g1.dlq", 0)], Err(Code::InvalidArgument));
        check(vec![from("events.iad.g1", 70000)], Err(Code::InvalidArgument));
        check(vec![from("events.iad.g1", 0), from("events.iad.g1", 0)], Err(Code::InvalidArgument));
        check(vec![], Err(Code::InvalidArgument));
    }

    #[test]
    fn out_of_range_names_place_and_bounds() {
        let partition = PartitionId { topic: "events.iad.g1".parse().unwrap(), partition: 3 };
        let status = out_of_range_status(&Place { partition: partition.clone(), next: 9, empty: false, as_of_ms: 0 }, 1, 5);
        assert_eq!(status.message(), "events.iad.g1/3: offset 9 was asked for, the log keeps 1..5");
        let Some(Received::OutOfRange { partition: read, asked: 9, low: 1, high: 5 }) = out_of_range(&status) else { panic!("{status:?}") };
        assert_eq!(read, partition);
        assert!(out_of_range(&Status::out_of_range("message too large")).is_none());
    }
}
