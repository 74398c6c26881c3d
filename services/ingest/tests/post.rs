//! What a post promises, whatever the database does.
#![allow(clippy::unwrap_used)]

mod common;

use common::{BATCH, Fault, Faults, Region, STRUCTURED, batch, event};
use ingest::Limits;
use meridian_proto::CommitId;
use std::time::Duration;

/// Status, and the outcomes of the events (or the field that a problem names).
type Expected<'a> = (u16, &'a [&'a str]);

/// Posts one request after another and compares the answers; then each event of a 202 stands in the change log, and
/// `counted` events count in all.
async fn check(input: &[(&str, String)], faults: Faults, expected: &[Expected<'_>], counted: usize) -> Region {
    let region = Region::start(faults, Limits::default()).await;
    for ((content_type, body), (status, words)) in input.iter().zip(expected) {
        let (got, answer) = region.post(content_type, body.as_str()).await;
        assert_eq!(got, *status, "{body}: {answer}");
        let Some(events) = answer["events"].as_array() else {
            assert_eq!(answer["field"].as_str().into_iter().collect::<Vec<_>>(), *words, "{body}: {answer}");
            continue;
        };
        assert_eq!(events.iter().map(|event| event["outcome"].as_str().unwrap()).collect::<Vec<_>>(), *words, "{body}");
        let there: Vec<String> =
            region.events().iter().flatten().map(|event| CommitId::from_bytes(&event.commit_id).unwrap().to_string()).collect();
        for event in events {
            assert!(there.contains(&event["commit_id"].as_str().unwrap().to_owned()), "{answer}");
        }
    }
    assert_eq!(region.counted(), counted);
    region
}

fn one(id: &str, data: &str) -> (&'static str, String) {
    (STRUCTURED, event(id, data))
}

const OK: Expected<'static> = (202, &["committed"]);
const AGAIN: Expected<'static> = (202, &["repeated"]);
const UNKNOWN: Expected<'static> = (503, &[]);

#[tokio::test(start_paused = true)]
async fn an_event_is_committed_with_all_that_the_client_gave_and_what_ingest_adds() {
    let region = check(&[one("a", " { \"n\" : 1.50 } ")], Faults::default(), &[OK], 1).await;
    let event = region.events().remove(0).remove(0);
    assert_eq!((event.tenant.as_str(), event.origin.as_str(), event.r#type.as_str()), ("acme", "fra", "note"));
    assert_eq!((event.data.as_ref(), event.subject.as_deref()), (br#"{"n":1.50}"#.as_slice(), Some("s")));
    assert_eq!(event.payload_hash, meridian_proto::payload_hash(&event).0.as_slice());
    assert_eq!(event.accepted_us, common::START_US);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(*region.hints.lock().unwrap(), [region.rows.lock().unwrap()[0].partition]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_counts_once_and_another_payload_is_refused() {
    check(
        &[one("a", "1"), one("a", "1"), one("a", " 1 "), one("a", "2"), one("b", "2")],
        Faults::default(),
        &[OK, AGAIN, AGAIN, (409, &["id"]), OK],
        2,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn whatever_stays_unanswered_is_503_and_its_retry_counts_once() {
    for fault in [Fault::Lost, Fault::Unanswered] {
        let retry = [one("a", "1"), one("a", "1"), one("a", "1")];
        let find = Faults { find: vec![fault], ..Faults::default() };
        check(&retry, find, &[UNKNOWN, OK, AGAIN], 1).await;
        let save = Faults { save: vec![fault], ..Faults::default() };
        let second = if fault == Fault::Lost { OK } else { AGAIN };
        check(&retry, save, &[UNKNOWN, second, AGAIN], 1).await;
        let commit = Faults { commit: vec![fault], ..Faults::default() };
        check(&retry, commit, &[UNKNOWN, AGAIN, AGAIN], 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_beyond_the_fence_does_not_count_and_the_row_is_written_again() {
    for late in [2_100, 60_000] {
        let faults = Faults { commit: vec![Fault::Late(Duration::from_millis(late))], ..Faults::default() };
        let region = check(&[one("a", "1")], faults, &[OK], 1).await;
        let rows = region.rows.lock().unwrap();
        let times: Vec<u64> = rows.iter().map(|row| row.row.time().0 - common::START_US).collect();
        assert!(matches!(times.as_slice(), [0, second] if *second >= 2_000_000), "{times:?}");
    }
    let inside = Faults { commit: vec![Fault::Late(Duration::from_millis(1_900))], ..Faults::default() };
    let region = check(&[one("a", "1")], inside, &[OK], 1).await;
    assert_eq!(region.rows.lock().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_while_the_process_stood_still_is_written_again() {
    for (stopped_ms, rows) in [(1_990, 1), (2_010, 2)] {
        let faults = Faults { stopped: Duration::from_millis(stopped_ms), ..Faults::default() };
        let region = check(&[one("a", "1")], faults, &[OK], 1).await;
        assert_eq!(region.rows.lock().unwrap().len(), rows, "{stopped_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_late_again_and_again_is_503_when_the_time_is_over() {
    let faults = Faults { commit: vec![Fault::Late(Duration::from_millis(2_100)); 3], ..Faults::default() };
    check(&[one("a", "1"), one("a", "1")], faults, &[UNKNOWN, AGAIN], 1).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_clock_nothing_is_taken() {
    let region = check(&[one("a", "1")], Faults { clock_stale: true, ..Faults::default() }, &[UNKNOWN], 0).await;
    assert!(region.identities.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_taken_whole_or_not_at_all() {
    let good = (BATCH, batch(&[event("a", "1"), event("b", "2")]));
    let invalid = (BATCH, batch(&[event("c", "1"), event("", "2")]));
    let conflict = (BATCH, batch(&[event("d", "1"), event("b", "3"), event("a", "9")]));
    let region =
        check(&[good, invalid, conflict], Faults::default(), &[(202, &["committed"; 2]), (422, &["[1].id"]), (409, &["[1].id"])], 2).await;
    assert_eq!(region.identities.lock().unwrap().len(), 2);
    let (_, answer) = region.post(BATCH, batch(&[event("d", "1"), event("b", "3"), event("a", "9")])).await;
    assert_eq!(answer["conflicts"], serde_json::json!(["b", "a"]));
    let (status, answer) = region.post(BATCH, "[]").await;
    assert_eq!((status, answer), (202, serde_json::json!({"events": []})));
}

#[tokio::test(start_paused = true)]
async fn one_unknown_part_makes_the_whole_batch_unknown() {
    let events: Vec<String> = (0..8).map(|n| event(&n.to_string(), "1").replace(r#""s""#, &format!("\"subject-{n}\""))).collect();
    let faults = Faults { commit: vec![Fault::None, Fault::Lost], ..Faults::default() };
    let region = check(&[(BATCH, batch(&events)), (BATCH, batch(&events))], faults, &[UNKNOWN, (202, &["repeated"; 8])], 8).await;
    let partitions: std::collections::BTreeSet<u16> = region.rows.lock().unwrap().iter().map(|row| row.partition).collect();
    assert!(partitions.len() > 1 && partitions.len() <= 4, "{partitions:?}");
}

#[tokio::test(start_paused = true)]
async fn the_same_event_twice_in_a_batch_is_one_and_with_another_payload_invalid() {
    let twice = (BATCH, batch(&[event("a", "1"), event("a", "1")]));
    let torn = (BATCH, batch(&[event("b", "1"), event("b", "2")]));
    let region = check(&[twice, torn], Faults::default(), &[(202, &["committed", "repeated"]), (422, &["[1].id"])], 1).await;
    assert_eq!(region.events().concat().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_arrives_during_a_write_goes_into_the_next_row_together() {
    let region = Region::start(Faults::default(), Limits::default()).await;
    let post = async |n: u64| {
        // The first row takes 2 ms to be written.
        tokio::time::sleep(Duration::from_micros(if n == 0 { 0 } else { 1_000 + n })).await;
        region.post(STRUCTURED, event(&n.to_string(), "1")).await
    };
    let answers = futures::future::join_all((0..20).map(post)).await;
    assert!(answers.iter().all(|(status, _)| *status == 202));
    let rows: Vec<usize> = region.events().iter().map(Vec::len).collect();
    assert_eq!(rows, [1, 19]);
}

#[tokio::test(start_paused = true)]
async fn an_event_larger_than_a_row_has_a_row_of_its_own() {
    let region = Region::start(Faults::default(), Limits::default()).await;
    let large = event("large", &format!("\"{}\"", "x".repeat(256 * 1024 - 2)));
    let posts = [event("a", "1"), event("b", "1"), large, event("c", "1")].map(|body| region.post(STRUCTURED, body));
    assert!(futures::future::join_all(posts).await.iter().all(|(status, _)| *status == 202));
    assert_eq!(region.events().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn too_much_at_once_is_429_and_wrote_nothing() {
    let limits = Limits { in_flight_bytes_max: 4 * 1024 * 1024, ..Limits::default() };
    let region = Region::start(Faults { find: vec![Fault::Late(Duration::from_secs(1)); 100], ..Faults::default() }, limits).await;
    let large = |n: usize| event(&n.to_string(), &format!("\"{}\"", "x".repeat(200_000)));
    let answers = futures::future::join_all((0..20).map(|n| region.post(STRUCTURED, large(n)))).await;
    let count = |wanted: u16| answers.iter().filter(|(status, _)| *status == wanted).count();
    assert_eq!((count(202), count(429)), (6, 14));
    assert_eq!(region.counted(), 6);
    let (status, _) = region.post(STRUCTURED, large(7)).await;
    assert_eq!(status, 202, "the memory was given back");
}

#[tokio::test(start_paused = true)]
async fn a_write_over_the_regions_does_not_delay_a_local_one() {
    let region = Region::start(Faults { commit: vec![Fault::Late(Duration::from_secs(1))], ..Faults::default() }, Limits::default()).await;
    let request = |id: &str, ack: &str| {
        axum::http::Request::post("/v1/events")
            .header("authorization", format!("Bearer {}", region.key))
            .header("content-type", STRUCTURED)
            .header("meridian-ack", ack)
            .body(axum::body::Body::from(event(id, "1")))
            .unwrap()
    };
    let started = tokio::time::Instant::now();
    let global = tokio::spawn(tower::ServiceExt::oneshot(region.routes.clone(), request("a", "global")));
    tokio::task::yield_now().await;
    assert_eq!(region.send(request("b", "local")).await.status(), 202);
    assert!(started.elapsed() < Duration::from_millis(100));
    assert_eq!(global.await.unwrap().unwrap().status(), 202);
    assert_eq!(region.send(request("c", "both")).await.status(), 400);
}
