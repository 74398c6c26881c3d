//! A fake of ClickHouse: rows by identity as `FINAL` shows them, conflicts, positions, parked records.
//!
//! It keeps what the engine promises and no more: an insert that was not acknowledged may be there in none, some or all of its
//! rows; equal rows replace each other by version, whenever they come; a query sees what is stored when it is carried out.

use crate::world::{Process, World};
use adapters::clickhouse::{
    Bucket, ConflictRow, InsertBlock, ListConflicts, ParkedRow, PositionRow, Positions, Progress, SaveProgress, StoreRow, SumMeter,
};
use anyhow::{Context, Result, bail, ensure};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// (tenant, source, id).
pub type Key = (String, String, String);

/// One region's ClickHouse.
#[derive(Default)]
pub struct Store {
    /// Drawn when it was made.
    pub id: String,
    /// How often it was made.
    pub made: u32,
    /// What `FINAL` shows.
    pub events: BTreeMap<Key, Row>,
    /// When an identity was first stored, by serial number.
    pub first_stored: BTreeMap<Key, u64>,
    /// Each payload of each identity: least commit id and origin.
    pub conflicts: BTreeMap<Key, BTreeMap<[u8; 32], (u128, String)>>,
    positions: BTreeMap<(String, String, u32, u16), PositionRow>,
    /// Parked records, by place.
    pub parked: BTreeMap<(String, u32, u16, u64), ParkedRow>,
    /// It answers again from then on, milliseconds.
    pub down_until: u64,
    /// Answers take up to so many milliseconds longer, until then.
    pub slow: (u64, u64),
    /// So many of the next inserts end unknown.
    pub inserts_unknown: u32,
}

/// One event's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its commit id.
    pub commit_id: u128,
    /// Its payload hash.
    pub hash: [u8; 32],
    /// Region that accepted it.
    pub origin: String,
    /// CloudEvents `type`.
    pub event_type: String,
    /// Its amount.
    pub amount: u64,
}

impl Store {
    /// A new and empty store.
    pub fn new(region: &str, made: u32) -> Self {
        Self { id: format!("{region}-store-{made}"), made, ..Self::default() }
    }

    /// Stores a row; of one identity the least commit id is shown, unless `last_wins`.
    pub fn put(&mut self, key: Key, row: Row, serial: u64, last_wins: bool) {
        self.first_stored.entry(key.clone()).or_insert(serial);
        let payloads = self.conflicts.entry(key.clone()).or_default();
        let least = payloads.entry(row.hash).or_insert((row.commit_id, row.origin.clone()));
        if row.commit_id < least.0 {
            *least = (row.commit_id, row.origin.clone());
        }
        let shown = self.events.entry(key).or_insert_with(|| row.clone());
        if last_wins || row.commit_id < shown.commit_id {
            *shown = row;
        }
    }

    /// The positions of this store.
    pub fn own_positions(&self) -> Vec<PositionRow> {
        self.positions.iter().filter(|((store, ..), _)| *store == self.id).map(|(_, row)| row.clone()).collect()
    }

    /// Saves positions: the furthest row of a partition is the one read.
    pub fn save(&mut self, progress: SaveProgress) {
        for row in progress.parked {
            self.parked.insert((row.origin.clone(), row.generation, row.partition, row.offset), row);
        }
        for row in progress.positions {
            let key = (row.store.clone(), row.origin.clone(), row.generation, row.partition);
            match self.positions.get(&key) {
                Some(known) if known.next_offset > row.next_offset => {}
                _ => drop(self.positions.insert(key, row)),
            }
        }
    }
}

/// Reads the rows of a block: RowBinary in the order of [`sink::COLUMNS`].
pub fn rows_of(block: &InsertBlock) -> Result<Vec<(Key, Row)>> {
    let mut rest: &[u8] = &block.rows;
    let mut rows = Vec::with_capacity(block.count as usize);
    while !rest.is_empty() {
        let key = (text(&mut rest)?, text(&mut rest)?, text(&mut rest)?);
        let commit_id = u128::from_le_bytes(fixed(&mut rest)?);
        let hash = fixed::<32>(&mut rest)?;
        let (origin, event_type, _subject) = (text(&mut rest)?, text(&mut rest)?, text(&mut rest)?);
        fixed::<9>(&mut rest)?;
        let (_content_type, _schema) = (text(&mut rest)?, text(&mut rest)?);
        let data = text(&mut rest)?;
        let extensions = length(&mut rest)?;
        for _ in 0..extensions * 2 {
            text(&mut rest)?;
        }
        text(&mut rest)?;
        fixed::<8>(&mut rest)?;
        text(&mut rest)?;
        fixed::<14>(&mut rest)?;
        let digits: String = data.chars().filter(char::is_ascii_digit).collect();
        let row = Row { commit_id, hash, origin, event_type, amount: digits.parse().unwrap_or_default() };
        rows.push((key, row));
    }
    ensure!(rows.len() as u64 == block.count, "a block of {} rows says that it has {}", rows.len(), block.count);
    Ok(rows)
}

fn fixed<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>().context("a row ends early")?;
    *rest = tail;
    Ok(*head)
}

fn length(rest: &mut &[u8]) -> Result<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let [byte] = fixed::<1>(rest)?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
        shift += 7;
    }
}

fn text(rest: &mut &[u8]) -> Result<String> {
    let length = length(rest)? as usize;
    let (head, tail) = rest.split_at_checked(length).context("a text ends early")?;
    *rest = tail;
    Ok(String::from_utf8_lossy(head).into_owned())
}

/// Waits as long as a statement takes to be carried out; one that is under way when the store is made anew fails.
async fn carried_out(process: &Process) -> Result<()> {
    let now_ms = process.world.now_ms();
    let look = || {
        let state = process.world.state();
        let store = &state.regions[process.region].store;
        (store.down_until, store.slow, store.made)
    };
    let (down_until, (slow_until, up_to), made) = look();
    process.short().await;
    ensure!(now_ms >= down_until, "ClickHouse refuses");
    if now_ms < slow_until {
        let ms = process.draw(|random| random.below(up_to));
        process.world.until_ms(now_ms + ms).await;
    }
    let (down_until, _, now_made) = look();
    ensure!(made == now_made && process.world.now_ms() >= down_until, "ClickHouse went away");
    Ok(())
}

/// Whether the next insert ends unknown, and how much of it is there.
fn kept_of(process: &Process, count: usize) -> (usize, bool) {
    let mut state = process.world.state();
    let store = &mut state.regions[process.region].store;
    if store.inserts_unknown == 0 {
        return (count, false);
    }
    store.inserts_unknown -= 1;
    drop(state);
    (process.draw(|random| random.below(count as u64 + 1)) as usize, true)
}

/// Stores rows.
pub fn put_rows(world: &World, region: usize, rows: Vec<(Key, Row)>, last_wins: bool) {
    let mut state = world.state();
    for (key, row) in rows {
        let serial = state.next_serial();
        state.regions[region].store.put(key, row, serial, last_wins);
    }
}

/// See [`adapters::clickhouse::insert_block`].
pub async fn insert_block(process: Arc<Process>, block: InsertBlock) -> Result<()> {
    insert(process, block, false).await
}

/// Inserts a block, with the least or the last row of an identity shown.
pub async fn insert(process: Arc<Process>, block: InsertBlock, last_wins: bool) -> Result<()> {
    let mut rows = rows_of(&block)?;
    carried_out(&process).await?;
    let (kept, unknown) = kept_of(&process, rows.len());
    rows.truncate(kept);
    put_rows(&process.world, process.region, rows, last_wins);
    if unknown {
        process
            .world
            .tell(process.region, process.role, || format!("hears nothing of an insert: {kept} of {} rows are there", block.count));
        bail!("ClickHouse did not answer");
    }
    process.short().await;
    Ok(())
}

/// See [`adapters::clickhouse::save_positions`].
pub async fn save_positions(process: Arc<Process>, progress: SaveProgress) -> Result<()> {
    carried_out(&process).await?;
    let (kept, unknown) = kept_of(&process, 1);
    if kept == 1 {
        process.world.state().regions[process.region].store.save(progress);
    }
    ensure!(!unknown, "ClickHouse did not answer");
    Ok(())
}

/// See [`adapters::clickhouse::load_positions`].
pub async fn load_positions(process: Arc<Process>, (): ()) -> Result<Positions> {
    carried_out(&process).await?;
    let state = process.world.state();
    let store = &state.regions[process.region].store;
    Ok(Positions { store: store.id.clone(), rows: store.own_positions() })
}

/// See [`adapters::clickhouse::read_progress`].
pub async fn read_progress(process: Arc<Process>, (): ()) -> Result<Progress> {
    carried_out(&process).await?;
    let state = process.world.state();
    let store = &state.regions[process.region].store;
    let mut parked: BTreeMap<String, u64> = BTreeMap::new();
    for row in store.parked.values().filter(|row| row.state == 0) {
        *parked.entry(row.origin.clone()).or_default() += 1;
    }
    Ok(Progress { store: store.id.clone(), rows: store.own_positions(), parked: parked.into_iter().collect() })
}

/// See [`adapters::clickhouse::sum_meter`]: one window over everything. Notes of what it was made.
pub async fn sum_meter(process: Arc<Process>, question: SumMeter) -> Result<Vec<Bucket>> {
    carried_out(&process).await?;
    let found = sum_now(&process, question);
    // What was read is answered later: now and then much later.
    let slow_ms = process.draw(|random| if random.chance(10) { random.between(20, 800) } else { 0 });
    tokio::time::sleep(Duration::from_millis(slow_ms)).await;
    Ok(found)
}

fn sum_now(process: &Process, question: SumMeter) -> Vec<Bucket> {
    let mut state = process.world.state();
    let serial = state.next_serial();
    let store = &state.regions[process.region].store;
    let rows: Vec<&Row> = store
        .events
        .iter()
        .filter(|((tenant, ..), row)| *tenant == question.tenant && row.event_type == question.event_type)
        .map(|(_, row)| row)
        .collect();
    let (events, value) = (rows.len() as u64, rows.iter().map(|row| row.amount).sum::<u64>());
    let (store, start_us) = (store.made, question.starts_us.first().copied().unwrap_or_default());
    process.note_sum(store, serial);
    vec![Bucket { start_us, value: value.to_string(), events, skipped: 0 }]
}

/// See [`adapters::clickhouse::list_conflicts`].
pub async fn list_conflicts(process: Arc<Process>, question: ListConflicts) -> Result<Vec<ConflictRow>> {
    carried_out(&process).await?;
    let state = process.world.state();
    let mut rows = Vec::new();
    for ((tenant, source, id), payloads) in &state.regions[process.region].store.conflicts {
        if *tenant != question.tenant || payloads.len() < 2 {
            continue;
        }
        let mut of_identity: Vec<ConflictRow> = payloads
            .iter()
            .map(|(hash, (commit_id, origin))| ConflictRow {
                source: source.clone(),
                id: id.clone(),
                hash: *hash,
                commit_id: *commit_id,
                origin: origin.clone(),
                event_type: String::new(),
            })
            .collect();
        of_identity.sort_by_key(|row| row.commit_id);
        rows.extend(of_identity);
    }
    Ok(rows)
}

/// See [`adapters::clickhouse::read_store`].
pub async fn read_store(process: Arc<Process>, (): ()) -> Result<StoreRow> {
    carried_out(&process).await?;
    let store = process.world.state().regions[process.region].store.id.clone();
    Ok(StoreRow { store, release: "simulated".into() })
}
