//! The userspace WAN: one thread, one poll loop, one queue a directed link.
//!
//! **Every packet between two regions passes here; a packet that does not belong to the world goes nowhere.**

mod lateness;
mod link;
mod random;

pub use lateness::{LatenessBucket, LatenessReport};
pub use link::{Fate, Link, LinkChange, LinkCounters, LinkSettings};
pub use random::Random;

use super::sys;
use anyhow::{Context, Result};
use lateness::Lateness;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Packets read from one region before the others and the due ones get their turn.
const READS_MAX: usize = 64;
/// Largest IPv4 packet.
const PACKET_BYTES_MAX: usize = 65_536;

/// The WAN and its thread. Regions are known by their place in the world's list.
pub struct Router {
    state: Mutex<State>,
    wake: EventFd,
}

/// What the router's lock guards.
struct State {
    devices: Vec<Option<Arc<File>>>,
    /// Row: from; column: to.
    links: Vec<Vec<Link>>,
    /// Second octet of each region's network 10.x.0.0/16.
    octets: Vec<u8>,
    began: Instant,
    lateness: Lateness,
    stray: u64,
    stopped: bool,
    realtime: bool,
}

impl Router {
    /// A router for regions 10.`octet`.0.1 whose links have these settings (row: from; column: to).
    ///
    /// # Errors
    /// When the kernel refuses an eventfd.
    pub fn new(octets: Vec<u8>, settings: Vec<Vec<LinkSettings>>, seed: u64) -> Result<Self> {
        let link = |from, to, settings| Link::new(settings, random::link_seed(seed, from, to));
        let row =
            |(from, row): (usize, Vec<LinkSettings>)| row.into_iter().enumerate().map(|(to, settings)| link(from, to, settings)).collect();
        let state = State {
            devices: octets.iter().map(|_| None).collect(),
            links: settings.into_iter().enumerate().map(row).collect(),
            octets,
            began: Instant::now(),
            lateness: Lateness::default(),
            stray: 0,
            stopped: false,
            realtime: false,
        };
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).context("eventfd")?;
        Ok(Self { state: Mutex::new(state), wake })
    }

    /// Joins a region to the WAN by its TUN device, or takes it out (`None`): then nothing comes from it or reaches it, and what
    /// was in flight from and to it is lost.
    pub fn set_device(&self, region: usize, device: Option<File>) {
        self.change(|state| {
            state.devices[region] = device.map(Arc::new);
            for other in 0..state.links.len() {
                state.links[region][other].drain();
                state.links[other][region].drain();
            }
        });
    }

    /// Changes settings of one direction.
    pub fn set_link(&self, from: usize, to: usize, change: &LinkChange) {
        self.change(|state| {
            let link = &mut state.links[from][to];
            link.settings = link.settings.with(change);
        });
    }

    /// Cuts (what is in flight is lost too) or heals one direction.
    pub fn set_up(&self, from: usize, to: usize, up: bool) {
        self.change(|state| {
            let link = &mut state.links[from][to];
            link.settings.up = up;
            if !up {
                link.drain();
            }
        });
    }

    /// Settings and counters of one direction.
    pub fn link(&self, from: usize, to: usize) -> (LinkSettings, LinkCounters) {
        let state = self.state();
        let link = &state.links[from][to];
        (link.settings.clone(), link.counters.clone())
    }

    /// How late the router was since the last reset.
    pub fn lateness(&self) -> LatenessReport {
        self.state().lateness.report()
    }

    /// Starts measuring the lateness anew.
    pub fn reset_lateness(&self) {
        self.state().lateness.reset();
    }

    /// Packets that did not belong to the world: foreign source, unknown destination, not IPv4.
    pub fn stray(&self) -> u64 {
        self.state().stray
    }

    /// True when the router's thread has real-time priority.
    pub fn is_realtime(&self) -> bool {
        self.state().realtime
    }

    /// Ends [`Router::run`].
    pub fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Carries packets until [`Router::stop`]. Meant for a thread of its own.
    pub fn run(&self) {
        // The default slack of 50 µs would be added to every wait.
        let _ = nix::sys::prctl::set_timerslack(1);
        let realtime = sys::become_realtime().is_ok();
        self.state().realtime = realtime;
        let mut buffer = vec![0_u8; PACKET_BYTES_MAX];
        loop {
            let (devices, patience) = {
                let mut state = self.state();
                if state.stopped {
                    return;
                }
                let next_ns = state.deliver();
                let patience = next_ns.map(|next_ns| Duration::from_nanos(next_ns.saturating_sub(state.now_ns())));
                (state.joined(), patience)
            };
            for region in self.readable(&devices, patience) {
                self.read(&devices[region], &mut buffer);
            }
        }
    }

    /// Waits for packets, a change, or `patience`; the places in `devices` that have something to read.
    fn readable(&self, devices: &[(usize, Arc<File>)], patience: Option<Duration>) -> Vec<usize> {
        let mut polled: Vec<PollFd> = devices.iter().map(|(_, device)| PollFd::new(device.as_fd(), PollFlags::POLLIN)).collect();
        polled.push(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN));
        if ppoll(&mut polled, patience.map(TimeSpec::from_duration), None).unwrap_or(0) == 0 {
            return Vec::new();
        }
        if polled[devices.len()].any() == Some(true) {
            let _ = self.wake.read();
        }
        (0..devices.len()).filter(|place| polled[*place].any() == Some(true)).collect()
    }

    fn read(&self, (region, device): &(usize, Arc<File>), buffer: &mut [u8]) {
        let mut state = self.state();
        for _ in 0..READS_MAX {
            match (&**device).read(buffer) {
                Ok(bytes) => state.accept(*region, &buffer[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nothing left to read, or the device is going away.
                Err(_) => return,
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        let _ = self.wake.write(1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn joined(&self) -> Vec<(usize, Arc<File>)> {
        self.devices.iter().enumerate().filter_map(|(region, device)| Some((region, device.clone()?))).collect()
    }

    /// Puts a packet that left region `from` onto its link.
    fn accept(&mut self, from: usize, packet: &[u8]) {
        let Some(to) = destination(&self.octets, from, packet) else {
            self.stray += 1;
            return;
        };
        let now_ns = self.now_ns();
        let link = &mut self.links[from][to];
        if let Fate::Due { due_ns, copies } = link.admit(now_ns, packet.len()) {
            if due_ns <= now_ns && copies == 1 && link.is_idle() {
                self.hand_over(from, to, packet);
            } else {
                link.fly(due_ns, copies, packet);
            }
        }
    }

    fn hand_over(&mut self, from: usize, to: usize, packet: &[u8]) {
        let counters = &mut self.links[from][to].counters;
        let Some(device) = &self.devices[to] else {
            counters.blackholed += 1;
            return;
        };
        // A TUN takes a packet whole or not at all.
        match (&**device).write(packet) {
            Ok(bytes) => {
                counters.packets += 1;
                counters.bytes += bytes as u64;
            }
            Err(_) => counters.overflowed += 1,
        }
    }

    /// Hands over all that is due; the time at which the next packet is.
    fn deliver(&mut self) -> Option<u64> {
        let mut next_ns: Option<u64> = None;
        for from in 0..self.links.len() {
            for to in 0..self.links.len() {
                let now_ns = self.now_ns();
                while let Some((due_ns, packet)) = self.links[from][to].land(now_ns) {
                    self.lateness.record((now_ns - due_ns) / 1000);
                    self.hand_over(from, to, &packet);
                }
                next_ns = [next_ns, self.links[from][to].next_due_ns()].into_iter().flatten().min();
            }
        }
        next_ns
    }
}

/// The region that an IPv4 packet (RFC 791) from region `from` goes to: its source must be the region's own address.
fn destination(octets: &[u8], from: usize, packet: &[u8]) -> Option<usize> {
    let header = packet.get(..20)?;
    let own = header[0] >> 4 == 4 && header[12..16] == [10, octets[from], 0, 1];
    let to = octets.iter().position(|octet| header[16..20] == [10, *octet, 0, 1])?;
    (own && to != from).then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut packet = vec![0x45; 20];
        packet[12..16].copy_from_slice(&source);
        packet[16..20].copy_from_slice(&target);
        packet
    }

    #[test]
    fn only_the_world_s_own_packets_have_a_destination() {
        let octets = [1, 2, 3];
        let check = |source, target, expected| assert_eq!(destination(&octets, 0, &packet(source, target)), expected);
        check([10, 1, 0, 1], [10, 3, 0, 1], Some(2));
        check([10, 1, 0, 1], [10, 1, 0, 1], None);
        check([10, 2, 0, 1], [10, 3, 0, 1], None);
        check([10, 1, 0, 1], [10, 4, 0, 1], None);
        check([10, 1, 0, 1], [10, 2, 0, 9], None);
        check([10, 1, 0, 1], [8, 8, 8, 8], None);
        assert_eq!(destination(&octets, 0, &packet([10, 1, 0, 1], [10, 3, 0, 1])[..19]), None);
        let mut six = packet([10, 1, 0, 1], [10, 3, 0, 1]);
        six[0] = 0x60;
        assert_eq!(destination(&octets, 0, &six), None);
    }

    #[test]
    fn links_have_seeds_of_their_own() {
        let seeds: Vec<u64> = (0..5).flat_map(|from| (0..5).map(move |to| random::link_seed(42, from, to))).collect();
        let distinct: std::collections::BTreeSet<_> = seeds.iter().collect();
        assert_eq!(distinct.len(), seeds.len());
        assert_eq!(random::link_seed(42, 1, 2), random::link_seed(42, 1, 2));
        assert_ne!(random::link_seed(42, 1, 2), random::link_seed(43, 1, 2));
    }
}
