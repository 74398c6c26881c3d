-- What the sink writes and usage reads, in every region alike. Statements end with a semicolon at the end of a line.
-- Why it is so: docs/decisions/0020-clickhouse-identity.md.

CREATE DATABASE IF NOT EXISTS meridian;

-- Which store this is: drawn once, when the store is made. Progress rows name the store that they speak of, so a sink
-- that outlived its store claims nothing about the new one.
CREATE TABLE IF NOT EXISTS meridian.store
(
    id String,
    made_at DateTime64(6, 'UTC') DEFAULT now64(6)
)
ENGINE = MergeTree
ORDER BY (made_at, id)
SETTINGS non_replicated_deduplication_window = 0;

INSERT INTO meridian.store (id) SELECT toString(generateUUIDv4()) WHERE (SELECT count() FROM meridian.store) = 0;

-- One row an identity once merged, and always under FINAL: the row with the least commit id.
-- No partition, no insert-deduplication window, no TTL: each of them can count an event twice or not at all.
CREATE TABLE IF NOT EXISTS meridian.events
(
    tenant String,
    source String,
    id String,
    commit_id UInt128,
    version UInt128 MATERIALIZED bitNot(commit_id),
    hash FixedString(32),
    origin LowCardinality(String),
    type LowCardinality(String),
    -- Empty: absent (an empty attribute is never valid).
    subject String,
    -- The event's own time, or its commit time when it gave none: microseconds since the Unix epoch.
    time_us Int64,
    time_given Bool,
    content_type LowCardinality(String),
    data_schema LowCardinality(String),
    data String CODEC(ZSTD(1)),
    extensions Map(String, String),
    key_id String,
    accepted_us UInt64,
    -- Place in the log: (events.<log_region>.g<log_generation>, log_partition, origin offset).
    log_region LowCardinality(String),
    log_generation UInt32,
    log_partition UInt16,
    log_offset UInt64,
    time DateTime64(6, 'UTC') ALIAS fromUnixTimestamp64Micro(time_us, 'UTC')
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (tenant, source, id)
SETTINGS non_replicated_deduplication_window = 0, fsync_after_insert = 1;

-- Every (identity, payload hash) ever stored, with its least commit id: an identity with two hashes is a conflict.
CREATE TABLE IF NOT EXISTS meridian.conflicts
(
    tenant String,
    source String,
    id String,
    hash FixedString(32),
    commit_id UInt128,
    version UInt128 MATERIALIZED bitNot(commit_id),
    origin LowCardinality(String),
    type LowCardinality(String)
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (tenant, source, id, hash)
SETTINGS non_replicated_deduplication_window = 0, fsync_after_insert = 1;

-- Part of the same insert as the events: it fails with it and is repeated with it.
CREATE MATERIALIZED VIEW IF NOT EXISTS meridian.conflicts_feed TO meridian.conflicts AS
SELECT tenant, source, id, hash, commit_id, origin, type FROM meridian.events;

-- How far the sink is in each partition of each topic of events, written after the block that it speaks of, and what the
-- watermarks up to there say. One row holds both, so that no crash can part them. `partitions`: how many the topic has.
CREATE TABLE IF NOT EXISTS meridian.positions
(
    store String,
    origin LowCardinality(String),
    generation UInt32,
    partition UInt16,
    partitions UInt16,
    next_offset UInt64,
    -- A hint only: where the next record lay in this region's copy.
    local_offset UInt64,
    -- Everything acknowledged in (since, through] is stored; 0 and 0: no watermark has been met.
    since_us UInt64,
    through_us UInt64,
    -- The interval (gap_from, gap_through] that no watermark covers, the first one met; 0 and 0: none.
    gap_from_us UInt64,
    gap_through_us UInt64,
    stored_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(next_offset)
ORDER BY (store, origin, generation, partition)
SETTINGS non_replicated_deduplication_window = 0, fsync_after_insert = 1;

-- The positions of this store, for people and for usage.
CREATE VIEW IF NOT EXISTS meridian.watermarks AS
SELECT origin, generation, partition, partitions, next_offset, since_us, through_us, gap_from_us, gap_through_us, stored_at
FROM meridian.positions FINAL
WHERE store = (SELECT argMin(id, made_at) FROM meridian.store);

-- Every flush, kept for three days: when an event at a log offset had been stored.
CREATE TABLE IF NOT EXISTS meridian.flushes
(
    origin LowCardinality(String),
    generation UInt32,
    partition UInt16,
    next_offset UInt64,
    stored_at DateTime64(6, 'UTC')
)
ENGINE = MergeTree
ORDER BY (origin, generation, partition, next_offset)
TTL toDateTime(stored_at) + INTERVAL 3 DAY
SETTINGS non_replicated_deduplication_window = 0;

CREATE MATERIALIZED VIEW IF NOT EXISTS meridian.flushes_feed TO meridian.flushes AS
SELECT origin, generation, partition, next_offset, stored_at FROM meridian.positions;

-- Records that could not be read; they lie in `<topic>.dlq` and count against completeness until redriven or dismissed.
CREATE TABLE IF NOT EXISTS meridian.parked
(
    origin LowCardinality(String),
    generation UInt32,
    partition UInt16,
    offset UInt64,
    partitions UInt16,
    -- 0: parked, 1: redriven, 2: dismissed.
    state UInt8,
    reason String,
    stored_at DateTime64(6, 'UTC')
)
ENGINE = ReplacingMergeTree(state)
ORDER BY (origin, generation, partition, offset)
SETTINGS non_replicated_deduplication_window = 0, fsync_after_insert = 1;
