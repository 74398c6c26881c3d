//! A whole run in memory, judged, measured, written and drawn; also what `report.html` looks like, in the build's scratch folder.
#![allow(clippy::unwrap_used)]

use loadtest::{
    audit::{Handled, LogAudit, LogRecord, Names, RegionAudit, StoredRow, TenantUsage, hash_head},
    decimal::Decimal,
    generate::Generator,
    history::{Attempt, EventRecord, Head, History, Outcome, Record, SCHEMA},
    latency,
    plan::{Overrides, Plan},
    report::{
        json::{self, Engine, FaultMark, Lateness, Link, Machine, ProcessReport, Run, Wan},
        write::{self, Parts},
    },
    schedule::{Kind, schedule},
    verdict::judge,
};
use std::{collections::BTreeMap, path::Path};

const REGIONS: [&str; 3] = ["fra", "iad", "sin"];
const ONE_WAY_MS: [[u64; 3]; 3] = [[0, 45, 90], [45, 0, 120], [90, 120, 0]];
const START_US: u64 = 1_800_000_000_000_000;

/// Deterministic noise: 0 to 1000.
fn noise(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32 & 1023
}

fn down(region: usize, us: u64) -> bool {
    region == 1 && (30_000_000..50_000_000).contains(&us)
}

fn simulated(plan: &Plan) -> (History, Vec<RegionAudit>) {
    let generator = Generator::new(plan.clone(), "/loadtest/simulated".into(), START_US);
    let schedule = schedule(plan, 3);
    let mut records = Vec::new();
    for (number, operation) in schedule.iter().enumerate() {
        let request = generator.request(operation, &schedule);
        let intended_us = START_US + operation.at_us;
        let sent_us = intended_us + 40 + noise(number as u64) / 8;
        let (mut attempts, mut region, mut at_us) = (Vec::new(), usize::from(operation.region), sent_us);
        let attempt = |region: usize, sent_us, took_us, status, outcome| Attempt {
            region: REGIONS[region].into(),
            sent_us,
            answered_us: sent_us + took_us,
            status,
            outcome,
            note: String::new(),
        };
        if down(region, operation.at_us) {
            attempts.push(attempt(region, at_us, 900, None, Outcome::Unknown));
            (region, at_us) = ((region + 1) % 3, at_us + 230_000);
        }
        let took_us = 5_000 + noise(number as u64 * 3) * 9;
        let (status, outcome) = match operation.kind {
            Kind::Post | Kind::Repeat { .. } => (202, Outcome::Ok),
            Kind::Conflict { .. } => (409, Outcome::Fail),
            Kind::Invalid(_) => (422, Outcome::Fail),
        };
        attempts.push(attempt(region, at_us, took_us, Some(status), outcome));
        let commit = u128::from(at_us + 3_000) << 64 | (number as u128) << 16;
        let event = |(made, index): (&loadtest::generate::Made, u128)| EventRecord {
            id: made.id.clone(),
            hash: made.hash,
            amount: made.amount,
            commit_id: (outcome == Outcome::Ok).then_some(commit | index),
        };
        records.push(Record {
            operation: number as u32,
            kind: operation.kind.name().into(),
            detail: String::new(),
            tenant: generator.tenants()[usize::from(operation.tenant)].clone(),
            region: REGIONS[usize::from(operation.region)].into(),
            intended_us,
            attempts,
            outcome,
            events: request.events.iter().zip(0..).map(event).collect(),
        });
    }
    let head = Head {
        schema: SCHEMA.into(),
        source: generator.source().into(),
        start_us: START_US,
        end_us: START_US + plan.duration().as_micros() as u64,
        measured_from_us: START_US + 3_000_000,
        regions: REGIONS.map(Into::into).to_vec(),
        tenants: generator.tenants().to_vec(),
        restarted: vec!["iad".into()],
    };
    let history = History { head, records };
    let audits = (0..3).map(|region| audit(&history, region)).collect();
    (history, audits)
}

fn audit(history: &History, here: usize) -> RegionAudit {
    let mut names = Names::default();
    let mut audit = RegionAudit { region: REGIONS[here].into(), ..RegionAudit::default() };
    audit.logs = REGIONS.iter().map(|origin| LogAudit { origin: (*origin).into(), generation: 1, ..LogAudit::default() }).collect();
    let mut stored: BTreeMap<u32, (StoredRow, Decimal, String)> = BTreeMap::new();
    for record in history.records.iter().filter(|record| record.outcome == Outcome::Ok) {
        let attempt = &record.attempts[record.attempts.len() - 1];
        let origin = REGIONS.iter().position(|region| *region == attempt.region).unwrap();
        for event in &record.events {
            let (name, hash) = (names.number(&record.tenant, &history.head.source, &event.id), hash_head(&event.hash));
            let commit = event.commit_id.unwrap();
            let accepted_us = attempt.sent_us + 1_100;
            let relayed_us = attempt.answered_us + 1_000 + noise(commit as u64) * 4;
            let mut there_us = relayed_us + ONE_WAY_MS[origin][here] * 1000 + noise(commit as u64 * 5) * 3;
            if down(here, there_us - START_US) {
                there_us = START_US + 61_000_000 + noise(commit as u64 * 7) * 900;
            }
            let log = &mut audit.logs[origin];
            let offset = log.records.len() as u64;
            let (relayed_ms, appended_ms) =
                ((relayed_us / 1000) as i64, (if origin == here { relayed_us } else { there_us } / 1000) as i64);
            log.records.push(LogRecord { name, hash, commit, offset, accepted_us, relayed_ms, appended_ms });
            let signalled_us = there_us + 1_500 + noise(commit as u64 * 11);
            audit.handled.push(Handled {
                name,
                hash,
                commit,
                signalled_us,
                pulled_us: signalled_us + 4_000 + noise(commit as u64 * 13) * 5,
            });
            let row = StoredRow { name, hash, commit, stored_us: there_us + 120_000 + noise(commit as u64 * 17) * 200 };
            let known = stored.entry(name).or_insert((row, event.amount, record.tenant.clone()));
            if commit < known.0.commit {
                known.0 = row;
            }
        }
    }
    let mut usage: BTreeMap<String, (Decimal, u64)> = BTreeMap::new();
    for (row, amount, tenant) in stored.into_values() {
        audit.stored.push(row);
        let (sum, count) = usage.entry(tenant).or_default();
        (*sum, *count) = (*sum + amount, *count + 1);
    }
    audit.usage = usage.into_iter().map(|(tenant, (sum, count))| TenantUsage { tenant, sum, count }).collect();
    audit.names = names.into_list();
    audit
}

fn run(plan: &Plan, history: &History, audits: &[RegionAudit]) -> Run {
    let latency = latency::measure(history, audits);
    let link = |from: usize, to: usize| Link {
        from: REGIONS[from].into(),
        to: REGIONS[to].into(),
        latency_ms: ONE_WAY_MS[from][to] as f64,
        jitter_ms: 2.0,
        packets: 81_233,
        bytes: 61_000_000,
        ..Link::default()
    };
    let mark =
        |what: &str, at: f64| FaultMark { what: what.into(), region: Some("iad".into()), planned_s: at, done_s: at + 0.02, error: None };
    let engine = |name: &str, engine: &str, version: &str, durability: &str| Engine {
        name: name.into(),
        engine: engine.into(),
        version: version.into(),
        durability: durability.into(),
    };
    let process = |region: &str, name: &str, cpu_seconds| ProcessReport {
        region: region.into(),
        name: name.into(),
        cpu_seconds,
        peak_rss_mib: 12.0 + cpu_seconds * 3.0,
        starts: 1,
    };
    let names = ["ingest", "relay", "mirror", "sink", "feed", "usage", "consumer", "cassandra", "kafka", "clickhouse", "nats"];
    let processes = REGIONS.iter().flat_map(|region| names.iter().zip(1..).map(move |(name, k)| process(region, name, f64::from(k) * 1.7)));
    Run {
        schema: json::SCHEMA.into(),
        id: "20270115T080000Z".into(),
        kind: "drill".into(),
        name: "region-kill".into(),
        started: "2027-01-15T08:00:00Z".into(),
        ended: "2027-01-15T08:02:11Z".into(),
        commit: json::Commit { id: "37d1043c0ffee37d1043c0ffee37d1043c0ffee0".into(), dirty: true },
        machine: Machine { cpu: "A processor of 2.9 GHz".into(), cores: 2, memory_mib: 24_000, ..Machine::default() },
        engines: vec![engine("kafka", "Apache Kafka, for Redpanda", "4.3.1", "page cache: survives a process kill, not a power loss")],
        wan: Wan {
            links: vec![link(0, 1), link(0, 2), link(1, 0), link(1, 2), link(2, 0), link(2, 1)],
            router_lateness: Lateness { packets: 500_000, p50_ms: 0.06, p99_ms: 1.9, max_ms: 14.0 },
        },
        regions: REGIONS.map(Into::into).to_vec(),
        plan: plan.clone(),
        seed: plan.seed,
        warm_up_s: plan.warm_up_s,
        faults: vec![mark("iad killed", 30.0), mark("iad started", 50.0)],
        operations: json::operations(history, plan.duration_s),
        verdict: judge(history, audits),
        converged_s: Some(14.2),
        send_error_ms: latency.send_error.stats(),
        pairs: json::pairs(&latency),
        series: json::series(history, &latency),
        processes: processes.collect(),
    }
}

fn plan() -> Plan {
    Plan::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/default.toml"), Overrides::default()).unwrap()
}

#[test]
fn a_sound_run_is_judged_measured_written_and_read_back() {
    let plan = plan();
    let (history, audits) = simulated(&plan);
    let run = run(&plan, &history, &audits);
    assert!(run.verdict.good, "{}", run.verdict.words());
    assert_eq!((run.pairs.len(), run.verdict.tiers.len()), (9, 18));
    let near = run.pairs.iter().find(|pair| pair.origin == "fra" && pair.destination == "sin").unwrap().end_to_end.corrected;
    assert!((100.0..140.0).contains(&near.p50_ms) && near.count > 5_000, "{near:?}");

    let runs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runs");
    let _ = std::fs::remove_dir_all(&runs);
    let latency = latency::measure(&history, &audits);
    let folder = write::whole(&runs, &Parts { run: &run, history: &history, audits: &audits, latency: &latency }).unwrap();
    assert_eq!(std::fs::canonicalize(runs.join("latest")).unwrap(), std::fs::canonicalize(&folder).unwrap());
    let names: Vec<String> = std::fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 2, "nothing half-written is left: {names:?}");
    assert_eq!(History::read(&folder.join("history.ndjson")).unwrap(), history);
    assert_eq!(judge(&history, &write::read_audits(&folder).unwrap()), run.verdict);
    assert_eq!(write::read_run(&folder).unwrap().verdict, run.verdict);
    assert!(folder.join("hops/fra-iad-pulled.hgrm").is_file() && folder.join("latency.hlog").is_file());

    let html = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for outside in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "the report refers to {outside}");
    }
    for part in ["GOOD", "fra → sin", "iad killed", "prefers-color-scheme", "Apache Kafka"] {
        assert!(html.contains(part), "{part}");
    }
    assert!(!html.contains("NaN") && !html.contains("inf\""));
}

#[test]
fn a_bad_run_shows_what_is_wrong() {
    let plan = plan();
    let (history, mut audits) = simulated(&plan);
    audits[1].stored.drain(100..112);
    audits[2].handled.pop();
    let mut run = run(&plan, &history, &audits);
    run.id = "20270115T090000Z".into();
    assert_eq!((run.verdict.lost, run.verdict.exit_code()), (13, 1));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bad");
    std::fs::create_dir_all(&folder).unwrap();
    write::drawn(&folder, &run).unwrap();
    let html = std::fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(html.contains("BAD: 13 lost") && html.contains("iad: stored"));
    let summary = std::fs::read_to_string(folder.join("summary.md")).unwrap();
    assert!(summary.contains("BAD: 13 lost") && summary.contains("| fra | sin |"));
}
