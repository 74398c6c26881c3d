//! The only module with `unsafe`: a TUN device and a thread's real-time priority, for which `nix` has no safe call.

#![allow(unsafe_code)]

use nix::libc::{self, ifreq};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes the TUN device `name` in the network namespace of the calling thread.
///
/// The namespace is taken when the node is opened, not when the device is named, so both happen here.
///
/// # Errors
/// What the kernel says to open(2) or TUNSETIFF.
pub fn open_tun(node: &Path, name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(node)?;
    assert!(name.len() < libc::IFNAMSIZ, "interface names have at most 15 bytes");
    // SAFETY: `ifreq` is plain data of the C interface, for which all zeros is a valid value.
    let mut request: ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call; the descriptor is open.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Gives the calling thread the lowest real-time priority, above every ordinary thread.
///
/// # Errors
/// EPERM without the right to do so.
pub fn become_realtime() -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one `sched_param`, which outlives it; 0 names the calling thread.
    // With the reset flag nothing that this thread might start inherits the priority.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const priority) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
