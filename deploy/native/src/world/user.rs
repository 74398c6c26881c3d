//! Rights without root: a user namespace in which this user is root.

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use std::fs;

/// Makes the calling process root of a new user namespace, unless it is root already.
///
/// **Must run before any other thread exists.**
///
/// # Errors
/// Says what must be permitted when the kernel refuses.
pub fn become_root() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    if let Err(error) = unshare(CloneFlags::CLONE_NEWUSER) {
        bail!(
            "the kernel does not permit user namespaces ({error}): run as root, or permit them (one of: sysctl user.max_user_namespaces=10000, \
             kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)"
        );
    }
    fs::write("/proc/self/setgroups", "deny").context("cannot give up setgroups")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1")).context("cannot map the user")?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1")).context("cannot map the group")
}
