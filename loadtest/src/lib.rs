//! The load tester: open-loop load, faults, every operation followed to every tier of every region, a verdict that can be red.
//!
//! `plan → schedule → generate → send (faults meanwhile) → history → converge → audit → verdict, latency → report`
//!
//! * [`plan`], [`schedule`], [`generate`]: what is sent when, from a seed alone.
//! * [`send`], [`history`], [`faults`]: doing it, and what the client was told.
//! * [`audit`], [`converge`]: what stands where, once all of it had time to get there.
//! * [`verdict`], [`latency`]: pure functions of history and audits.
//! * [`report`]: `run.json`, `report.html`, `summary.md`, the terminal.
//!
//! **The verdict is a function of the history and the audits, and of nothing else.**
//! **A send is never delayed by an answer.**

pub mod audit;
pub mod commands;
pub mod converge;
pub mod decimal;
pub mod faults;
pub mod generate;
pub mod history;
pub mod latency;
pub mod machine;
pub mod native;
pub mod plan;
pub mod post;
pub mod report;
pub mod schedule;
pub mod send;
pub mod verdict;
pub mod world;
