//! The promises of docs/architecture.md, judged when a schedule has ended, everything is healed and the regions had time to agree.

use crate::{
    ledger::{Attempt, Seen},
    plan::{REGIONS, TENANTS},
    pull::hex,
    store::{Key, Row},
    world::{EPOCH_US, State, World},
};
use adapters::{clickhouse::Progress, redpanda::Kind};
use meridian_proto::{CommitId, Event};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use usage::{Answer, Conflicts, completeness};

/// Records of one partition of an own log that a schedule can explain at most: anything above goes round.
const PARTITION_RECORDS_MAX: usize = 600;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub promise: u8,
    /// Where it shows.
    pub region: usize,
    /// How.
    pub what: String,
}

fn broken(promise: u8, region: usize, what: String) -> Broken {
    Broken { promise, region, what }
}

/// Everything that the logs hold: what all regions have to agree on.
#[derive(Default)]
struct Truth {
    /// The row that counts, by identity.
    events: BTreeMap<Key, Row>,
    /// Payloads of each identity.
    payloads: BTreeMap<Key, BTreeMap<[u8; 32], (u128, String)>>,
    /// (tenant, id, hash, commit id) of every record.
    records: BTreeSet<(String, String, String, String)>,
}

fn truth(state: &State) -> Truth {
    let mut truth = Truth::default();
    for place in &state.regions {
        for id in place.log.ids().into_iter().filter(|id| place.log.is_own(id)) {
            let Some(partition) = place.log.get(&id) else { continue };
            for stored in partition.records.iter().filter(|stored| Kind::of(&stored.content_type) == Kind::Event) {
                if let Ok(event) = Event::decode(stored.value.clone()) {
                    truth.add(event);
                }
            }
        }
    }
    truth
}

impl Truth {
    fn add(&mut self, event: Event) {
        let Some(commit_id) = CommitId::from_bytes(&event.commit_id) else { return };
        let Ok(hash) = <[u8; 32]>::try_from(&event.payload_hash[..]) else { return };
        self.records.insert((event.tenant.clone(), event.id.clone(), hex(&event.payload_hash), hex(&event.commit_id)));
        let digits: String = String::from_utf8_lossy(&event.data).chars().filter(char::is_ascii_digit).collect();
        let amount = digits.parse().unwrap_or_default();
        let row = Row { commit_id: commit_id.0, hash, origin: event.origin, event_type: event.r#type, amount };
        let key = (event.tenant, event.source, event.id);
        let least = self.payloads.entry(key.clone()).or_default().entry(hash).or_insert((row.commit_id, row.origin.clone()));
        if row.commit_id < least.0 {
            *least = (row.commit_id, row.origin.clone());
        }
        let counted = self.events.entry(key).or_insert_with(|| row.clone());
        if row.commit_id < counted.commit_id {
            *counted = row;
        }
    }
}

fn microseconds(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

/// What keeps the regions from agreeing: claims that do not reach `since_us`, consumers that lack something.
pub fn missing(world: &World, since_us: u64) -> Vec<Broken> {
    let mut state = world.state();
    let (truth, regions) = (truth(&state), crate::clients::regions(world));
    let mut missing = Vec::new();
    for region in 0..state.regions.len() {
        let place = &mut state.regions[region];
        let progress = Progress { store: place.store.id.clone(), rows: place.store.own_positions(), parked: Vec::new() };
        for (origin, complete) in completeness(&regions, &progress) {
            let through = complete.through.as_deref().and_then(microseconds).unwrap_or_default();
            if through < since_us {
                let at_ms = through.saturating_sub(EPOCH_US) / 1_000;
                missing.push(broken(7, region, format!("what it knows of {origin} stands still at {at_ms} ms")));
            }
        }
        let lacks = truth.records.difference(&place.kept.handled).next();
        if let Some((tenant, id, _, commit_id)) = lacks {
            missing.push(broken(6, region, format!("its consumer never gets {id} of {tenant} (commit id {commit_id})")));
        }
    }
    missing
}

/// Judges a world that has ended.
pub fn judge(world: &World, unsettled: Vec<Broken>, answers: &[(usize, &'static str, Answer, Conflicts)]) -> Vec<Broken> {
    let mut found = Vec::new();
    {
        let state = world.state();
        let truth = truth(&state);
        acknowledged(&state, &truth, &mut found);
        outcomes(&state, &truth, &mut found);
        stores(&state, &truth, &mut found);
        copies(&state, &mut found);
        claims(&state, &mut found);
        bounded(&state, &mut found);
        poison(&state, &mut found);
    }
    same_answers(world, answers, &mut found);
    found.extend(unsettled);
    found
}

/// Promise 1: what was acknowledged is in every region.
fn acknowledged(state: &State, truth: &Truth, found: &mut Vec<Broken>) {
    for (attempt, _) in state.ledger.acknowledged() {
        let key = key_of(attempt);
        if !truth.payloads.contains_key(&key) {
            let what = format!("{} was acknowledged at {} ms and is in no log", attempt.id, attempt.to_ms);
            found.push(broken(1, attempt.region, what));
            continue;
        }
        for (region, place) in state.regions.iter().enumerate() {
            if !place.store.events.contains_key(&key) {
                let what = format!(
                    "{} was acknowledged in {} at {} ms and is not in ClickHouse",
                    attempt.id, REGIONS[attempt.region], attempt.to_ms
                );
                found.push(broken(1, region, what));
            }
        }
    }
}

fn key_of(attempt: &Attempt) -> Key {
    (attempt.tenant.into(), "/sim".into(), attempt.id.clone())
}

/// Promises 3 and 4, as clients see them: a 4xx wrote nothing, a repeat is no conflict, a known payload is one.
fn outcomes(state: &State, truth: &Truth, found: &mut Vec<Broken>) {
    let attempts = &state.ledger.attempts;
    let by_key = attempts.iter().fold(BTreeMap::<Key, Vec<&Attempt>>::new(), |mut by_key, attempt| {
        by_key.entry(key_of(attempt)).or_default().push(attempt);
        by_key
    });
    for (key, attempts) in &by_key {
        for attempt in attempts {
            let earlier = |other: &&&Attempt| other.to_ms < attempt.from_ms && other.region == attempt.region;
            let accepted = |other: &&&Attempt| matches!(other.seen, Seen::Accepted { .. });
            let others = || attempts.iter().filter(|other| other.amount != attempt.amount);
            let known_before = attempts.iter().any(|other| other.amount == attempt.amount && other.from_ms < attempt.from_ms);
            match attempt.seen {
                Seen::Conflict if others().next().is_none() => {
                    let what = format!("{} is answered 409 at {} ms, and there is no other payload of it", attempt.id, attempt.to_ms);
                    found.push(broken(3, attempt.region, what));
                }
                Seen::Accepted { .. } if !known_before && others().any(|other| earlier(&other) && accepted(&other)) => {
                    let what = format!("{} is accepted at {} ms although another payload of it was known", attempt.id, attempt.to_ms);
                    found.push(broken(4, attempt.region, what));
                }
                _ => {}
            }
        }
        let written = |amount: u64| {
            attempts.iter().any(|other| other.amount == amount && matches!(other.seen, Seen::Accepted { .. } | Seen::Unknown))
        };
        if let Some(row) = truth.events.get(key).filter(|row| !written(row.amount)) {
            found.push(broken(3, 0, format!("{} with amount {} was refused and counts", key.2, row.amount)));
        }
    }
    for key in truth.events.keys().filter(|key| !by_key.contains_key(*key)) {
        found.push(broken(3, 0, format!("{} was never posted", key.2)));
    }
}

/// Promises 2 and 4: each store counts each identity once, by the payload with the least commit id.
fn stores(state: &State, truth: &Truth, found: &mut Vec<Broken>) {
    for (region, place) in state.regions.iter().enumerate() {
        for (key, row) in &place.store.events {
            match truth.events.get(key) {
                Some(counted) if counted == row => {}
                Some(counted) => {
                    let what = format!(
                        "{} counts {} of commit id {:032x}, the least one is {:032x}",
                        key.2, row.amount, row.commit_id, counted.commit_id
                    );
                    found.push(broken(4, region, what));
                }
                None => found.push(broken(2, region, format!("{} counts and is in no log", key.2))),
            }
        }
        let missing = |key: &&Key| !place.store.events.contains_key(*key);
        for key in truth.events.keys().filter(missing) {
            found.push(broken(2, region, format!("{} is in the logs and not counted", key.2)));
        }
        if place.store.conflicts != truth.payloads && place.store.events.len() == truth.events.len() {
            found.push(broken(4, region, "the conflicts are not those of the logs".into()));
        }
    }
}

/// Promise 5: every position of another region's log is in the copy once, unchanged.
fn copies(state: &State, found: &mut Vec<Broken>) {
    for (region, place) in state.regions.iter().enumerate() {
        for id in place.log.ids() {
            let Some(partition) = place.log.get(&id) else { continue };
            if place.log.is_own(&id) {
                if partition.records.len() > PARTITION_RECORDS_MAX {
                    found.push(broken(5, region, format!("{id} has {} records: something goes round", partition.records.len())));
                }
                continue;
            }
            let Some(origin) = state.regions.iter().find(|place| place.log.is_own(&id)).and_then(|place| place.log.get(&id)) else {
                continue;
            };
            let mut next = origin.low;
            for stored in &partition.records {
                let Some(position) = stored.origin else { continue };
                let same = origin.records.get((position.offset - origin.low) as usize).is_some_and(|first| first.value == stored.value);
                if position.offset != next || !same {
                    found.push(broken(5, region, format!("the copy of {id} holds offset {} where {next} belongs", position.offset)));
                    break;
                }
                next += 1;
            }
        }
    }
}

/// Promise 7: whatever was claimed was in the sums.
fn claims(state: &State, found: &mut Vec<Broken>) {
    for claim in &state.ledger.claims {
        let (store, serial) = claim.summed;
        let place = &state.regions[claim.region].store;
        let stored = if place.made == store { Some(&place.first_stored) } else { state.ledger.gone.get(&(claim.region, store)) };
        for (origin, complete) in &claim.complete {
            let (Some(since), Some(through)) = (&complete.since, &complete.through) else { continue };
            let (Some(since), Some(through)) = (microseconds(since), microseconds(through)) else { continue };
            let within = |attempt: &Attempt, committed_us: u64| {
                attempt.tenant == claim.tenant && REGIONS[attempt.region] == origin && committed_us > since && committed_us <= through
            };
            for (attempt, _) in state.ledger.acknowledged().filter(|(attempt, committed_us)| within(attempt, *committed_us)) {
                let there = stored.and_then(|stored| stored.get(&key_of(attempt))).is_some_and(|first| *first < serial);
                if !there {
                    let (at_ms, through_ms) = (claim.at_ms, through.saturating_sub(EPOCH_US) / 1_000);
                    let what = format!("an answer at {at_ms} ms claims all of {origin} through {through_ms} ms and lacks {}", attempt.id);
                    found.push(broken(7, claim.region, what));
                    return;
                }
            }
        }
    }
}

/// Promise 9, as far as a schedule shows it: no process ends by itself.
fn bounded(state: &State, found: &mut Vec<Broken>) {
    found.extend(state.ledger.ended.iter().map(|how| broken(9, 0, format!("a process ended by itself: {how}"))));
}

/// Promise 10: what cannot be read is put aside in every region, and named.
fn poison(state: &State, found: &mut Vec<Broken>) {
    for (_, id, offset) in &state.ledger.poison {
        for (region, place) in state.regions.iter().enumerate() {
            let aside = place.log.letters.iter().any(|letter| letter.position.partition == *id && letter.position.offset == *offset);
            let key = (id.topic.region.clone(), id.topic.generation, id.partition, *offset);
            // A new store learns of it when it is read again.
            let named = place.store.parked.contains_key(&key);
            if !aside || !named {
                found.push(broken(10, region, format!("the record at {id} offset {offset} cannot be read and is not put aside")));
            }
        }
    }
}

/// Promise 8: the same question has the same answer everywhere.
fn same_answers(world: &World, answers: &[(usize, &'static str, Answer, Conflicts)], found: &mut Vec<Broken>) {
    for tenant in TENANTS {
        let mut first: Option<&(usize, &str, Answer, Conflicts)> = None;
        let mut count = 0;
        for answer in answers.iter().filter(|(_, asked, ..)| *asked == tenant) {
            count += 1;
            let known = *first.get_or_insert(answer);
            if known.2.windows != answer.2.windows || known.3 != answer.3 {
                let (one, other) = (REGIONS[known.0], REGIONS[answer.0]);
                found.push(broken(8, answer.0, format!("{tenant} is answered otherwise in {one} than in {other}")));
            }
        }
        if count != world.plan.regions {
            found.push(broken(9, 0, format!("{tenant} is answered in {count} regions only")));
        }
    }
}
