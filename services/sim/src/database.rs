//! A fake of the database: one replica a region, each write on its way for a while, to its own replica and to the others.
//!
//! It keeps what the engine promises and no more: a statement that was not answered may be carried out, also long after its client
//! gave up; a read sees what its own replica has when it is carried out, which may be before a write that was sent earlier; other
//! regions lag; hints wait for a region that is cut off, and may never come.

use crate::{
    plan::REGIONS,
    world::{EPOCH_US, Process, State},
};
use adapters::scylla::{Ack, ChangeRange, ChangeRow, CommitRow, Generation, STATEMENT_TIMEOUT, SaveIdentity};
use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use meridian_proto::{CommitId, CommitTime, Identity, KEY_FUNCTION, PARTITIONS, PayloadHash};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// One region's replica.
#[derive(Default)]
pub struct Replica {
    identities: BTreeMap<Identity, BTreeSet<PayloadHash>>,
    changes: BTreeMap<(usize, u32, u16), BTreeMap<CommitId, Cell>>,
    /// Writes on their way, by when they are carried out and in which order they were sent.
    pending: BTreeMap<(u64, u64), Write>,
    /// Writes for regions that were cut off: whose, and what.
    hinted: Vec<(usize, Write)>,
    /// What is wrong with it.
    pub trouble: Trouble,
}

/// One row of the change log in a replica.
#[derive(Clone)]
struct Cell {
    change: Bytes,
    /// When it was carried out here, milliseconds.
    landed_ms: u64,
}

/// What is wrong with a replica, each until a time in milliseconds.
#[derive(Default)]
pub struct Trouble {
    /// Statements take up to so many milliseconds longer.
    pub slow: (u64, u64),
    /// Statements are carried out only then.
    pub paused_until: u64,
    /// Statements are refused.
    pub down_until: u64,
    /// Statements are carried out and not answered.
    pub answers_lost_until: u64,
    /// Hints are dropped.
    pub hints_never_come: bool,
}

#[derive(Clone)]
enum Write {
    Identities(Arc<Vec<(Identity, PayloadHash)>>),
    Change { owner: usize, generation: u32, partition: u16, row: CommitId, change: Bytes },
}

impl Replica {
    /// Carries out what is due.
    fn settle(&mut self, now_ms: u64) {
        while let Some(first) = self.pending.first_entry().filter(|first| first.key().0 <= now_ms) {
            let ((landed_ms, _), write) = first.remove_entry();
            match write {
                Write::Identities(entries) => {
                    for (identity, hash) in entries.iter() {
                        self.identities.entry(identity.clone()).or_default().insert(*hash);
                    }
                }
                Write::Change { owner, generation, partition, row, change } => {
                    // A second row of the same id replaces the first one, silently.
                    self.changes.entry((owner, generation, partition)).or_default().insert(row, Cell { change, landed_ms });
                }
            }
        }
    }

    /// Rows of the change log that it holds of a region.
    pub fn rows_of(&mut self, owner: usize, now_ms: u64) -> usize {
        self.settle(now_ms);
        self.changes.iter().filter(|((region, ..), _)| *region == owner).map(|(_, rows)| rows.len()).sum()
    }
}

/// Sends the hints that wait for a region that is reachable again.
pub fn send_hints(state: &mut State, now_ms: u64) {
    for from in 0..state.regions.len() {
        let hinted = std::mem::take(&mut state.regions[from].database.hinted);
        for (to, write) in hinted {
            if !state.reaches(from, to, now_ms) {
                state.regions[from].database.hinted.push((to, write));
            } else if !state.regions[from].database.trouble.hints_never_come {
                let due = (now_ms + state.random.between(100, 2_000), state.next_serial());
                state.regions[to].database.pending.insert(due, write);
            }
        }
    }
}

/// When a statement that arrives now is carried out, in milliseconds.
fn landing(process: &Process, trouble: &Trouble, now_ms: u64) -> u64 {
    let (until, up_to) = trouble.slow;
    let slow = if now_ms < until { process.draw(|random| random.below(up_to)) } else { 0 };
    let base = process.draw(|random| random.pick(&[1, 1, 2, 3, 5, 8]));
    now_ms.max(trouble.paused_until) + base + slow
}

/// How a statement ends for its client: its answer comes at that time, or none does.
async fn answered(process: &Process, asked_ms: u64, answer_ms: Option<u64>) -> Result<()> {
    let timeout_ms = asked_ms + STATEMENT_TIMEOUT.as_millis() as u64;
    match answer_ms {
        Some(answer_ms) if answer_ms <= timeout_ms => {
            process.world.until_ms(answer_ms).await;
            Ok(())
        }
        _ => {
            process.world.until_ms(timeout_ms).await;
            Err(anyhow!("no answer in time"))
        }
    }
}

/// Sends a write to all replicas; gives when it is answered.
fn send(process: &Process, write: &Write, ack: Ack) -> Result<Option<u64>> {
    let now_ms = process.world.now_ms();
    let mut state = process.world.state();
    let me = process.region;
    let trouble = &state.regions[me].database.trouble;
    if now_ms < trouble.down_until {
        bail!("the database refuses");
    }
    let lost = now_ms < trouble.answers_lost_until;
    let local_ms = landing(process, trouble, now_ms);
    let mut answers = vec![local_ms + process.draw(|random| random.pick(&[1, 1, 2, 4]))];
    for to in 0..state.regions.len() {
        if to == me {
            let due = (local_ms, state.next_serial());
            state.regions[me].database.pending.insert(due, write.clone());
            continue;
        }
        let there = &state.regions[to].database.trouble;
        if !state.reaches(me, to, now_ms) || now_ms < there.down_until {
            state.regions[me].database.hinted.push((to, write.clone()));
            continue;
        }
        let wan_ms = process.draw(|random| random.pick(&[15, 25, 40, 90]));
        let remote_ms = (local_ms + wan_ms).max(there.paused_until + 1);
        let due = (remote_ms, state.next_serial());
        state.regions[to].database.pending.insert(due, write.clone());
        if state.reaches(to, me, remote_ms) {
            answers.push(remote_ms + wan_ms);
        }
    }
    answers.sort_unstable();
    let needed = match ack {
        Ack::Local => return Ok((!lost).then_some(local_ms + 1)),
        Ack::Global => state.regions.len() / 2 + 1,
    };
    Ok(answers.get(needed - 1).copied().filter(|_| !lost))
}

/// See [`adapters::scylla::find_identity`].
pub async fn find_identity(process: Arc<Process>, identities: Vec<Identity>) -> Result<Vec<Vec<PayloadHash>>> {
    read(&process, |replica, _| {
        let known = |identity| replica.identities.get(identity).map(|hashes| hashes.iter().copied().collect()).unwrap_or_default();
        identities.iter().map(known).collect()
    })
    .await
}

/// Reads from the own replica, at some time before the answer.
async fn read<T>(process: &Arc<Process>, look: impl FnOnce(&mut Replica, u64) -> T) -> Result<T> {
    let asked_ms = process.world.now_ms();
    let (look_ms, answer_ms) = {
        let state = process.world.state();
        let trouble = &state.regions[process.region].database.trouble;
        if asked_ms < trouble.down_until {
            bail!("the database refuses");
        }
        let answer_ms = landing(process, trouble, asked_ms) + 1;
        // Pages are read at any time until the answer.
        let look_ms = process.draw(|random| random.between(asked_ms.max(trouble.paused_until), answer_ms));
        (look_ms, (asked_ms >= trouble.answers_lost_until).then_some(answer_ms))
    };
    process.world.until_ms(look_ms).await;
    let found = {
        let mut state = process.world.state();
        let replica = &mut state.regions[process.region].database;
        replica.settle(look_ms);
        look(replica, look_ms)
    };
    answered(process, asked_ms, answer_ms).await?;
    Ok(found)
}

/// See [`adapters::scylla::save_identity`].
pub async fn save_identity(process: Arc<Process>, SaveIdentity { entries, ack }: SaveIdentity) -> Result<()> {
    let asked_ms = process.world.now_ms();
    let answer_ms = send(&process, &Write::Identities(Arc::new(entries)), ack)?;
    answered(&process, asked_ms, answer_ms).await
}

/// See [`adapters::scylla::commit_event`].
pub async fn commit_event(process: Arc<Process>, CommitRow { generation, partition, row, change, ack }: CommitRow) -> Result<()> {
    let asked_ms = process.world.now_ms();
    let write = Write::Change { owner: process.region, generation, partition, row, change };
    let answer_ms = send(&process, &write, ack)?;
    let outcome = answered(&process, asked_ms, answer_ms).await;
    if outcome.is_err() {
        process.world.tell(process.region, process.role, || format!("hears nothing of its change row {row}"));
    }
    outcome
}

/// See [`adapters::scylla::read_changes`].
pub async fn read_changes(process: Arc<Process>, range: ChangeRange) -> Result<Vec<ChangeRow>> {
    let region = process.region;
    read(&process, |replica, _| rows_between(replica, region, range, u64::MAX)).await
}

/// The rows of a range that had been carried out by then.
fn rows_between(replica: &Replica, owner: usize, range: ChangeRange, landed_by_ms: u64) -> Vec<ChangeRow> {
    let last = CommitId::last_at(range.through);
    if range.after >= last {
        return Vec::new();
    }
    let Some(rows) = replica.changes.get(&(owner, range.generation, range.partition)) else { return Vec::new() };
    let above = (std::ops::Bound::Excluded(range.after), std::ops::Bound::Included(last));
    let there = rows.range(above).filter(|(_, cell)| cell.landed_ms <= landed_by_ms);
    there.map(|(row, cell)| ChangeRow { row: *row, change: cell.change.clone() }).collect()
}

/// As [`read_changes`], of what was there so long ago: pages that were read before the bound was taken.
pub async fn read_changes_of_before(process: Arc<Process>, range: ChangeRange, before: Duration) -> Result<Vec<ChangeRow>> {
    let region = process.region;
    let before_ms = before.as_millis() as u64;
    read(&process, |replica, now_ms| rows_between(replica, region, range, now_ms.saturating_sub(before_ms))).await
}

/// The registry of generations: the first one is there from the beginning.
pub async fn register_generation(process: Arc<Process>, (): ()) -> Result<Generation> {
    read(&process, |_, _| ()).await?;
    Ok(first_generation(process.region))
}

/// The generation that a region begins with.
pub fn first_generation(region: usize) -> Generation {
    Generation {
        region: REGIONS[region].into(),
        generation: 1,
        partitions: PARTITIONS,
        window_ms: 10_000,
        key_function: KEY_FUNCTION.into(),
        cluster_id: String::new(),
        host_ids: Vec::new(),
        created_us: EPOCH_US,
    }
}

/// The region's clock, as [`adapters::clock::region_time`] promises it: within half of ε of the database's, never back, or an error.
pub async fn region_time(process: Arc<Process>, (): ()) -> Result<CommitTime> {
    if process.world.state().regions[process.region].clock_refuses {
        bail!("stale, no answer of the database");
    }
    Ok(CommitTime(process.clock_us()))
}

/// A host's clock.
pub async fn host_time(process: Arc<Process>, (): ()) -> Result<CommitTime> {
    Ok(CommitTime(process.clock_us()))
}
