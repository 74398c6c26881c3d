//! Each kind of wrong, one at a time: a checker that cannot fail is worth nothing.

use super::*;
use crate::{
    audit::{Handled, LogAudit, LogRecord, Name, RegionAudit, StoredRow, TenantUsage, Tier, hash_head},
    decimal::Decimal,
    history::{Attempt, EventRecord, Head, History, Outcome, Record},
};
use std::collections::BTreeMap;

const REGIONS: [&str; 3] = ["fra", "iad", "sin"];
const SOURCE: &str = "/loadtest/test";
const EVENTS: u32 = 60;

fn tenant(number: u32) -> String {
    format!("tenant-{:02}", number % 4 + 1)
}

fn commit(number: u32, again: u32) -> u128 {
    u128::from(1_000 + u64::from(number) * 10 + u64::from(again)) << 64 | u128::from(number + 1)
}

fn hash(number: u32, other: bool) -> [u8; 32] {
    let mut hash = [u8::from(other); 32];
    hash[..4].copy_from_slice(&number.to_be_bytes());
    hash
}

fn amount(number: u32) -> Decimal {
    Decimal::from_units(i64::from(number) + 1, 1)
}

fn record(number: u32, kind: &str, outcome: Outcome, status: Option<u16>, commit_id: Option<u128>) -> Record {
    let region = REGIONS[number as usize % 3].to_owned();
    let attempt = Attempt { region: region.clone(), sent_us: 1, answered_us: 2, status, outcome, note: String::new() };
    Record {
        operation: number,
        kind: kind.into(),
        detail: String::new(),
        tenant: tenant(number),
        region,
        intended_us: 1,
        attempts: if outcome == Outcome::Unsent { vec![] } else { vec![attempt] },
        outcome,
        events: vec![EventRecord {
            id: format!("e{number:03}"),
            hash: hash(number, kind == "conflict"),
            amount: amount(number),
            commit_id,
        }],
    }
}

/// A sound run: every event acknowledged and everywhere, every tenth refused and nowhere, and one repeated.
fn sound() -> (History, Vec<RegionAudit>) {
    let head =
        Head { source: SOURCE.into(), regions: REGIONS.map(Into::into).to_vec(), tenants: (0..4).map(tenant).collect(), ..Head::default() };
    let mut records = Vec::new();
    let mut there = Vec::new();
    for number in 0..EVENTS {
        if number % 10 == 9 {
            records.push(record(number, "invalid", Outcome::Fail, Some(422), None));
        } else {
            records.push(record(number, "post", Outcome::Ok, Some(202), Some(commit(number, 0))));
            there.push((number, commit(number, 0)));
        }
    }
    records.push(record(5, "repeat", Outcome::Ok, Some(202), Some(commit(5, 1))));
    there.push((5, commit(5, 1)));
    records.push(record(8, "conflict", Outcome::Fail, Some(409), None));
    let audits = REGIONS.map(|region| audit(region, &there)).to_vec();
    (History { head, records }, audits)
}

fn audit(region: &str, there: &[(u32, u128)]) -> RegionAudit {
    let mut audit = RegionAudit { region: region.into(), ..RegionAudit::default() };
    audit.names = (0..EVENTS).map(|number| Name { tenant: tenant(number), source: SOURCE.into(), id: format!("e{number:03}") }).collect();
    audit.logs = REGIONS.iter().map(|origin| LogAudit { origin: (*origin).into(), generation: 1, ..LogAudit::default() }).collect();
    let mut usage: BTreeMap<String, (Decimal, u64)> = BTreeMap::new();
    for (number, commit) in there {
        let (name, hash) = (*number, hash_head(&hash(*number, false)));
        let log = &mut audit.logs[*number as usize % 3];
        let offset = log.records.len() as u64;
        log.records.push(LogRecord { name, hash, commit: *commit, offset, accepted_us: 1, relayed_ms: 1, appended_ms: 1 });
        audit.handled.push(Handled { name, hash, commit: *commit, signalled_us: 1, pulled_us: 2 });
        if audit.stored.iter().all(|row| row.name != name) {
            audit.stored.push(StoredRow { name, hash, commit: *commit, stored_us: 1 });
            let (sum, count) = usage.entry(tenant(*number)).or_default();
            (*sum, *count) = (*sum + amount(*number), *count + 1);
        }
    }
    audit.usage = usage.into_iter().map(|(tenant, (sum, count))| TenantUsage { tenant, sum, count }).collect();
    audit
}

fn check(change: impl FnOnce(&mut History, &mut Vec<RegionAudit>)) -> Verdict {
    let (mut history, mut audits) = sound();
    change(&mut history, &mut audits);
    judge(&history, &audits)
}

/// The kinds that are not 0.
fn wrong(verdict: &Verdict) -> Vec<(&'static str, u64)> {
    verdict.counts().into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_sound_run_is_good() {
    let verdict = check(|_, _| {});
    assert_eq!(wrong(&verdict), [], "{verdict:?}");
    assert!(verdict.good);
    assert_eq!((verdict.exit_code(), verdict.acknowledged, verdict.duplicated_in_log), (0, 54, 1));
    assert!(verdict.tiers.iter().all(|line| line.events == line.expected), "{:?}", verdict.tiers);
}

#[test]
fn rows_removed_from_one_region_are_lost_one_by_one() {
    for count in [1, 3, 12] {
        let verdict = check(|_, audits| drop(audits[1].stored.drain(..count)));
        assert_eq!(wrong(&verdict), [("lost", count as u64), ("divergent", 1)]);
        let example = &verdict.examples["lost"][0];
        assert_eq!(example.not_seen, ["iad: stored"]);
        assert_eq!(example.seen.len(), 8, "own log of one region, copies of two, rows of two, consumers of three: {example:?}");
        assert_eq!(verdict.examples["lost"].len(), count.min(EXAMPLES_MAX));
        assert!(!verdict.good && verdict.exit_code() == 1);
    }
}

#[test]
fn an_event_missing_from_a_copy_or_an_own_log_is_lost() {
    for (region, origin, tier) in [(1, 0, "iad: log of fra"), (0, 0, "fra: own log")] {
        let verdict = check(|_, audits| {
            audits[region].logs[origin].records.pop();
        });
        assert_eq!(verdict.lost, 1, "{tier}");
        assert!(verdict.divergent >= 1);
        assert!(verdict.examples["lost"][0].what.contains(tier), "{:?}", verdict.examples);
    }
}

#[test]
fn an_acknowledged_commit_that_is_in_no_log_is_lost_also_if_another_one_is_there() {
    let verdict =
        check(|_, audits| audits.iter_mut().for_each(|audit| audit.logs[2].records.retain(|record| record.commit != commit(5, 1))));
    assert_eq!(wrong(&verdict), [("lost", 1), ("divergent", 3)]);
}

#[test]
fn an_event_that_a_consumer_did_not_handle_is_lost() {
    let verdict = check(|_, audits| audits[2].handled.retain(|event| event.name != 7));
    assert_eq!(wrong(&verdict), [("lost", 1), ("divergent", 1)]);
    assert_eq!(verdict.examples["lost"][0].not_seen[..], ["sin: handled".to_owned()]);
}

#[test]
fn an_identity_with_two_rows_is_counted_twice() {
    let verdict = check(|_, audits| {
        for number in 0..3 {
            let row = audits[0].stored[number];
            audits[0].stored.push(row);
        }
    });
    assert_eq!(wrong(&verdict), [("counted_twice", 3), ("divergent", 1)]);
    assert_eq!(verdict.examples["counted_twice"].len(), 3);
}

#[test]
fn a_sum_over_more_events_than_there_are_is_counted_twice() {
    let verdict = check(|_, audits| {
        let usage = &mut audits[0].usage[0];
        (usage.sum, usage.count) = (usage.sum + amount(0), usage.count + 2);
    });
    assert_eq!(wrong(&verdict), [("counted_twice", 2), ("divergent", 1)]);
}

#[test]
fn a_wrong_sum_alone_is_divergent() {
    let verdict = check(|_, audits| audits[0].usage[0].sum = audits[0].usage[0].sum + Decimal::from_units(1, 12));
    assert_eq!(wrong(&verdict), [("divergent", 1)]);
    assert!(verdict.examples["divergent"][0].what.starts_with("fra: usage: tenant-01"), "{:?}", verdict.examples);
}

#[test]
fn sums_that_are_equal_everywhere_but_wrong_are_divergent_everywhere() {
    let verdict = check(|_, audits| audits.iter_mut().for_each(|audit| audit.usage[0].sum = Decimal::default()));
    assert_eq!(wrong(&verdict), [("divergent", 3)]);
}

#[test]
fn unknown_and_refused_events_that_are_there_are_phantoms() {
    let stranger = |audits: &mut Vec<RegionAudit>, source: &str| {
        audits[0].names.push(Name { tenant: tenant(0), source: source.into(), id: "stranger".into() });
        let name = audits[0].names.len() as u32 - 1;
        audits[0].stored.push(StoredRow { name, hash: [9; 16], commit: 1 << 64, stored_us: 1 });
    };
    for source in [SOURCE, "/somebody/else"] {
        let verdict = check(|_, audits| stranger(audits, source));
        assert_eq!(wrong(&verdict), [("phantom", 1), ("divergent", 1)]);
        assert_eq!(verdict.examples["phantom"][0].id, "stranger");
    }
    let refused = check(|_, audits| {
        audits[1].handled.push(Handled { name: 9, hash: hash_head(&hash(9, false)), commit: 1, signalled_us: 0, pulled_us: 0 })
    });
    assert_eq!(wrong(&refused), [("phantom", 1), ("divergent", 1)]);
    let unsent = check(|history, _| {
        history.records[3].outcome = Outcome::Unsent;
        history.records[3].attempts.clear();
        history.records[3].events[0].commit_id = None;
    });
    assert_eq!(wrong(&unsent)[0], ("phantom", 1));
    let other_payload = check(|_, audits| audits[1].stored[8].hash = hash_head(&hash(8, true)));
    assert_eq!(wrong(&other_payload)[0], ("phantom", 1));
}

#[test]
fn an_unknown_outcome_may_be_there_or_not_but_alike_everywhere() {
    let undecided = |history: &mut History| {
        let record = &mut history.records[7];
        let attempt = Attempt { outcome: Outcome::Unknown, status: None, ..record.attempts[0].clone() };
        (record.outcome, record.attempts[0].outcome, record.events[0].commit_id) = (Outcome::Unknown, Outcome::Unknown, None);
        attempt
    };
    let verdict = check(|history, _| drop(undecided(history)));
    assert_eq!(wrong(&verdict), [("unresolved", 1)]);
    let refused_in_the_end = |history: &mut History| {
        let first = undecided(history);
        history.records[7].outcome = Outcome::Fail;
        history.records[7].attempts.push(Attempt { outcome: Outcome::Fail, status: Some(409), ..first });
        history.records[7].kind = "conflict".into();
    };
    assert_eq!(wrong(&check(|history, _| refused_in_the_end(history))), []);
    let in_one_region = check(|history, audits| {
        refused_in_the_end(history);
        audits[0].stored.retain(|row| row.name != 7);
    });
    assert_eq!(wrong(&in_one_region), [("divergent", 1)]);
}

#[test]
fn two_accepted_payloads_are_a_conflict_and_the_least_commit_id_counts() {
    let raced = |history: &mut History, audits: &mut Vec<RegionAudit>, again: u32| {
        let mut other = record(8, "conflict", Outcome::Ok, Some(202), Some(commit(8, again)));
        other.attempts.insert(0, Attempt { outcome: Outcome::Unknown, status: None, ..other.attempts[0].clone() });
        history.records.push(other);
        for audit in audits {
            let offset = audit.logs[2].records.len() as u64;
            let hash = hash_head(&hash(8, true));
            audit.logs[2].records.push(LogRecord {
                name: 8,
                hash,
                commit: commit(8, again),
                offset,
                accepted_us: 1,
                relayed_ms: 1,
                appended_ms: 1,
            });
            audit.handled.push(Handled { name: 8, hash, commit: commit(8, again), signalled_us: 1, pulled_us: 1 });
        }
    };
    let verdict = check(|history, audits| raced(history, audits, 1));
    assert_eq!(wrong(&verdict), [("conflicts", 1)]);
    assert_eq!(verdict.examples["conflicts"].len(), 2);
    let wrong_one_counts = check(|history, audits| {
        raced(history, audits, 1);
        let row = audits[1].stored.iter_mut().find(|row| row.name == 8).unwrap();
        (row.hash, row.commit) = (hash_head(&hash(8, true)), commit(8, 1));
    });
    assert_eq!(wrong(&wrong_one_counts), [("divergent", 1), ("conflicts", 1)]);
}

#[test]
fn copies_that_differ_from_the_origin_are_divergent() {
    let moved = check(|_, audits| audits[1].logs[0].records.swap(0, 1));
    assert_eq!(wrong(&moved), [], "the order within a dump does not matter, the offsets do");
    let changed = check(|_, audits| {
        let (first, second) = (audits[1].logs[0].records[0].offset, audits[1].logs[0].records[1].offset);
        (audits[1].logs[0].records[0].offset, audits[1].logs[0].records[1].offset) = (second, first);
    });
    assert_eq!(wrong(&changed), [("divergent", 1)]);
    let absent = check(|_, audits| drop(audits[1].logs.remove(0)));
    assert_eq!(absent.lost, 18);
}

#[test]
fn a_position_that_stands_twice_is_divergent_unless_the_region_was_restarted() {
    let twice = |restarted: &[&str]| {
        check(|history, audits| {
            history.head.restarted = restarted.iter().map(ToString::to_string).collect();
            audits[1].logs[0].repeated_positions.push(3);
        })
    };
    assert_eq!((wrong(&twice(&[])), twice(&[]).duplicated_in_log), (vec![("divergent", 1)], 2));
    assert_eq!((wrong(&twice(&["iad"])), twice(&["iad"]).duplicated_in_log), (vec![], 2));
    assert_eq!(wrong(&twice(&["fra"])), [("divergent", 1)]);
}

#[test]
fn faults_of_a_log_and_late_acknowledged_events_are_divergent() {
    let gap = check(|_, audits| audits[1].logs[0].faults.push("positions 3 to 4 are missing".into()));
    assert_eq!(wrong(&gap), [("divergent", 1)]);
    let late = check(|_, audits| audits[0].logs[0].late.push(commit(0, 0)));
    assert_eq!(wrong(&late), [("divergent", 1)]);
    let late_but_never_acknowledged = check(|_, audits| audits[0].logs[0].late.push(77));
    assert_eq!(wrong(&late_but_never_acknowledged), []);
}

#[test]
fn wrong_answers_are_bad() {
    let accepted = check(|history, _| {
        history.records[9].outcome = Outcome::Ok;
        history.records[9].attempts[0].outcome = Outcome::Ok;
        history.records[9].events[0].id.clear();
    });
    assert_eq!(wrong(&accepted), [("wrong_answers", 1)]);
    let refused = check(|history, _| {
        history.records.push(Record { events: vec![], ..record(70, "post", Outcome::Fail, Some(400), None) });
        history.records.push(Record { events: vec![], ..record(71, "post", Outcome::Fail, Some(429), None) });
    });
    assert_eq!(wrong(&refused), [("wrong_answers", 1)]);
}

#[test]
fn what_was_not_read_is_not_judged() {
    let unread = check(|_, audits| {
        audits[1].stored.clear();
        audits[1].unread.push((Tier::Stored, "no answer".into()));
    });
    assert_eq!((wrong(&unread), unread.good, unread.exit_code()), (vec![], false, 2));
    let absent = check(|_, audits| drop(audits.pop()));
    assert_eq!((absent.good, absent.exit_code()), (false, 2));
    let nothing = judge(&History { head: sound().0.head, records: vec![] }, &REGIONS.map(|region| audit(region, &[])));
    assert_eq!((nothing.good, nothing.exit_code()), (false, 2));
    let bad_too = check(|_, audits| {
        audits[1].unread.push((Tier::Usage, "no answer".into()));
        audits[0].stored.pop();
    });
    assert_eq!(bad_too.exit_code(), 1);
}
