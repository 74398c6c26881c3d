//! Regions without a container engine: one network namespace a region, a userspace WAN between them, real engines inside.
//!
//! `launcher → world (namespaces, router, processes) → engines → services`, steered through one control socket.
//!
//! * [`world`] is the ground: regions, links, processes. It knows no engine.
//! * [`engines`] fetches and starts the engines in it, [`services`] our own programs.
//! * [`control`] is how everybody else speaks to a living world: the command line, the load tester, the tests.
//! * [`cli`] is the command line.
//!
//! **The launcher itself never leaves the host's network namespace. No region has a way out of the world.**

pub mod cli;
pub mod control;
pub mod engines;
pub mod progress;
pub mod services;
pub mod world;
