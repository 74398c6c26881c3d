//! `exec`: a command inside a region.

use crate::control::{Client, Request, Response, StateDir};
use crate::world::guard;
use anyhow::{Result, bail};
use std::ffi::OsString;

pub fn exec(dir: &StateDir, region: String, command: &[OsString]) -> Result<i32> {
    match Client::of(dir)?.call(&Request::Entry { region })? {
        Response::Entry { init_pid, environment } => guard::supervise(init_pid, &environment, command),
        other => bail!("unexpected answer {other:?}"),
    }
}
