//! The schema job: makes keyspace, tables and topics as the numbered files say, and reads back what must hold.
//!
//! `cql/*.cql → database · clickhouse/*.sql → analytics store · topics.toml → log → registry of generations`
//!
//! **Every statement may be repeated.** **One client, one statement at a time, only while all nodes agree.**

pub mod check;
pub mod clickhouse;
pub mod cql;
pub mod files;
pub mod generation;
pub mod topics;
