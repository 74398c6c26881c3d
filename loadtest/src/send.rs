//! Sending by the schedule. **A send is never delayed by an answer**: a thread of its own keeps the times, and what the
//! bound of requests under way does not let through is recorded as unsent.

use crate::{
    generate::{Generator, Request},
    history::{Attempt, EventRecord, Head, History, Outcome, Record, SCHEMA},
    latency::Times,
    plan::Plan,
    post::{Answer, Effects, Post},
    schedule::{Kind, Operation},
};
use adapters::clock::HostClock;
use anyhow::{Context, Result};
use kit::backoff::Backoff;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

/// Repeats under way at a time.
const REPEATS_MAX: usize = 64;
/// Between now and the first intended time.
const LEAD: Duration = Duration::from_millis(300);

/// What is going on, for the progress line.
#[derive(Debug, Default)]
pub struct Progress {
    /// Requests sent for the first time.
    pub sent: AtomicU64,
    /// Requests answered 2xx.
    pub ok: AtomicU64,
    /// Events answered 2xx.
    pub events_ok: AtomicU64,
    /// Requests answered 4xx, or without a connection.
    pub refused: AtomicU64,
    /// Requests whose outcome is unknown now.
    pub unknown: AtomicU64,
    /// Requests that could not be sent.
    pub unsent: AtomicU64,
    recent: Mutex<Times>,
}

impl Progress {
    /// Times from intended to answered since the last call.
    pub fn take_recent(&self) -> Times {
        self.recent.lock().map(|mut recent| std::mem::take(&mut *recent)).unwrap_or_default()
    }

    fn answered(&self, record: &Record) {
        let count = match record.outcome {
            Outcome::Ok => &self.ok,
            Outcome::Fail => &self.refused,
            Outcome::Unsent => &self.unsent,
            Outcome::Unknown => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let Some(attempt) = record.decided_by().filter(|_| record.outcome == Outcome::Ok) else { return };
        self.events_ok.fetch_add(record.events.len() as u64, Ordering::Relaxed);
        if let Ok(mut recent) = self.recent.lock() {
            recent.record(record.intended_us, attempt.answered_us);
        }
    }
}

/// A load on its way.
pub struct Load {
    /// What is going on.
    pub progress: Arc<Progress>,
    /// When it began, microseconds since the Unix epoch.
    pub start_us: u64,
    shared: Arc<Shared>,
    pacer: thread::JoinHandle<()>,
}

struct Shared {
    plan: Plan,
    regions: Vec<String>,
    schedule: Vec<Operation>,
    generator: Generator,
    effects: Effects,
    clock: Arc<HostClock>,
    start_us: u64,
    progress: Arc<Progress>,
    /// By operation: 1 + index of the region that acknowledged it, so that a conflict meets a region that knows the first payload.
    acknowledged: Vec<AtomicU8>,
    records: Mutex<Vec<Option<Record>>>,
    in_flight: Vec<Arc<Semaphore>>,
    repeats: Semaphore,
    /// No repeats begin after this, microseconds since the Unix epoch.
    deadline_us: u64,
    tasks: TaskTracker,
}

/// Starts the load. `source` names the run.
///
/// # Errors
/// When the thread that keeps the times cannot be made.
pub fn start(
    plan: &Plan,
    source: &str,
    regions: Vec<String>,
    schedule: Vec<Operation>,
    effects: Effects,
    clock: &Arc<HostClock>,
) -> Result<Load> {
    let start_us = clock.now().0 + LEAD.as_micros() as u64;
    let end_us = start_us + plan.duration().as_micros() as u64;
    let progress = Arc::new(Progress::default());
    let shared = Arc::new(Shared {
        generator: Generator::new(plan.clone(), source.into(), start_us),
        effects,
        clock: Arc::clone(clock),
        start_us,
        progress: Arc::clone(&progress),
        acknowledged: schedule.iter().map(|_| AtomicU8::new(0)).collect(),
        records: Mutex::new(vec![None; schedule.len()]),
        in_flight: regions.iter().map(|_| Arc::new(Semaphore::new(plan.limits.in_flight_max))).collect(),
        repeats: Semaphore::new(REPEATS_MAX),
        deadline_us: end_us + plan.limits.converge_s * 1_000_000,
        tasks: TaskTracker::new(),
        plan: plan.clone(),
        regions,
        schedule,
    });
    let (runtime, pacing) = (tokio::runtime::Handle::current(), Arc::clone(&shared));
    let pacer = thread::Builder::new().name("pacer".into()).spawn(move || pace(&pacing, &runtime)).context("start the pacer")?;
    Ok(Load { progress, start_us, shared, pacer })
}

impl Load {
    /// Whether all of the schedule was sent.
    pub fn is_sent(&self) -> bool {
        self.pacer.is_finished()
    }

    /// Whether every outcome is decided, or will not be.
    pub fn is_decided(&self) -> bool {
        self.is_sent() && self.shared.tasks.is_empty()
    }

    /// The history, once all is decided.
    pub async fn finish(self) -> History {
        let Self { shared, start_us, .. } = self;
        shared.tasks.close();
        shared.tasks.wait().await;
        let records = shared.records.lock().map(|mut records| std::mem::take(&mut *records)).unwrap_or_default();
        let head = Head {
            schema: SCHEMA.into(),
            source: shared.generator.source().into(),
            start_us,
            end_us: start_us + shared.plan.duration().as_micros() as u64,
            measured_from_us: start_us + (shared.plan.warm_up_s * 1e6) as u64,
            regions: shared.regions.clone(),
            tenants: shared.generator.tenants().to_vec(),
            restarted: Vec::new(),
        };
        History { head, records: records.into_iter().flatten().collect() }
    }
}

fn pace(shared: &Arc<Shared>, runtime: &tokio::runtime::Handle) {
    let anchor = Instant::now() + Duration::from_micros(shared.start_us.saturating_sub(shared.clock.now().0));
    for (number, operation) in shared.schedule.iter().enumerate() {
        let due = anchor + Duration::from_micros(operation.at_us);
        // Made ahead of its time, so that making it delays nothing.
        let request = shared.generator.request(operation, &shared.schedule);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut region = operation.region;
        if let Kind::Conflict { of, .. } = operation.kind {
            let Some(known) = shared.acknowledged[of as usize].load(Ordering::Acquire).checked_sub(1) else {
                shared.unsent(number, &request, "the first payload is not acknowledged");
                continue;
            };
            region = known;
        }
        match Arc::clone(&shared.in_flight[usize::from(region)]).try_acquire_owned() {
            Ok(permit) => {
                let task = shared.tasks.track_future(run(Arc::clone(shared), number, region, Arc::new(request), permit));
                runtime.spawn(task);
            }
            Err(_) => shared.unsent(number, &request, "too many requests under way"),
        }
    }
}

/// One operation to its end: the first try on time, then repeats for as long as its outcome is unknown.
async fn run(shared: Arc<Shared>, number: usize, mut region: u8, request: Arc<Request>, permit: OwnedSemaphorePermit) {
    let operation = shared.schedule[number];
    let mut record = shared.record(number, &request);
    record.region = shared.regions[usize::from(region)].clone();
    shared.progress.sent.fetch_add(1, Ordering::Relaxed);
    let answer = shared.attempt(&mut record, region, &request).await;
    drop(permit);
    if answer.outcome != Outcome::Unknown {
        return shared.decided(number, record, &answer);
    }
    drop(request);
    shared.progress.unknown.fetch_add(1, Ordering::Relaxed);
    let mut backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(2));
    // Another payload must meet the region that knows the first one.
    let elsewhere = shared.plan.limits.retry_elsewhere && !matches!(operation.kind, Kind::Conflict { .. });
    loop {
        backoff.wait().await;
        if shared.clock.now().0 > shared.deadline_us {
            record.outcome = Outcome::Unknown;
            return shared.keep(number, record);
        }
        if elsewhere {
            region = (region + 1) % shared.regions.len() as u8;
        }
        let Ok(_slot) = shared.repeats.acquire().await else { return };
        let request = Arc::new(shared.generator.request(&operation, &shared.schedule));
        let answer = shared.attempt(&mut record, region, &request).await;
        if answer.decides() {
            shared.progress.unknown.fetch_sub(1, Ordering::Relaxed);
            return shared.decided(number, record, &answer);
        }
    }
}

/// The record of an operation before its first try.
pub fn record(generator: &Generator, regions: &[String], schedule: &[Operation], number: usize, request: &Request) -> Record {
    let operation = &schedule[number];
    let detail = match operation.kind {
        Kind::Invalid(kind) => format!("{kind:?}"),
        _ => String::new(),
    };
    let event = |made: &crate::generate::Made| EventRecord { id: made.id.clone(), hash: made.hash, amount: made.amount, commit_id: None };
    Record {
        operation: number as u32,
        kind: operation.kind.name().into(),
        detail,
        tenant: generator.tenants()[usize::from(operation.tenant)].clone(),
        region: regions[usize::from(operation.region)].clone(),
        intended_us: generator.start_us() + operation.at_us,
        attempts: Vec::new(),
        outcome: Outcome::Unknown,
        events: request.events.iter().map(event).collect(),
    }
}

impl Answer {
    /// As one try of a record, in `region`.
    pub fn attempt(&self, region: &str) -> Attempt {
        Attempt {
            region: region.into(),
            sent_us: self.sent_us,
            answered_us: self.answered_us,
            status: self.status,
            outcome: self.outcome,
            note: self.note.clone(),
        }
    }

    /// Makes it the end of a record.
    pub fn decide(&self, record: &mut Record) {
        record.outcome = self.outcome;
        record.events.iter_mut().zip(&self.commits).for_each(|(event, commit)| event.commit_id = *commit);
    }
}

impl Shared {
    fn record(&self, number: usize, request: &Request) -> Record {
        record(&self.generator, &self.regions, &self.schedule, number, request)
    }

    async fn attempt(&self, record: &mut Record, region: u8, request: &Arc<Request>) -> Answer {
        let tenant = self.schedule[record.operation as usize].tenant;
        let post = Post { tenant, region, request: Arc::clone(request) };
        let began_us = self.clock.now().0;
        let answer = (self.effects.post_request)(post).await.unwrap_or_else(|error| Answer {
            sent_us: began_us,
            answered_us: self.clock.now().0,
            status: None,
            outcome: Outcome::Unknown,
            note: format!("{error:#}"),
            commits: Vec::new(),
        });
        record.attempts.push(answer.attempt(&self.regions[usize::from(region)]));
        answer
    }

    fn decided(&self, number: usize, mut record: Record, answer: &Answer) {
        answer.decide(&mut record);
        if record.outcome == Outcome::Ok {
            let by = record.decided_by().and_then(|attempt| self.regions.iter().position(|region| *region == attempt.region));
            self.acknowledged[number].store(by.map_or(0, |by| by as u8 + 1), Ordering::Release);
        }
        self.progress.answered(&record);
        self.keep(number, record);
    }

    fn unsent(&self, number: usize, request: &Request, why: &str) {
        let record = Record { outcome: Outcome::Unsent, detail: why.into(), ..self.record(number, request) };
        self.progress.answered(&record);
        self.keep(number, record);
    }

    fn keep(&self, number: usize, record: Record) {
        if let Ok(mut records) = self.records.lock() {
            records[number] = Some(record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{latency, plan::Overrides, schedule::schedule};
    use kit::effect;
    use std::path::Path;

    fn plan(seconds: f64) -> Plan {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans/default.toml");
        Plan::read(&path, Overrides { rate: Some(600.0), duration: Some(seconds), seed: None }).unwrap()
    }

    async fn load(plan: &Plan, respond: impl Fn(usize, &Post) -> (Duration, Outcome, Option<u16>) + Send + Sync + 'static) -> History {
        let clock = HostClock::start();
        let (tries, told) = (AtomicU64::new(0), Arc::clone(&clock));
        let post_request = effect(move |post: Post| {
            let count = tries.fetch_add(1, Ordering::Relaxed);
            let (delay, outcome, status) = respond(count as usize, &post);
            let clock = Arc::clone(&told);
            async move {
                let sent_us = clock.now().0;
                tokio::time::sleep(delay).await;
                let commits = post.request.events.iter().map(|_| (outcome == Outcome::Ok).then_some(u128::from(count) << 64)).collect();
                Ok(Answer { sent_us, answered_us: clock.now().0, status, outcome, note: String::new(), commits })
            }
        });
        let schedule = schedule(plan, 2);
        let load = start(plan, "/loadtest/test", vec!["fra".into(), "iad".into()], schedule, Effects { post_request }, &clock).unwrap();
        while !load.is_decided() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        load.finish().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn slow_answers_do_not_delay_sends() {
        let history = load(&plan(1.0), |_, _| (Duration::from_millis(700), Outcome::Ok, Some(202))).await;
        assert!(history.records.len() > 200);
        let stats = latency::measure(&history, &[]).send_error.stats();
        assert!(stats.p50_ms < 20.0, "{stats:?}");
        let answered = history.records.iter().filter(|record| record.outcome == Outcome::Ok);
        assert!(answered.clone().all(|record| record.decided_by().unwrap().answered_us >= record.intended_us + 700_000));
        let conflicts: Vec<&Record> = history.records.iter().filter(|record| record.kind == "conflict").collect();
        assert!(conflicts.iter().all(|record| record.attempts.is_empty() == (record.outcome == Outcome::Unsent)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn unknown_outcomes_are_repeated_with_the_same_id_until_decided() {
        // The first region never answers; the second one does.
        let history = load(&plan(0.3), |_, post| match post.region {
            0 => (Duration::from_millis(5), Outcome::Unknown, Some(503)),
            _ => (Duration::from_millis(5), Outcome::Ok, Some(202)),
        })
        .await;
        let sent = history.records.iter().filter(|record| !record.attempts.is_empty());
        for record in sent.filter(|record| record.kind != "conflict") {
            assert_eq!(record.outcome, Outcome::Ok);
            let attempts: Vec<&str> = record.attempts.iter().map(|attempt| attempt.region.as_str()).collect();
            assert_eq!(attempts, if record.region == "fra" { vec!["fra", "iad"] } else { vec!["iad"] });
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_payload_meets_the_region_that_acknowledged_the_first() {
        let mut plan = plan(2.5);
        plan.mix.conflicting = 0.05;
        let history = load(&plan, |_, post| match post.region {
            0 => (Duration::from_millis(5), Outcome::Unknown, Some(503)),
            _ => (Duration::from_millis(5), Outcome::Ok, Some(202)),
        })
        .await;
        let conflicts: Vec<&Record> =
            history.records.iter().filter(|record| record.kind == "conflict" && !record.attempts.is_empty()).collect();
        assert!(!conflicts.is_empty() && conflicts.iter().all(|record| record.attempts[0].region == "iad"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_cannot_be_sent_is_recorded_as_such() {
        let mut plan = plan(0.5);
        plan.limits.in_flight_max = 3;
        let history = load(&plan, |_, _| (Duration::from_secs(1), Outcome::Ok, Some(202))).await;
        let unsent = history.records.iter().filter(|record| record.outcome == Outcome::Unsent).count();
        assert_eq!(history.records.len() - unsent, 6);
        assert!(unsent > 50);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_stays_unknown_to_the_deadline_is_recorded_as_unknown() {
        let mut plan = plan(0.2);
        (plan.limits.converge_s, plan.mix.conflicting) = (1, 0.0);
        let history = load(&plan, |_, _| (Duration::from_millis(1), Outcome::Unknown, None)).await;
        assert!(history.records.iter().all(|record| record.outcome == Outcome::Unknown && record.attempts.len() > 1));
    }
}
