//! clickhouse
