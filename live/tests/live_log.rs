//! The log adapter against a real broker, at `MERIDIAN_KAFKA_ADDRESS`.
#![allow(clippy::unwrap_used)]

use adapters::redpanda::{
    Batch, Bounds, DeadLetter, FollowSpec, Follower, Kind, LogReader, OutRecord, Publisher, ReadSpan, Record, RedpandaConfig, StartAt,
    TopicSettings, create_topics, list_partitions,
};
use anyhow::{Result, bail};
use bytes::Bytes;
use meridian_proto::{LogPosition, Origin, PartitionId, Topic};
use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

const OWN: &str = "own";

fn broker() -> RedpandaConfig {
    let address = kit::config::variable("MERIDIAN_KAFKA_ADDRESS").expect("MERIDIAN_KAFKA_ADDRESS names a broker");
    RedpandaConfig { address, client_id: "live-tests".into() }
}

/// A topic that no other test has, of the region `own` or of another.
fn fresh_topic(own: bool) -> Topic {
    let region = if own { OWN.to_owned() } else { format!("t{:08x}", rand::random::<u32>()) };
    Topic { region, generation: rand::random::<u32>() >> 1 | 1 }
}

fn settings(name: String, partitions: u16) -> TopicSettings {
    let settings =
        [("message.timestamp.type", "LogAppendTime"), ("retention.ms", "3600000")].map(|(name, value)| (name.into(), value.into()));
    TopicSettings { name, partitions, replication: 1, settings: BTreeMap::from(settings) }
}

async fn create(topic: &Topic, partitions: u16) {
    create_topics(&broker(), &[settings(topic.to_string(), partitions), settings(format!("{topic}.dlq"), 1)]).await.unwrap();
}

fn partition(topic: &Topic, partition: u16) -> Arc<PartitionId> {
    Arc::new(PartitionId { topic: topic.clone(), partition })
}

fn copy(to: &Arc<PartitionId>, origin: u64) -> OutRecord {
    OutRecord {
        origin: Some(Origin { offset: origin, append_time_ms: 1_000 + origin as i64 }),
        ..OutRecord::event(to, format!("{origin}").into())
    }
}

fn follow(partitions: impl IntoIterator<Item = (PartitionId, StartAt)>) -> Arc<Follower> {
    let spec = FollowSpec {
        partitions: partitions.into_iter().collect(),
        own_region: OWN.into(),
        batch_bytes_max: 1 << 20,
        batch_records_max: 1_000,
        linger: Duration::ZERO,
        held_back: Duration::ZERO,
    };
    Follower::start(&broker(), spec).unwrap()
}

/// The next `count` records, each as (partition, local offset, origin offset, value).
async fn next(follower: &Arc<Follower>, count: usize) -> Result<Vec<(u16, u64, u64, String)>> {
    let (mut seen, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while seen.len() < count {
        if Instant::now() > deadline {
            bail!("{} of {count} records came", seen.len());
        }
        let batch = Arc::clone(follower).next_batch(()).await?;
        seen.extend(batch.iter().map(told));
    }
    Ok(seen)
}

fn told(record: Record<'_>) -> (u16, u64, u64, String) {
    (record.partition.partition, record.local_offset, record.offset, String::from_utf8_lossy(record.value).into_owned())
}

#[tokio::test]
async fn in_the_own_log_positions_are_offsets_whatever_a_header_says() {
    let topic = fresh_topic(true);
    create(&topic, 1).await;
    let id = partition(&topic, 0);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let forged = copy(&id, 77);
    publisher.publish(vec![OutRecord::event(&id, "a".into()), forged, OutRecord::watermark(&id, "w".into())]).await.unwrap();
    let follower = follow([((*id).clone(), StartAt::Oldest)]);
    let batch = follower.next_batch(()).await.unwrap();
    let seen: Vec<_> = batch.iter().map(|record| (record.local_offset, record.offset, record.kind)).collect();
    assert_eq!(seen[..1], [(0, 0, Kind::Event)]);
    let reader = LogReader::connect(&broker(), OWN).await.unwrap();
    let batch = reader.read_span(ReadSpan { partition: (*id).clone(), from_local: 1, records_max: 10, bytes_max: 1 << 20 }).await.unwrap();
    let seen: Vec<_> = batch.iter().map(|record| (record.local_offset, record.offset, record.kind)).collect();
    assert_eq!(seen, [(1, 1, Kind::Event), (2, 2, Kind::Watermark)]);
    let record = batch.get(0).unwrap();
    assert!(record.relayed_ms == record.appended_ms && record.appended_ms > 1_600_000_000_000, "append time of the log: {record:?}");
}

#[tokio::test]
async fn a_copy_tells_its_origin_and_a_stranger_is_known_as_one() {
    let topic = fresh_topic(false);
    create(&topic, 1).await;
    let id = partition(&topic, 0);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    publisher.publish(vec![copy(&id, 40), OutRecord::event(&id, "stranger".into()), copy(&id, 41)]).await.unwrap();
    let seen = next(&follow([((*id).clone(), StartAt::Oldest)]), 3).await.unwrap();
    let offsets: Vec<_> = seen.iter().map(|(_, local, origin, _)| (*local, *origin)).collect();
    assert_eq!(offsets, [(0, 40), (1, Record::UNKNOWN_ORIGIN), (2, 41)]);
    let reader = LogReader::connect(&broker(), OWN).await.unwrap();
    let last = Arc::clone(&reader).last_record((*id).clone()).await.unwrap();
    let last = last.get(0).unwrap();
    assert_eq!((last.local_offset, last.offset, last.relayed_ms, last.value), (2, 41, 1_041, b"41".as_slice()));
    assert!(last.appended_ms > last.relayed_ms);
}

#[tokio::test]
async fn a_topic_that_appears_later_is_waited_for() {
    let topics = [fresh_topic(false), fresh_topic(true)];
    let ids = topics.clone().map(|topic| partition(&topic, 2));
    let starts = [StartAt::Offset { next: 0, local_hint: None }, StartAt::Latest];
    let follower = follow(ids.iter().zip(starts).map(|(id, start)| ((**id).clone(), start)));
    assert!(Arc::clone(&follower).next_batch(()).await.unwrap().is_empty());
    let publisher = Publisher::connect(&broker()).await.unwrap();
    for (topic, id) in topics.iter().zip(&ids) {
        create(topic, 3).await;
        Arc::clone(&publisher).publish(vec![copy(id, 0), copy(id, 1)]).await.unwrap();
        let seen = next(&follower, 2).await.unwrap();
        assert_eq!(seen, [(2, 0, 0, "0".into()), (2, 1, 1, "1".into())]);
    }
    let listed = list_partitions(LogReader::connect(&broker(), OWN).await.unwrap(), ()).await.unwrap();
    assert!((0..3).all(|number| listed.contains(&partition(&topics[0], number))));
}

#[tokio::test]
async fn a_follower_begins_at_an_origin_offset_past_repeats_or_refuses() {
    let topic = fresh_topic(false);
    create(&topic, 1).await;
    let id = partition(&topic, 0);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let origins: Vec<u64> = (100..160).chain(150..160).chain([160]).collect();
    publisher.publish(origins.iter().map(|origin| copy(&id, *origin)).collect()).await.unwrap();
    let reader = LogReader::connect(&broker(), OWN).await.unwrap();
    for (wanted, local) in [(0, 0), (100, 0), (137, 37), (155, 55), (160, 70), (161, 71), (500, 71)] {
        assert_eq!(Arc::clone(&reader).find_position(((*id).clone(), wanted)).await.unwrap(), local, "{wanted}");
    }
    for local_hint in [None, Some(55), Some(3)] {
        let seen = next(&follow([((*id).clone(), StartAt::Offset { next: 155, local_hint })]), 16).await.unwrap();
        assert_eq!(seen[0], (0, 55, 155, "155".into()));
    }
    let trimmed = next(&follow([((*id).clone(), StartAt::Offset { next: 99, local_hint: None })]), 1).await.unwrap_err();
    assert!(format!("{trimmed:#}").contains("not kept any more, the oldest is 100"), "{trimmed:#}");
}

#[tokio::test]
async fn an_offset_that_the_own_log_does_not_hold_stops_the_follower_for_good() {
    let topic = fresh_topic(true);
    create(&topic, 1).await;
    let id = partition(&topic, 0);
    let follower = follow([((*id).clone(), StartAt::Offset { next: 5, local_hint: None })]);
    let error = next(&follower, 1).await.unwrap_err();
    assert!(format!("{error:#}").contains("offset 5 lies beyond the end of the log, 0"), "{error:#}");
    let error = next(&follower, 1).await.unwrap_err();
    assert!(format!("{error:#}").contains("has stopped"), "{error:#}");
    let reader = LogReader::connect(&broker(), OWN).await.unwrap();
    let beyond = ReadSpan { partition: (*id).clone(), from_local: 5, records_max: 1, bytes_max: 1 };
    assert!(reader.read_span(beyond).await.is_err());
}

#[tokio::test]
async fn order_is_kept_in_each_partition_and_spans_end_at_the_end() {
    let topic = fresh_topic(true);
    create(&topic, 4).await;
    let ids: Vec<_> = (0..4).map(|number| partition(&topic, number)).collect();
    let publisher = Publisher::connect(&broker()).await.unwrap();
    for round in 0..5 {
        let records = (0..4_000).map(|k| OutRecord::event(&ids[k % 4], format!("{:06}", round * 4_000 + k).into()));
        Arc::clone(&publisher).publish(records.collect()).await.unwrap();
    }
    let follower = follow(ids.iter().map(|id| ((**id).clone(), StartAt::Oldest)));
    let seen = next(&follower, 20_000).await.unwrap();
    let reader = LogReader::connect(&broker(), OWN).await.unwrap();
    for (number, id) in ids.iter().enumerate() {
        let values: Vec<&str> =
            seen.iter().filter(|(partition, ..)| usize::from(*partition) == number).map(|(.., value)| value.as_str()).collect();
        assert!(values.len() == 5_000 && values.is_sorted());
        assert_eq!(Arc::clone(&reader).bounds((**id).clone()).await.unwrap(), Bounds { low: 0, high: 5_000 });
        let (mut at, mut read) = (0, Vec::new());
        loop {
            let span = ReadSpan { partition: (**id).clone(), from_local: at, records_max: 1_700, bytes_max: 1 << 20 };
            let batch: Batch = Arc::clone(&reader).read_span(span).await.unwrap();
            if batch.is_empty() {
                break;
            }
            at += batch.len() as u64;
            read.extend(batch.iter().map(|record| String::from_utf8_lossy(record.value).into_owned()));
        }
        assert_eq!(read, values);
    }
}

#[tokio::test]
async fn topics_are_made_once_and_a_difference_is_told_in_words() {
    let topic = fresh_topic(true);
    create(&topic, 2).await;
    create(&topic, 2).await;
    let mut other = settings(topic.to_string(), 3);
    other.settings.insert("retention.ms".into(), "5".into());
    let error = create_topics(&broker(), &[other]).await.unwrap_err().to_string();
    assert_eq!(error, format!("topic {topic} has 2 partitions, 3 are wanted; topic {topic} has retention.ms = 3600000, 5 is wanted"));
}

#[tokio::test]
async fn what_cannot_be_appended_is_an_error_and_the_next_call_works() {
    let topic = fresh_topic(true);
    create(&topic, 1).await;
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let no_such_partition = OutRecord::event(&partition(&topic, 9), "x".into());
    let good = OutRecord::event(&partition(&topic, 0), "x".into());
    let error = Arc::clone(&publisher).publish(vec![good.clone(), no_such_partition]).await.unwrap_err();
    assert!(format!("{error:#}").contains("unknown"), "{error:#}");
    let too_large = OutRecord::event(&partition(&topic, 0), Bytes::from(vec![0; 3 << 20]));
    assert!(Arc::clone(&publisher).publish(vec![too_large]).await.is_err());
    Arc::clone(&publisher).publish(vec![good]).await.unwrap();
    let position = LogPosition { partition: (*partition(&topic, 0)).clone(), offset: 0 };
    let letter = DeadLetter { position, reason: "for this test".into(), content_type: "text/plain".into(), value: "x".into() };
    publisher.dead_letter(letter).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_reaches_a_follower_within_milliseconds() {
    let topic = fresh_topic(true);
    create(&topic, 1).await;
    let id = partition(&topic, 0);
    let publisher = Publisher::connect(&broker()).await.unwrap();
    let follower = follow([((*id).clone(), StartAt::Oldest)]);
    Arc::clone(&publisher).publish(vec![OutRecord::event(&id, "first".into())]).await.unwrap();
    next(&follower, 1).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..100 {
        let started = Instant::now();
        Arc::clone(&publisher).publish(vec![OutRecord::event(&id, "x".into())]).await.unwrap();
        let acknowledged = started.elapsed();
        next(&follower, 1).await.unwrap();
        took.push((started.elapsed(), acknowledged));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took.sort();
    println!("published and followed: median {:?} (acknowledged {:?}), worst {:?}", took[50].0, took[50].1, took[99].0);
    assert!(took[50].0 < Duration::from_millis(100), "{:?}", took[50]);
}
