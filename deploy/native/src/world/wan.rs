//! The WAN as a person speaks of it: regions by name, links by pairs.

use super::router::{LatenessReport, LinkChange, LinkCounters, LinkSettings};
use super::{RegionSpec, World};
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// Milliseconds one way between the regions of the standard world.
const STANDARD_LATENCIES_MS: &[(&str, &str, u64)] = &[
    ("fra", "iad", 45),
    ("fra", "sin", 90),
    ("iad", "sin", 120),
    ("fra", "syd", 140),
    ("iad", "syd", 100),
    ("sin", "syd", 47),
    ("fra", "gru", 100),
    ("iad", "gru", 60),
    ("sin", "gru", 165),
    ("syd", "gru", 160),
];
const STANDARD_JITTER_US: u64 = 2000;

/// Settings of the links of a new world: pairs by name, both directions alike; pairs that are not listed have no delay.
#[derive(Clone, Debug, Default)]
pub struct WanSpec(pub Vec<(String, String, LinkSettings)>);

/// The links of the standard world.
pub fn default_links() -> WanSpec {
    let link = |(one, other, latency_ms): &(&str, &str, u64)| {
        let settings = LinkSettings { latency_us: latency_ms * 1000, jitter_us: STANDARD_JITTER_US, ..LinkSettings::default() };
        ((*one).to_string(), (*other).to_string(), settings)
    };
    WanSpec(STANDARD_LATENCIES_MS.iter().map(link).collect())
}

impl WanSpec {
    /// The settings for each direction, row: from, column: to.
    pub fn settings(&self, regions: &[RegionSpec]) -> Vec<Vec<LinkSettings>> {
        let between = |one: &str, other: &str| {
            let same = |pair: &&(String, String, LinkSettings)| (pair.0 == one && pair.1 == other) || (pair.0 == other && pair.1 == one);
            self.0.iter().find(same).map(|pair| pair.2.clone()).unwrap_or_default()
        };
        regions.iter().map(|from| regions.iter().map(|to| between(&from.name, &to.name)).collect()).collect()
    }
}

/// Directions that an order is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// A region's name, or `all`.
    pub from: String,
    /// A region's name, or `all`.
    pub to: String,
    /// Only from `from` to `to`, not back.
    pub one_way: bool,
}

impl Selection {
    /// Every direction of the world.
    pub fn everything() -> Self {
        Self { from: "all".into(), to: "all".into(), one_way: true }
    }
}

/// One direction of a link as `links` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The region it leads from.
    pub from: String,
    /// The region it leads to.
    pub to: String,
    /// In force now.
    pub settings: LinkSettings,
    /// Since the world began.
    pub counters: LinkCounters,
}

impl World {
    /// Changes the settings of links.
    ///
    /// # Errors
    /// When a region does not exist.
    pub fn set_links(&self, selection: &Selection, change: &LinkChange) -> Result<()> {
        self.directions(selection)?.into_iter().for_each(|(from, to)| self.router.set_link(from, to, change));
        Ok(())
    }

    /// Cuts links; what is in flight on them is lost too.
    ///
    /// # Errors
    /// When a region does not exist.
    pub fn cut(&self, selection: &Selection) -> Result<()> {
        self.directions(selection)?.into_iter().for_each(|(from, to)| self.router.set_up(from, to, false));
        Ok(())
    }

    /// Heals cut links.
    ///
    /// # Errors
    /// When a region does not exist.
    pub fn heal(&self, selection: &Selection) -> Result<()> {
        self.directions(selection)?.into_iter().for_each(|(from, to)| self.router.set_up(from, to, true));
        Ok(())
    }

    /// Every direction of every link.
    pub fn links(&self) -> Vec<LinkStatus> {
        let regions = self.regions();
        let pairs = (0..regions.len()).flat_map(|from| (0..regions.len()).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let status = |(from, to): (usize, usize)| {
            let (settings, counters) = self.router.link(from, to);
            LinkStatus { from: regions[from].name.clone(), to: regions[to].name.clone(), settings, counters }
        };
        pairs.map(status).collect()
    }

    /// How late the router was since the last reset.
    pub fn lateness(&self) -> LatenessReport {
        self.router.lateness()
    }

    /// Starts measuring the router's lateness anew.
    pub fn reset_lateness(&self) {
        self.router.reset_lateness();
    }

    /// Packets that did not belong to the world and went nowhere.
    pub fn stray_packets(&self) -> u64 {
        self.router.stray()
    }

    /// True when the router has real-time priority.
    pub fn is_router_realtime(&self) -> bool {
        self.router.is_realtime()
    }

    fn directions(&self, selection: &Selection) -> Result<Vec<(usize, usize)>> {
        let places = |name: &str| -> Result<Vec<usize>> {
            if name == "all" { Ok((0..self.regions().len()).collect()) } else { Ok(vec![self.place(name)?]) }
        };
        let (from, to) = (places(&selection.from)?, places(&selection.to)?);
        let there = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to)));
        let mut directions: Vec<(usize, usize)> = there.filter(|(from, to)| from != to).collect();
        if directions.is_empty() {
            bail!("a link joins two regions");
        }
        if !selection.one_way {
            let back: Vec<_> = directions.iter().map(|(from, to)| (*to, *from)).collect();
            directions.extend(back);
        }
        Ok(directions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn both_directions_have_the_pair_s_settings() {
        let region = |(name, index): (&str, u8)| RegionSpec { name: name.into(), address: Ipv4Addr::new(10, index, 0, 1), index };
        let regions: Vec<RegionSpec> = [("fra", 1), ("iad", 2), ("sin", 3), ("moon", 4)].into_iter().map(region).collect();
        let settings = default_links().settings(&regions);
        let latency_ms = |from: usize, to: usize| settings[from][to].latency_us / 1000;
        assert_eq!((latency_ms(0, 1), latency_ms(1, 0), latency_ms(2, 1), latency_ms(0, 3)), (45, 45, 120, 0));
        assert_eq!(settings[0][2].jitter_us, 2000);
    }
}
