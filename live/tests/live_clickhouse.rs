//! Counting once on a real ClickHouse engine. Numbers name the kinds of fault in the catalogue of field reports.
#![allow(clippy::unwrap_used)]

use adapters::clickhouse::{
    Aggregation, Bucket, ClickHouse, InsertBlock, ListConflicts, ParkedRow, PositionRow, SaveProgress, SumMeter, check_settings,
    execute_schema, insert_block, list_conflicts, load_positions, read_events, read_progress, save_positions, sum_meter,
};
use anyhow::Result;
use bytes::Bytes;
use live::{address, unique};
use meridian_proto::{CommitId, CommitTime, Event, Incarnation, PartitionId, Topic};
use sink::Block;
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

const SCHEMA: &str = include_str!("../../deploy/schema/clickhouse/0001_events.sql");
const DAY_US: i64 = 86_400_000_000;
/// 2026-03-01T00:00:00Z.
const MARCH_US: i64 = 1_772_323_200_000_000;

/// A database of its own, so that merges can be stopped and tables counted.
async fn database() -> Result<Arc<ClickHouse>> {
    let clickhouse = ClickHouse::connect(&address("CLICKHOUSE_URL"), &unique("live")).await?;
    execute_schema(Arc::clone(&clickhouse), SCHEMA.into()).await?;
    check_settings(Arc::clone(&clickhouse), ()).await?;
    Ok(clickhouse)
}

/// Plain SQL over HTTP, past the adapter.
async fn sql(clickhouse: &ClickHouse, statement: &str) -> Result<String> {
    let url = format!("{}/?database={}", address("CLICKHOUSE_URL"), clickhouse.database());
    let response = reqwest::Client::new().post(url).body(statement.to_owned()).send().await?;
    let status = response.status();
    let text = response.text().await?;
    anyhow::ensure!(status.is_success(), "{statement}: {text}");
    Ok(text.trim().to_owned())
}

fn place(partition: u16) -> PartitionId {
    PartitionId { topic: Topic { region: "fra".into(), generation: 1 }, partition }
}

fn event(id: &str, commit_us: u64, data: &str) -> Event {
    use std::hash::{Hash, Hasher};
    let mut hasher = std::hash::DefaultHasher::new();
    data.hash(&mut hasher);
    let hash = hasher.finish().to_be_bytes().repeat(4);
    Event {
        tenant: "acme".into(),
        source: "/live".into(),
        id: id.into(),
        r#type: "order".into(),
        data: data.to_owned().into(),
        origin: "fra".into(),
        commit_id: Bytes::copy_from_slice(&CommitId::of_row(CommitTime(commit_us), Incarnation::from_random(9)).to_bytes()),
        payload_hash: hash.into(),
        accepted_us: commit_us,
        ..Event::default()
    }
}

fn block(events: &[Event]) -> InsertBlock {
    use prost::Message;
    let mut block = Block::default();
    for (offset, event) in events.iter().enumerate() {
        block.push(&place(0), offset as u64, &event.encode_to_vec()).unwrap();
    }
    block.take()
}

async fn store(clickhouse: &Arc<ClickHouse>, events: &[Event]) -> Result<()> {
    insert_block(Arc::clone(clickhouse), block(events)).await
}

async fn sum(clickhouse: &Arc<ClickHouse>, aggregation: Aggregation, starts_us: &[i64], end_us: i64) -> Result<Vec<Bucket>> {
    let question = SumMeter { tenant: "acme".into(), event_type: "order".into(), aggregation, starts_us: starts_us.to_vec(), end_us };
    sum_meter(Arc::clone(clickhouse), question).await
}

async fn total(clickhouse: &Arc<ClickHouse>) -> Result<(String, u64, u64)> {
    let buckets = sum(clickhouse, Aggregation::Sum { property: "amount".into() }, &[0], i64::MAX).await?;
    let counted = sum(clickhouse, Aggregation::Count, &[0], i64::MAX).await?;
    let total = buckets.first().map_or(("0".into(), 0, 0), |bucket| (bucket.value.clone(), bucket.events, bucket.skipped));
    assert_eq!(counted.first().map_or(0, |bucket| bucket.events), total.1);
    Ok(total)
}

#[tokio::test]
async fn report_44_every_event_sent_three_times_counts_once_without_merges() -> Result<()> {
    let clickhouse = database().await?;
    sql(&clickhouse, &format!("SYSTEM STOP MERGES {}.events", clickhouse.database())).await?;
    let events: Vec<Event> = (0..1000).map(|n| event(&format!("{n}"), 1_000 + n, r#"{"amount":"0.25"}"#)).collect();
    for _ in 0..3 {
        store(&clickhouse, &events).await?;
    }
    assert_eq!(sql(&clickhouse, "SELECT count() FROM events").await?, "3000");
    assert_eq!(total(&clickhouse).await?, ("250".into(), 1000, 0));
    assert_eq!(read_events(Arc::clone(&clickhouse), ()).await?.len(), 1000);
    let old = clickhouse.with_read_setting("compatibility", "25.3");
    assert_eq!(total(&old).await?, ("250".into(), 1000, 0));
    Ok(())
}

#[tokio::test]
async fn report_41_equal_and_cut_blocks_are_stored_each_time() -> Result<()> {
    let clickhouse = database().await?;
    let events: Vec<Event> = (0..10).map(|n| event(&format!("{n}"), 1_000 + n, r#"{"amount":1}"#)).collect();
    for table in ["events", "conflicts"] {
        sql(&clickhouse, &format!("SYSTEM STOP MERGES {}.{table}", clickhouse.database())).await?;
    }
    for part in [&events[..], &events[..], &events[..7], &events[3..]] {
        store(&clickhouse, part).await?;
    }
    assert_eq!(sql(&clickhouse, "SELECT count() FROM events").await?, "34", "nothing was taken for a repeat");
    assert_eq!(sql(&clickhouse, "SELECT count() FROM conflicts").await?, "34", "the view had every block too");
    assert_eq!(sql(&clickhouse, "SELECT count() FROM conflicts FINAL").await?, "10");
    assert_eq!(total(&clickhouse).await?, ("10".into(), 10, 0));
    Ok(())
}

#[tokio::test]
async fn report_45_the_least_commit_id_wins_whatever_the_order() -> Result<()> {
    let payloads =
        [event("a", 1_000, r#"{"amount":"1"}"#), event("a", 2_000, r#"{"amount":"10"}"#), event("a", 3_000, r#"{"amount":"100"}"#)];
    let mut answers = Vec::new();
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let clickhouse = database().await?;
        for index in order {
            store(&clickhouse, &payloads[index..=index]).await?;
        }
        assert_eq!(total(&clickhouse).await?, ("1".into(), 1, 0), "{order:?}");
        sql(&clickhouse, "OPTIMIZE TABLE events FINAL").await?;
        sql(&clickhouse, "OPTIMIZE TABLE conflicts FINAL").await?;
        assert_eq!(total(&clickhouse).await?, ("1".into(), 1, 0), "{order:?} merged");
        let conflicts = list_conflicts(Arc::clone(&clickhouse), ListConflicts { tenant: "acme".into(), limit: 10 }).await?;
        assert_eq!(conflicts.iter().map(|row| row.commit_id >> 64).collect::<Vec<_>>(), [1_000, 2_000, 3_000]);
        answers.push(conflicts);
    }
    assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "the same list whatever the order");
    Ok(())
}

#[tokio::test]
async fn report_45_only_tenant_source_and_id_together_are_the_same() -> Result<()> {
    let clickhouse = database().await?;
    let data = r#"{"amount":"1"}"#;
    let first = event("a", 1_000, data);
    let others = [
        Event { tenant: "globex".into(), ..first.clone() },
        Event { source: "/other".into(), ..first.clone() },
        event("b", 1_000, data),
        first.clone(),
    ];
    store(&clickhouse, &others).await?;
    store(&clickhouse, &[first]).await?;
    assert_eq!(total(&clickhouse).await?, ("3".into(), 3, 0), "of acme");
    assert!(list_conflicts(Arc::clone(&clickhouse), ListConflicts { tenant: "acme".into(), limit: 10 }).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn copies_over_a_months_end_count_once_also_as_the_pinned_release_does() -> Result<()> {
    let clickhouse = database().await?;
    let edge = MARCH_US as u64;
    // No time of its own: each copy reads as its commit time, on both sides of the edge. The least commit id decides.
    for commit_us in [edge + 5, edge - 5, edge + 9] {
        store(&clickhouse, &[event("a", commit_us, r#"{"amount":"7"}"#)]).await?;
    }
    let starts = [MARCH_US - 28 * DAY_US, MARCH_US];
    for reader in [Arc::clone(&clickhouse), clickhouse.with_read_setting("compatibility", "25.3")] {
        let buckets = sum(&reader, Aggregation::Count, &starts, MARCH_US + 31 * DAY_US).await?;
        assert_eq!(buckets, [Bucket { start_us: starts[0], value: "1".into(), events: 1, skipped: 0 }]);
        let march = sum(&reader, Aggregation::Count, &[MARCH_US], MARCH_US + 31 * DAY_US).await?;
        assert!(march.is_empty(), "the filter runs after FINAL: the later copy does not come forward");
    }
    Ok(())
}

#[tokio::test]
async fn report_54_a_million_tenths_are_exact() -> Result<()> {
    let clickhouse = database().await?;
    for part in 0..10_u64 {
        let data = if part % 2 == 0 { r#"{"amount":0.1}"# } else { r#"{"amount":"0.1"}"# };
        let events: Vec<Event> = (0..100_000).map(|n| event(&format!("{part}-{n}"), 1_000 + n, data)).collect();
        store(&clickhouse, &events).await?;
    }
    assert_eq!(total(&clickhouse).await?, ("100000".into(), 1_000_000, 0));
    Ok(())
}

#[tokio::test]
async fn report_53_values_at_the_limits_are_exact() -> Result<()> {
    let clickhouse = database().await?;
    let most = r#"{"amount":"99999999999999999999.999999999999999999"}"#;
    let events: Vec<Event> = (0..100_000).map(|n| event(&format!("{n}"), 1_000 + n, most)).collect();
    store(&clickhouse, &events).await?;
    assert_eq!(total(&clickhouse).await?.0, "9999999999999999999999999.9999999999999");
    let clickhouse = database().await?;
    let values = [
        (r#""-99999999999999999999.999999999999999999""#, Some("-99999999999999999999.999999999999999999")),
        (r#""0.000000000000000001""#, Some("0.000000000000000001")),
        ("123456789012345", Some("123456789012345")),
        ("0.123456789012345", Some("0.123456789012345")),
        ("0.000000000012345", Some("0.000000000012345")),
        ("-0", Some("0")),
        (r#""-0.0""#, Some("0")),
        ("1e3", Some("1000")),
        (r#""1e3""#, None),
        (r#""1,5""#, None),
        (r#""+1""#, None),
        (r#"" 1""#, None),
        (r#""NaN""#, None),
        (r#""Infinity""#, None),
        (r#""0.0000000000000000001""#, None),
        (r#""100000000000000000000""#, None),
        ("0.12345678901234567", None),
        ("18446744073709551615", None),
        ("true", None),
        ("null", None),
        ("{}", None),
        ("[1]", None),
    ];
    for (n, (value, expected)) in values.iter().enumerate() {
        let time_us = MARCH_US + n as i64;
        let data = format!(r#"{{"amount":{value}}}"#);
        store(&clickhouse, &[Event { time_us: Some(time_us), ..event(&format!("{n}"), 1_000, &data) }]).await?;
        let buckets = sum(&clickhouse, Aggregation::Sum { property: "amount".into() }, &[time_us], time_us + 1).await?;
        let skipped = u64::from(expected.is_none());
        let expected = Bucket { start_us: time_us, value: expected.unwrap_or("0").into(), events: 1, skipped };
        assert_eq!(buckets, [expected], "{value}");
    }
    Ok(())
}

#[tokio::test]
async fn report_57_odd_payloads_are_stored_whole_and_skipped_by_sums() -> Result<()> {
    let clickhouse = database().await?;
    let texts = ["", "{", "[]", "\"amount\"", "{\"amount\":{\"amount\":\"1\"}}", "\u{0}", "{\"amount\":\"\\ud800\"}", "{\"Amount\":\"1\"}"];
    let deep = format!("{{\"amount\":\"2\",\"deep\":{}{}}}", "[".repeat(60), "]".repeat(60));
    let mut events: Vec<Event> = texts.iter().enumerate().map(|(n, text)| event(&format!("{n}"), 1_000, text)).collect();
    let binary = Event { data: Bytes::from_static(b"\xff\xfe\x00\x80"), ..event("binary", 1_000, "") };
    let names = Event { subject: Some("é'\\\t\"`;--".into()), ..event("'; DROP TABLE events; --", 1_000, r#"{"amount":"3"}"#) };
    events.extend([event("deep", 1_000, &deep), binary, names]);
    for event in &mut events {
        event.data_content_type = Some("text/plain".into());
        event.extensions = [("knights".to_owned(), "Ní!".to_owned())].into();
    }
    store(&clickhouse, &events).await?;
    assert_eq!(total(&clickhouse).await?, ("5".into(), 11, 9));
    assert_eq!(sql(&clickhouse, "SELECT hex(data) FROM events WHERE id = 'binary'").await?, "FFFE0080");
    assert_eq!(sql(&clickhouse, "SELECT count() FROM events WHERE extensions['knights'] = 'Ní!'").await?, "11");
    let property = "'; DROP TABLE events; --".to_owned();
    assert_eq!(sum(&clickhouse, Aggregation::Sum { property }, &[0], i64::MAX).await?[0].skipped, 11);
    Ok(())
}

#[tokio::test]
async fn report_51_extreme_times_are_kept_exactly() -> Result<()> {
    let clickhouse = database().await?;
    let times = [i64::MIN, -62_135_596_800_000_000, -1, 0, 4_296_000_000_000_000, 10_384_000_000_000_000, i64::MAX - 1];
    for (n, time_us) in times.into_iter().enumerate() {
        store(&clickhouse, &[Event { time_us: Some(time_us), ..event(&format!("{n}"), 1_000, "{}") }]).await?;
    }
    let buckets = sum(&clickhouse, Aggregation::Count, &times, i64::MAX).await?;
    assert_eq!(buckets.iter().map(|bucket| (bucket.start_us, bucket.events)).collect::<Vec<_>>(), times.map(|time| (time, 1)));
    Ok(())
}

fn position(store: &str, partition: u16, next_offset: u64) -> PositionRow {
    let (since_us, through_us) = (5, next_offset * 10);
    PositionRow {
        store: store.into(),
        origin: "fra".into(),
        generation: 1,
        partition,
        partitions: 2,
        next_offset,
        since_us,
        through_us,
        ..PositionRow::default()
    }
}

#[tokio::test]
async fn report_40_the_furthest_position_stands_and_another_stores_is_not_read() -> Result<()> {
    let clickhouse = database().await?;
    let store = load_positions(Arc::clone(&clickhouse), ()).await?.store;
    for next_offset in [7, 9, 8] {
        let positions = vec![position(&store, 0, next_offset), position("another store", 1, 99)];
        save_positions(Arc::clone(&clickhouse), SaveProgress { positions, parked: vec![] }).await?;
    }
    assert_eq!(load_positions(Arc::clone(&clickhouse), ()).await?.rows, [position(&store, 0, 9)]);
    let parked = |state| ParkedRow {
        origin: "fra".into(),
        generation: 1,
        partition: 0,
        offset: 3,
        partitions: 2,
        state,
        reason: "bad".into(),
        stored_at: 1,
    };
    for (state, counted) in [(0, vec![("fra".to_owned(), 1)]), (0, vec![("fra".to_owned(), 1)]), (2, vec![]), (0, vec![])] {
        save_positions(Arc::clone(&clickhouse), SaveProgress { positions: vec![], parked: vec![parked(state)] }).await?;
        assert_eq!(read_progress(Arc::clone(&clickhouse), ()).await?.parked, counted, "a repeat brings nothing back");
    }
    Ok(())
}

#[tokio::test]
async fn a_schema_may_be_applied_again_and_the_store_stays_the_same() -> Result<()> {
    let clickhouse = database().await?;
    let before = load_positions(Arc::clone(&clickhouse), ()).await?;
    execute_schema(Arc::clone(&clickhouse), SCHEMA.into()).await?;
    assert_eq!(load_positions(Arc::clone(&clickhouse), ()).await?, before);
    Ok(())
}

#[tokio::test]
async fn report_48_wrong_settings_are_found_at_start() -> Result<()> {
    let clickhouse = database().await?;
    sql(&clickhouse, "ALTER TABLE events MODIFY SETTING non_replicated_deduplication_window = 100").await?;
    let error = check_settings(Arc::clone(&clickhouse), ()).await.unwrap_err();
    assert!(error.to_string().contains("insert-deduplication window"), "{error}");
    let other = ClickHouse::connect(&address("CLICKHOUSE_URL"), &unique("none")).await?;
    assert!(check_settings(other, ()).await.is_err());
    Ok(())
}

#[tokio::test]
async fn report_1_an_insert_that_is_refused_leaves_nothing_and_says_so() -> Result<()> {
    let clickhouse = database().await?;
    let cut = block(&[event("a", 1_000, "{}"), event("b", 1_000, "{}")]);
    let cut = InsertBlock { rows: cut.rows.slice(..cut.rows.len() - 3), ..cut };
    insert_block(Arc::clone(&clickhouse), cut).await.unwrap_err();
    // The view is part of the insert: where it cannot write, the insert fails too.
    sql(&clickhouse, "RENAME TABLE conflicts TO away").await?;
    insert_block(Arc::clone(&clickhouse), block(&[event("c", 1_000, "{}")])).await.unwrap_err();
    sql(&clickhouse, "RENAME TABLE away TO conflicts").await?;
    store(&clickhouse, &[event("c", 1_000, "{}")]).await?;
    assert_eq!(total(&clickhouse).await?.1, 1);
    Ok(())
}

#[tokio::test]
async fn stored_at_is_that_of_the_first_progress_over_the_event() -> Result<()> {
    let clickhouse = database().await?;
    let store_id = load_positions(Arc::clone(&clickhouse), ()).await?.store;
    store(&clickhouse, &[event("a", 1_000, "{}"), event("b", 1_000, "{}"), event("c", 1_000, "{}")]).await?;
    let (first, second) = (4_000_000_000_000_000, 4_000_000_000_000_200);
    for (next_offset, stored_at) in [(1, first), (2, second)] {
        let positions = vec![PositionRow { stored_at, ..position(&store_id, 0, next_offset) }];
        save_positions(Arc::clone(&clickhouse), SaveProgress { positions, parked: vec![] }).await?;
    }
    let mut seen: Vec<(String, i64)> =
        read_events(Arc::clone(&clickhouse), ()).await?.into_iter().map(|row| (row.id, row.stored_us)).collect();
    seen.sort();
    assert_eq!(seen, [("a".into(), first), ("b".into(), second), ("c".into(), 0)]);
    Ok(())
}

/// A way to the engine that is cut after so many bytes in either direction, each connection by the next entry; then it holds.
async fn cut_way(cuts: Vec<(usize, usize)>) -> Result<String> {
    let engine = address("CLICKHOUSE_URL").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        let mut cuts = cuts.into_iter();
        while let Ok((client, _)) = listener.accept().await {
            let (there, back) = cuts.next().unwrap_or((usize::MAX, usize::MAX));
            let engine = TcpStream::connect(&engine).await;
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_engine, mut to_engine)) = (client.into_split(), engine?.into_split());
                let answers = tokio::spawn(async move { pass(&mut from_engine, &mut to_client, back).await });
                pass(&mut from_client, &mut to_engine, there).await?;
                // Let what was sent whole be carried out, though its answer may be lost.
                if there == usize::MAX {
                    return answers.await?;
                }
                answers.abort();
                Ok(())
            });
        }
    });
    Ok(url)
}

async fn pass(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, mut left: usize) -> Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 {
        let count = from.read(&mut buffer).await?.min(left);
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count]).await?;
        left -= count;
    }
    Ok(())
}

#[tokio::test]
async fn reports_5_and_41_inserts_cut_anywhere_are_repeated_until_they_count_once() -> Result<()> {
    let clickhouse = database().await?;
    // Twenty cuts on the way there, anywhere in the body; five answers lost after the insert was carried out.
    let cuts = (0..20).map(|n| (n * 12_345, usize::MAX)).chain((0..5).map(|n| (usize::MAX, n * 10))).collect();
    let through = ClickHouse::new(&cut_way(cuts).await?, clickhouse.database());
    let (mut failed, mut number) = (0, 0);
    while failed < 25 {
        let events: Vec<Event> = (0..2000).map(|n| event(&format!("{number}-{n}"), 1_000 + n, r#"{"amount":"0.1"}"#)).collect();
        while insert_block(Arc::clone(&through), block(&events)).await.is_err() {
            failed += 1;
            assert!(failed < 60, "the way holds after 25 cuts");
        }
        number += 1;
        // Each cut takes a connection of its own.
        if number > 30 {
            break;
        }
    }
    assert!(failed >= 25, "{failed} inserts were cut");
    assert_eq!(total(&clickhouse).await?, (format!("{}", number * 200), number * 2000, 0));
    Ok(())
}
