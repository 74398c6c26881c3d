//! Plans (what is sent) and drills (a plan with faults), as TOML files.

use crate::faults::Fault;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{fs, path::Path, time::Duration};

/// What is sent: an open-loop load that follows from the seed alone.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Shown in reports.
    pub name: String,
    /// Everything random is drawn from it.
    pub seed: u64,
    /// Length of the load.
    pub duration_s: f64,
    /// What is intended in the first seconds is judged, but not part of the percentiles.
    pub warm_up_s: f64,
    /// Tenants that post, `tenant-01` onwards.
    pub tenants: u16,
    /// Acknowledgement level asked for.
    pub ack: AckLevel,
    /// How arrivals are spaced.
    pub schedule: Arrivals,
    /// Rates, for each region.
    pub load: Rates,
    /// Shares of what is not a plain post.
    pub mix: Mix,
    /// What an event looks like.
    pub event: EventShape,
    /// Bounds of the tester.
    pub limits: Limits,
}

/// `Meridian-Ack` of every request.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum AckLevel {
    /// A quorum of the region.
    Local,
    /// A quorum over the regions.
    Global,
}

impl AckLevel {
    /// The header's value.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Global => "global",
        }
    }
}

/// How arrivals are spaced.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Independent of each other, exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Rates, for each region.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Requests with one event.
    pub singles_per_s: f64,
    /// Requests with a batch.
    pub batches_per_s: f64,
    /// Events of a batch.
    pub batch_events: u16,
}

impl Rates {
    /// Events a second of one region.
    pub fn events_per_s(&self) -> f64 {
        self.singles_per_s + self.batches_per_s * f64::from(self.batch_events)
    }
}

/// Shares of what is not a plain post.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Of all requests: with something in it that must be refused.
    pub invalid: f64,
    /// Of all requests: sent again with the same ids.
    pub repeated: f64,
    /// Of all events: posted again with the same id and another payload.
    pub conflicting: f64,
}

/// What an event looks like.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct EventShape {
    /// CloudEvents `type`: the one that the meters count.
    pub r#type: String,
    /// Meter whose usage is the sum of `amount`.
    pub meter: String,
    /// Bytes of `data`.
    pub bytes: usize,
    /// Different subjects of a tenant.
    pub subjects: u16,
}

/// Bounds of the tester.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// An answer later than this is an unknown outcome.
    pub request_timeout_ms: u64,
    /// Requests under way, for each region.
    pub in_flight_max: usize,
    /// Repeats go to other regions too.
    pub retry_elsewhere: bool,
    /// For decided outcomes and equal tiers, after the load.
    pub converge_s: u64,
}

/// A plan with faults.
#[derive(Clone, Debug)]
pub struct Drill {
    /// Shown in reports.
    pub name: String,
    /// What it does and what has to hold, in a sentence.
    pub about: String,
    /// The load.
    pub plan: Plan,
    /// In order of time.
    pub faults: Vec<Fault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrillFile {
    name: String,
    about: String,
    plan: String,
    #[serde(default)]
    faults: Vec<Fault>,
}

/// What the command line changes of a plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// Events a second of each region; singles and batches keep their proportion.
    pub rate: Option<f64>,
    /// Seconds of load.
    pub duration: Option<f64>,
    /// Another seed.
    pub seed: Option<u64>,
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a valid file of its kind", path.display()))
}

impl Plan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// Names the file and the field that is wrong.
    pub fn read(path: &Path, overrides: Overrides) -> Result<Self> {
        let plan: Self = read(path)?;
        let plan = plan.overridden(overrides);
        plan.check().with_context(|| path.display().to_string())?;
        Ok(plan)
    }

    /// The load's length.
    pub fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.duration_s)
    }

    fn overridden(mut self, Overrides { rate, duration, seed }: Overrides) -> Self {
        if let Some(rate) = rate {
            let factor = rate / self.load.events_per_s();
            self.load.singles_per_s *= factor;
            self.load.batches_per_s *= factor;
        }
        if let Some(duration) = duration {
            self.warm_up_s = self.warm_up_s.min(duration / 10.0);
            self.duration_s = duration;
        }
        self.seed = seed.unwrap_or(self.seed);
        self
    }

    fn check(&self) -> Result<()> {
        let positive = |name: &str, value: f64| {
            ensure!(value.is_finite() && value > 0.0, "{name} = {value}: must be above 0");
            Ok(())
        };
        let share = |name: &str, value: f64| {
            ensure!((0.0..=1.0).contains(&value), "{name} = {value}: must lie between 0 and 1");
            Ok(())
        };
        positive("duration_s", self.duration_s)?;
        ensure!(self.duration_s <= 86_400.0, "duration_s = {}: at most a day", self.duration_s);
        ensure!((0.0..self.duration_s).contains(&self.warm_up_s), "warm_up_s = {}: must be less than duration_s", self.warm_up_s);
        ensure!(self.load.singles_per_s >= 0.0 && self.load.batches_per_s >= 0.0, "load: rates must not be negative");
        positive("load: the rate of events", self.load.events_per_s())?;
        ensure!((1..=1000).contains(&self.load.batch_events), "load.batch_events = {}: 1 to 1000", self.load.batch_events);
        share("mix.invalid", self.mix.invalid)?;
        share("mix.repeated", self.mix.repeated)?;
        share("mix.conflicting", self.mix.conflicting)?;
        ensure!((1..=99).contains(&self.tenants), "tenants = {}: 1 to 99", self.tenants);
        ensure!((40..=256 * 1024).contains(&self.event.bytes), "event.bytes = {}: 40 to 262144", self.event.bytes);
        ensure!(self.event.subjects >= 1, "event.subjects = 0: at least 1");
        ensure!(self.limits.in_flight_max >= 1, "limits.in_flight_max = 0: at least 1");
        ensure!(self.limits.request_timeout_ms >= 100, "limits.request_timeout_ms = {}: at least 100", self.limits.request_timeout_ms);
        Ok(())
    }
}

impl Drill {
    /// Reads and checks a drill and the plan that it names.
    ///
    /// # Errors
    /// Names the file and the field that is wrong.
    pub fn read(path: &Path, overrides: Overrides) -> Result<Self> {
        let DrillFile { name, about, plan, faults } = read(path)?;
        let beside = path.parent().unwrap_or(Path::new("."));
        let plan = Plan::read(&beside.join(&plan), overrides)?;
        let mut faults: Vec<Fault> = faults.iter().flat_map(Fault::each).collect();
        for fault in &faults {
            let at = fault.at;
            ensure!((0.0..=1.0).contains(&at), "{}: a fault's at = {at} must be a fraction of the duration, 0 to 1", path.display());
        }
        faults.sort_by(|a, b| a.at.total_cmp(&b.at));
        Ok(Self { name, about, plan, faults })
    }

    /// A drill without faults.
    pub fn of_plan(plan: Plan) -> Self {
        Self { name: plan.name.clone(), about: String::new(), plan, faults: Vec::new() }
    }

    /// Says whether every region named by a fault is there.
    ///
    /// # Errors
    /// Names the region that is not.
    pub fn check_regions(&self, regions: &[String]) -> Result<()> {
        for fault in &self.faults {
            for region in fault.action.regions() {
                ensure!(
                    regions.iter().any(|known| known == region),
                    "the drill {:?} names region {region:?}, but this world has {}: start it with more regions",
                    self.name,
                    regions.join(", ")
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = include_str!("../plans/default.toml");

    fn drill(text: &str) -> Result<Drill> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("plan.toml"), PLAN).unwrap();
        fs::write(dir.path().join("drill.toml"), text).unwrap();
        Drill::read(&dir.path().join("drill.toml"), Overrides::default())
    }

    #[test]
    fn shipped_files_are_valid() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for kind in ["plans", "drills"] {
            for entry in fs::read_dir(root.join(kind)).unwrap() {
                let path = entry.unwrap().path();
                match kind {
                    "plans" => drop(Plan::read(&path, Overrides::default()).unwrap()),
                    _ => drop(Drill::read(&path, Overrides::default()).unwrap()),
                }
            }
        }
    }

    #[test]
    fn overrides_scale_the_load_and_keep_its_shape() {
        let plan: Plan = toml::from_str(PLAN).unwrap();
        let plan = plan.overridden(Overrides { rate: Some(240.0), duration: Some(20.0), seed: None });
        assert_eq!((plan.load.singles_per_s, plan.load.batches_per_s, plan.load.batch_events), (40.0, 8.0, 25));
        assert_eq!((plan.duration_s, plan.warm_up_s), (20.0, 2.0));
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let fault = "[[faults]]\nat = 0.5\naction = \"kill_region\"\nregion = \"iad\"\nmode = \"crash\"\n";
        let head = "name = \"x\"\nabout = \"y\"\nplan = \"plan.toml\"\n";
        let drill_ok = drill(&format!("{head}{fault}")).unwrap();
        assert!(drill_ok.check_regions(&["fra".into()]).unwrap_err().to_string().contains("\"iad\""));
        for (text, part) in [
            (format!("{head}colour = 1\n{fault}"), "colour"),
            (format!("{head}{}", fault.replace("0.5", "1.5")), "1.5"),
            (format!("{head}{}", fault.replace("kill_region", "nuke")), "nuke"),
            (format!("{head}{}", fault.replace("crash", "gently")), "gently"),
            (format!("{head}{}", fault.replace("region = \"iad\"\n", "")), "region"),
            ("name = \"x\"\nabout = \"y\"\nplan = \"none.toml\"\n".to_owned(), "none.toml"),
        ] {
            let error = format!("{:#}", drill(&text).unwrap_err());
            assert!(error.contains(part), "{part:?} not in {error:?}");
        }
        for (from, to, part) in [
            ("tenants = 20", "tenants = 0", "tenants"),
            ("invalid = 0.01", "invalid = 2.0", "mix.invalid"),
            ("schedule = \"poisson\"", "schedule = \"sometimes\"", "sometimes"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("plan.toml");
            fs::write(&path, PLAN.replace(from, to)).unwrap();
            let error = format!("{:#}", Plan::read(&path, Overrides::default()).unwrap_err());
            assert!(error.contains(part), "{part:?} not in {error:?}");
        }
    }
}
