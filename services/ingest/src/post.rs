//! The work: from valid events to an answer.

use crate::{
    CommitIds, Effects, Limits, Meters,
    gather::{Lanes, Writer},
};
use adapters::scylla::{Ack, SaveIdentity};
use api::{Kind, Problem};
use kit::seldom::Seldom;
use meridian_proto::{CommitId, Event, Identity, Incarnation, PayloadHash, partition_of, payload_hash, validate};
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

/// Bytes in memory for a byte of a body: the body, the events made of it, and the row.
pub const MEMORY_FACTOR: usize = 3;

/// A request's share of the memory that requests may have together. Given back when dropped.
#[derive(Debug)]
pub struct Charge(Option<OwnedSemaphorePermit>);

impl Charge {
    /// Takes a share for a body of so many bytes; `None` when there is not so much left.
    pub fn take(memory: &Arc<Semaphore>, body_bytes: usize) -> Option<Self> {
        let bytes = u32::try_from(body_bytes * MEMORY_FACTOR + 4096).ok()?;
        let permit = Arc::clone(memory).try_acquire_many_owned(bytes).ok()?;
        metrics::gauge!("meridian_ingest_in_flight_bytes").increment(bytes);
        Some(Self(Some(permit)))
    }

    /// For requests that come from nowhere.
    pub fn none() -> Arc<Self> {
        Arc::new(Self(None))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let bytes = self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        metrics::gauge!("meridian_ingest_in_flight_bytes").decrement(bytes as f64);
    }
}

/// One request.
pub struct Post {
    /// Whose key it came with.
    pub tenant: Arc<str>,
    /// Its events, as the client gave them.
    pub events: Vec<Event>,
    /// Whether it came as a batch: the names of fields begin with an index then.
    pub batch: bool,
    /// How far the write must have come.
    pub ack: Ack,
    /// Trace context of the request, for events without their own.
    pub trace_parent: String,
    /// When the answer is due.
    pub deadline: Instant,
    /// Its share of memory.
    pub charge: Arc<Charge>,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not known before.
    Committed,
    /// It was known with the same payload; it counts once.
    Repeated,
}

impl Outcome {
    /// The word in answers and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Repeated => "repeated",
        }
    }
}

/// One event of a request that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// CloudEvents `id`.
    pub id: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The commit id that this request gave it.
    pub commit_id: CommitId,
}

/// A request that was carried out: every event, in the order of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// The events.
    pub events: Vec<Accepted>,
}

/// The events of a request, each identity once.
struct Plan {
    events: Vec<Event>,
    identities: Vec<Identity>,
    hashes: Vec<PayloadHash>,
    /// For each event of the request, its place among `events`, and whether it stood there before.
    places: Vec<(usize, bool)>,
}

/// Ingest of one region.
pub struct Ingest {
    writer: Arc<Writer>,
    lanes: Lanes,
    meters: Meters,
    region: String,
}

fn unknown(detail: &str) -> Problem {
    Problem::new(Kind::Unavailable, format!("{detail}: whether the events were taken is not known; repeat the request with the same ids"))
}

impl Ingest {
    /// Starts the lanes.
    ///
    /// # Panics
    /// When the limits contradict each other.
    pub fn start(effects: Effects, limits: Limits, meters: Meters, region: &str, generation: u32, incarnation: Incarnation) -> Arc<Self> {
        limits.assert_relations();
        let hints = Arc::new(Semaphore::new(limits.hints_max));
        let writer = Arc::new(Writer {
            effects,
            limits,
            ids: CommitIds::new(incarnation),
            generation,
            hints,
            seldom: Seldom::new(Duration::from_secs(1)),
        });
        Arc::new(Self { lanes: Lanes::start(&writer), writer, meters, region: region.into() })
    }

    /// Validates, commits, answers: all of a request or nothing.
    ///
    /// # Errors
    /// 422 and 409 when nothing of the request was written; 503 when that is not known.
    pub async fn post_events(&self, post: Post) -> Result<Posted, Problem> {
        let (deadline, count) = (post.deadline, post.events.len());
        let result = match timeout_at(deadline, self.commit(post)).await {
            Ok(result) => result,
            Err(_) => Err(unknown("no answer in time")),
        };
        match &result {
            Ok(posted) => posted.events.iter().for_each(|event| crate::http::count_events(event.outcome.name(), 1)),
            Err(problem) => crate::http::count_events(problem.kind.name(), count),
        }
        result
    }

    async fn commit(&self, Post { tenant, events, batch, ack, trace_parent, charge, .. }: Post) -> Result<Posted, Problem> {
        let Effects { find_identity, save_identity, region_time, .. } = &self.writer.effects;
        let now = region_time(()).await.map_err(|error| failed("region time", &error))?;
        let plan = self.plan(&tenant, events, batch, &trace_parent, now.0)?;
        if plan.events.is_empty() {
            return Ok(Posted::default());
        }
        let known = find_identity(plan.identities.clone()).await.map_err(|error| failed("find identity", &error))?;
        refuse_conflicts(&plan, &known)?;
        let repeated: Vec<bool> = known.iter().map(|hashes| !hashes.is_empty()).collect();
        // Before the change row, and also for what is known: an earlier try may have come less far than this one must.
        let entries = plan.identities.into_iter().zip(plan.hashes).collect();
        save_identity(SaveIdentity { entries, ack }).await.map_err(|error| failed("save identity", &error))?;
        let ids: Vec<String> = plan.events.iter().map(|event| event.id.clone()).collect();
        let commit_ids = self.write(plan.events, ack, &charge).await?;
        let accepted = |&(place, again): &(usize, bool)| Accepted {
            id: ids[place].clone(),
            outcome: if again || repeated[place] { Outcome::Repeated } else { Outcome::Committed },
            commit_id: commit_ids[place],
        };
        Ok(Posted { events: plan.places.iter().map(accepted).collect() })
    }

    /// Completes and validates the events, and finds those that stand in the request twice.
    fn plan(&self, tenant: &str, events: Vec<Event>, batch: bool, trace_parent: &str, now_us: u64) -> Result<Plan, Problem> {
        let mut plan = Plan { events: Vec::new(), identities: Vec::new(), hashes: Vec::new(), places: Vec::new() };
        let mut seen: HashMap<Identity, usize> = HashMap::new();
        for (index, mut event) in events.into_iter().enumerate() {
            let prefix = if batch { format!("[{index}].") } else { String::new() };
            event.tenant = tenant.into();
            validate(&event, &self.writer.limits.event, now_us)
                .map_err(|wrong| Problem::at(Kind::Invalid, format!("{prefix}{}", wrong.field), wrong.reason))?;
            self.meters.check(&event, &prefix)?;
            let hash = payload_hash(&event);
            let identity = Identity { tenant: tenant.into(), source: event.source.clone(), id: event.id.clone() };
            let place = match seen.entry(identity) {
                Entry::Occupied(known) if plan.hashes[*known.get()] == hash => {
                    plan.places.push((*known.get(), true));
                    continue;
                }
                Entry::Occupied(_) => {
                    let detail = "the same source and id stand in this request before, with another payload";
                    return Err(Problem::at(Kind::Invalid, format!("{prefix}id"), detail));
                }
                Entry::Vacant(new) => {
                    plan.identities.push(new.key().clone());
                    *new.insert(plan.events.len())
                }
            };
            event.origin = self.region.clone();
            event.accepted_us = now_us;
            event.payload_hash = bytes::Bytes::copy_from_slice(&hash.0);
            // Of its final length, so that the size of the event is known.
            event.commit_id = bytes::Bytes::from_static(&[0; 16]);
            if event.trace_parent.is_empty() {
                event.trace_parent = trace_parent.into();
            }
            plan.places.push((place, false));
            plan.hashes.push(hash);
            plan.events.push(event);
        }
        Ok(plan)
    }

    /// Enters the events into their lanes and waits for all of them.
    async fn write(&self, events: Vec<Event>, ack: Ack, charge: &Arc<Charge>) -> Result<Vec<CommitId>, Problem> {
        let mut commit_ids = vec![CommitId::default(); events.len()];
        let mut partitions: BTreeMap<u16, (Vec<usize>, Vec<Event>)> = BTreeMap::new();
        for (place, event) in events.into_iter().enumerate() {
            let (places, events) = partitions.entry(partition_of(&event.tenant, event.subject.as_deref())).or_default();
            places.push(place);
            events.push(event);
        }
        let limits = &self.writer.limits;
        let entered: Vec<_> = partitions
            .into_iter()
            .map(|(partition, (places, events))| (places, self.lanes.enter((partition, ack), events, charge, limits)))
            .collect();
        for (places, parts) in entered {
            let mut places = places.into_iter();
            for (count, answer) in parts {
                let first = answer.await.ok().flatten().ok_or_else(|| unknown("the database did not acknowledge the events"))?;
                for (index, place) in places.by_ref().take(count).enumerate() {
                    commit_ids[place] = first.at_index((first.0 & 0xffff) as u16 + index as u16);
                }
            }
        }
        Ok(commit_ids)
    }
}

fn failed(effect: &str, error: &anyhow::Error) -> Problem {
    static SELDOM: Seldom = Seldom::new(Duration::from_secs(1));
    if let Some(withheld) = SELDOM.due() {
        tracing::warn!(error = format!("{error:#}"), effect, withheld, "a request ends with an unknown outcome");
    }
    unknown(&format!("{effect}: no good answer"))
}

/// Rule R6: only other hashes present is a conflict; the own hash among them is a retry.
fn refuse_conflicts(plan: &Plan, known: &[Vec<PayloadHash>]) -> Result<(), Problem> {
    let conflicting = |place: usize| known.get(place).is_some_and(|hashes| !hashes.is_empty() && !hashes.contains(&plan.hashes[place]));
    let indices: Vec<usize> = (0..plan.places.len()).filter(|index| conflicting(plan.places[*index].0)).collect();
    let Some(first) = indices.first() else { return Ok(()) };
    let field = if plan.places.len() == 1 { "id".into() } else { format!("[{first}].id") };
    let mut problem = Problem::at(Kind::Conflict, field, "known with another payload; nothing of this request was written");
    problem.conflicts = indices.into_iter().map(|index| plan.events[plan.places[index].0].id.clone()).collect();
    Err(problem)
}
