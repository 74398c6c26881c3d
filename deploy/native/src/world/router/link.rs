//! The model of one direction of a link, as pure functions of time: what happens to a packet that is put onto it, and when it leaves.

use super::random::Random;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bytes in flight on one link at most: a bound on memory, above any sensible product of rate and delay.
const IN_FLIGHT_BYTES_MAX: usize = 256 << 20;

/// Settings of one direction of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSettings {
    /// False: the direction is cut, everything on it is lost in silence.
    pub up: bool,
    /// One-way delay in microseconds.
    pub latency_us: u64,
    /// The delay varies by up to this much to either side, evenly; packets are never reordered.
    pub jitter_us: u64,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Bits a second; 0 is without limit.
    pub rate_bits: u64,
    /// Bytes that may wait for the rate limiter; what comes on top is dropped.
    pub queue_bytes: u64,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self { up: true, latency_us: 0, jitter_us: 0, loss: 0.0, duplicate: 0.0, rate_bits: 0, queue_bytes: 1 << 20 }
    }
}

/// A change of some settings of a link; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkChange {
    /// See [`LinkSettings::latency_us`].
    pub latency_us: Option<u64>,
    /// See [`LinkSettings::jitter_us`].
    pub jitter_us: Option<u64>,
    /// See [`LinkSettings::loss`].
    pub loss: Option<f64>,
    /// See [`LinkSettings::duplicate`].
    pub duplicate: Option<f64>,
    /// See [`LinkSettings::rate_bits`].
    pub rate_bits: Option<u64>,
    /// See [`LinkSettings::queue_bytes`].
    pub queue_bytes: Option<u64>,
}

impl LinkSettings {
    /// These settings with a change applied.
    pub fn with(&self, change: &LinkChange) -> Self {
        Self {
            up: self.up,
            latency_us: change.latency_us.unwrap_or(self.latency_us),
            jitter_us: change.jitter_us.unwrap_or(self.jitter_us),
            loss: change.loss.unwrap_or(self.loss).clamp(0.0, 1.0),
            duplicate: change.duplicate.unwrap_or(self.duplicate).clamp(0.0, 1.0),
            rate_bits: change.rate_bits.unwrap_or(self.rate_bits),
            queue_bytes: change.queue_bytes.unwrap_or(self.queue_bytes),
        }
    }
}

/// What happened on one direction of a link since the world began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Packets that arrived.
    pub packets: u64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Packets lost by the setting `loss`.
    pub lost: u64,
    /// Packets doubled by the setting `duplicate`.
    pub duplicated: u64,
    /// Packets that met a cut or a dead region, in flight too.
    pub blackholed: u64,
    /// Packets dropped because a queue was full.
    pub overflowed: u64,
}

/// What the link does with a packet that is put onto it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The direction is cut.
    Blackholed,
    /// Lost by chance.
    Lost,
    /// The rate limiter's queue is full.
    Overflowed,
    /// Leaves at `due_ns`, `copies` times.
    Due {
        /// Nanoseconds of the router's clock.
        due_ns: u64,
        /// 1, or 2 when doubled.
        copies: u8,
    },
}

struct Packet {
    due_ns: u64,
    bytes: Box<[u8]>,
}

/// One direction of a link: settings, state of the rate limiter, packets in flight.
pub struct Link {
    /// The settings in force.
    pub settings: LinkSettings,
    /// Counted since the world began.
    pub counters: LinkCounters,
    random: Random,
    flying: VecDeque<Packet>,
    flying_bytes: usize,
    /// When the rate limiter will have sent all that it accepted.
    free_ns: u64,
    /// No packet leaves before the one put before it.
    last_due_ns: u64,
}

impl Link {
    /// A link whose chances come from `seed` alone: the same packets at the same times meet the same fates.
    pub fn new(settings: LinkSettings, seed: u64) -> Self {
        Self {
            settings,
            counters: LinkCounters::default(),
            random: Random::new(seed),
            flying: VecDeque::new(),
            flying_bytes: 0,
            free_ns: 0,
            last_due_ns: 0,
        }
    }

    /// Decides over a packet of `bytes` bytes that is put onto the link at `now_ns`, and counts it when it goes no further.
    pub fn admit(&mut self, now_ns: u64, bytes: usize) -> Fate {
        // Three numbers a packet whatever the settings: a change of one setting does not shift the chances of the others.
        let (loss, delay, double) = (self.random.fraction(), self.random.fraction(), self.random.fraction());
        if !self.settings.up {
            self.counters.blackholed += 1;
            return Fate::Blackholed;
        }
        if loss < self.settings.loss {
            self.counters.lost += 1;
            return Fate::Lost;
        }
        let Some(departs_ns) = self.departure(now_ns, bytes) else {
            self.counters.overflowed += 1;
            return Fate::Overflowed;
        };
        let jitter_ns = (self.settings.jitter_us as f64 * 1e3 * (2.0 * delay - 1.0)) as i64;
        let travel_ns = (self.settings.latency_us * 1000).saturating_add_signed(jitter_ns);
        let due_ns = (departs_ns + travel_ns).max(self.last_due_ns);
        self.last_due_ns = due_ns;
        let copies = if double < self.settings.duplicate { 2 } else { 1 };
        self.counters.duplicated += u64::from(copies - 1);
        Fate::Due { due_ns, copies }
    }

    /// When the rate limiter lets the packet go; `None` when its queue is full.
    fn departure(&mut self, now_ns: u64, bytes: usize) -> Option<u64> {
        let rate = u128::from(self.settings.rate_bits);
        if rate == 0 {
            return Some(now_ns);
        }
        let starts_ns = self.free_ns.max(now_ns);
        let waiting_bytes = u128::from(starts_ns - now_ns) * rate / 8_000_000_000;
        // A packet larger than the queue still passes an idle link.
        if waiting_bytes > 0 && waiting_bytes + bytes as u128 > u128::from(self.settings.queue_bytes) {
            return None;
        }
        self.free_ns = starts_ns + (bytes as u128 * 8_000_000_000 / rate) as u64;
        Some(self.free_ns)
    }

    /// True when nothing is in flight: a packet that is due at once needs no queue.
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty()
    }

    /// Puts an admitted packet in flight. Due times never fall, so this is a queue.
    pub fn fly(&mut self, due_ns: u64, copies: u8, bytes: &[u8]) {
        for _ in 0..copies {
            if self.flying_bytes + bytes.len() > IN_FLIGHT_BYTES_MAX {
                self.counters.overflowed += 1;
                return;
            }
            self.flying_bytes += bytes.len();
            self.flying.push_back(Packet { due_ns, bytes: bytes.into() });
        }
    }

    /// When the next packet is due.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.flying.front().map(|packet| packet.due_ns)
    }

    /// Takes the next packet that is due by `now_ns`, with its due time.
    pub fn land(&mut self, now_ns: u64) -> Option<(u64, Box<[u8]>)> {
        self.flying.pop_front_if(|packet| packet.due_ns <= now_ns).map(|packet| {
            self.flying_bytes -= packet.bytes.len();
            (packet.due_ns, packet.bytes)
        })
    }

    /// Loses what is in flight, as a cut does.
    pub fn drain(&mut self) {
        self.counters.blackholed += self.flying.len() as u64;
        self.flying.clear();
        self.flying_bytes = 0;
        self.free_ns = 0;
        self.last_due_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn link(change: LinkChange) -> Link {
        Link::new(LinkSettings::default().with(&change), 7)
    }

    fn due(fate: Fate) -> u64 {
        match fate {
            Fate::Due { due_ns, .. } => due_ns,
            other => panic!("not sent: {other:?}"),
        }
    }

    #[test]
    fn latency_is_added_to_the_time_of_arrival() {
        let mut link = link(LinkChange { latency_us: Some(45_000), ..LinkChange::default() });
        assert_eq!(due(link.admit(10 * MS, 100)), 55 * MS);
        assert_eq!(due(link.admit(12 * MS, 1500)), 57 * MS);
    }

    #[test]
    fn jitter_stays_within_its_bound_and_never_reorders() {
        let mut link = link(LinkChange { latency_us: Some(40_000), jitter_us: Some(10_000), ..LinkChange::default() });
        let mut last = 0;
        let mut seen = (u64::MAX, 0);
        for packet in 0..2000_u64 {
            let now = packet * 50 * MS;
            let due = due(link.admit(now, 100));
            assert!(due >= last, "reordered");
            last = due;
            seen = (seen.0.min(due - now), seen.1.max(due - now));
        }
        assert!(seen.0 >= 30 * MS && seen.1 <= 50 * MS, "{seen:?}");
        assert!(seen.0 < 32 * MS && seen.1 > 48 * MS, "{seen:?} does not use its range");
    }

    #[test]
    fn a_packet_waits_for_the_one_before_it() {
        let mut link = link(LinkChange { latency_us: Some(100_000), ..LinkChange::default() });
        assert_eq!(due(link.admit(0, 100)), 100 * MS);
        link.settings.latency_us = 10_000;
        assert_eq!(due(link.admit(MS, 100)), 100 * MS);
        assert_eq!(due(link.admit(95 * MS, 100)), 105 * MS);
    }

    #[test]
    fn the_rate_limiter_spaces_packets_and_drops_over_the_queue() {
        // 8 Mbit/s are 1000 bytes a millisecond.
        let mut link = link(LinkChange { rate_bits: Some(8_000_000), queue_bytes: Some(3000), ..LinkChange::default() });
        assert_eq!(due(link.admit(0, 1000)), MS);
        assert_eq!(due(link.admit(0, 1000)), 2 * MS);
        assert_eq!(due(link.admit(0, 1000)), 3 * MS);
        assert_eq!(link.admit(0, 1000), Fate::Overflowed);
        assert_eq!(due(link.admit(MS, 1000)), 4 * MS);
        assert_eq!(due(link.admit(100 * MS, 1000)), 101 * MS);
        assert_eq!(link.counters.overflowed, 1);
    }

    #[test]
    fn a_packet_larger_than_the_queue_passes_an_idle_link() {
        let mut link = link(LinkChange { rate_bits: Some(8_000_000), queue_bytes: Some(500), ..LinkChange::default() });
        assert_eq!(due(link.admit(0, 1000)), MS);
    }

    #[test]
    fn loss_comes_from_the_seed_alone() {
        let fates = |seed| {
            let settings = LinkSettings { loss: 0.1, ..LinkSettings::default() };
            let mut link = Link::new(settings, seed);
            (0..10_000).map(|at| link.admit(at * MS, 100) == Fate::Lost).collect::<Vec<_>>()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        let lost = fates(1).iter().filter(|lost| **lost).count();
        assert!((850..1150).contains(&lost), "{lost} of 10000 lost at 10 %");
    }

    #[test]
    fn another_setting_does_not_move_the_losses() {
        let fates = |latency_us, jitter_us| {
            let mut link = Link::new(LinkSettings { loss: 0.2, latency_us, jitter_us, ..LinkSettings::default() }, 3);
            (0..1000).map(|at| link.admit(at * MS, 100) == Fate::Lost).collect::<Vec<_>>()
        };
        assert_eq!(fates(0, 0), fates(90_000, 2000));
    }

    #[test]
    fn duplicates_are_sent_twice() {
        let mut link = link(LinkChange { duplicate: Some(1.0), latency_us: Some(1000), ..LinkChange::default() });
        let Fate::Due { due_ns, copies } = link.admit(0, 3) else { panic!("not sent") };
        link.fly(due_ns, copies, b"abc");
        assert!(link.land(MS - 1).is_none());
        assert!(link.land(MS).is_some() && link.land(MS).is_some() && link.land(MS).is_none());
        assert_eq!(link.counters.duplicated, 1);
    }

    #[test]
    fn a_cut_loses_what_comes_and_what_is_in_flight() {
        let mut link = link(LinkChange { latency_us: Some(1000), ..LinkChange::default() });
        let due_ns = due(link.admit(0, 3));
        link.fly(due_ns, 1, b"abc");
        link.settings.up = false;
        link.drain();
        assert_eq!(link.admit(MS, 3), Fate::Blackholed);
        assert!(link.land(10 * MS).is_none());
        assert_eq!(link.counters.blackholed, 2);
    }
}
