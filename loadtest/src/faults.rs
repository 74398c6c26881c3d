//! Faults of a drill: what is done to the world, and when.

use crate::native;
use anyhow::Result;
use kit::{Effect, effect};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// One fault at its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "FaultText", into = "FaultText")]
pub struct Fault {
    /// When, as a fraction of the load's duration.
    pub at: f64,
    /// What.
    pub action: Action,
    /// How often in all,
    pub times: u32,
    /// each this fraction of the load's duration after the one before.
    pub every: f64,
}

impl Fault {
    /// Once, at its time.
    pub fn once(at: f64, action: Action) -> Self {
        Self { at, action, times: 1, every: 0.0 }
    }

    /// Each time by itself.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        (0..self.times).map(|number| Self::once(self.at + f64::from(number) * self.every, self.action.clone()))
    }
}

/// What can be done to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ends every process of a region.
    KillRegion(String, KillMode),
    /// Starts a killed region again; does not wait till it is ready.
    StartRegion(String),
    /// Stops every process of a region without ending it.
    PauseRegion(String),
    /// Lets a paused region go on.
    ResumeRegion(String),
    /// Does something to one process of a region.
    Process {
        /// Its region.
        region: String,
        /// Its name there, such as `kafka`.
        process: String,
        /// What.
        deed: Deed,
    },
    /// Changes a link.
    SetLink {
        /// Sender.
        from: String,
        /// Receiver.
        to: String,
        /// How.
        change: LinkChange,
    },
    /// Nothing passes from the first region to the second, nor back unless one way.
    CutLink {
        /// Sender.
        from: String,
        /// Receiver.
        to: String,
        /// Only this direction.
        one_way: bool,
    },
    /// Undoes a cut.
    HealLink {
        /// One end.
        from: String,
        /// The other.
        to: String,
    },
}

/// What can be done to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Ends it at once.
    Kill,
    /// Starts it again.
    Start,
    /// Ends it at once and starts it again.
    Restart,
    /// Stops it without ending it.
    Pause,
    /// Lets it go on.
    Resume,
}

impl Deed {
    fn past(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Start => "started",
            Self::Restart => "killed and started",
            Self::Pause => "paused",
            Self::Resume => "resumed",
        }
    }
}

/// What becomes of a link; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// One-way delay, milliseconds.
    pub latency_ms: Option<u32>,
    /// Packets lost, of a thousand.
    pub loss_permille: Option<u32>,
    /// Only from the first region to the second.
    pub one_way: bool,
}

/// What the others see of a killed region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillMode {
    /// Connections are reset.
    Crash,
    /// Silence.
    Blackhole,
}

impl KillMode {
    fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Blackhole => "blackhole",
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ActionName {
    #[default]
    KillRegion,
    StartRegion,
    PauseRegion,
    ResumeRegion,
    KillProcess,
    StartProcess,
    RestartProcess,
    PauseProcess,
    ResumeProcess,
    SetLink,
    CutLink,
    HealLink,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultText {
    at: f64,
    action: ActionName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latency_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss_permille: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<KillMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    one_way: Option<bool>,
}

impl TryFrom<FaultText> for Fault {
    type Error = String;
    fn try_from(text: FaultText) -> Result<Self, String> {
        let FaultText { at, action: name, times, every, region, process, latency_ms, loss_permille, mode, from, to, one_way } = text;
        let about_link = matches!(name, ActionName::CutLink | ActionName::HealLink | ActionName::SetLink);
        if about_link && (region.is_some() || mode.is_some()) || !about_link && (from.is_some() || to.is_some() || one_way.is_some()) {
            return Err("a fault of a region has `region`, one of a link `from` and `to`".into());
        }
        if name.deed().is_none() && process.is_some() {
            return Err("this fault is about a whole region or a link, not about a `process`".into());
        }
        if name != ActionName::SetLink && (latency_ms.is_some() || loss_permille.is_some()) {
            return Err("`latency_ms` and `loss_permille` belong to set_link".into());
        }
        let (times, every) = match (times, every) {
            (None, None) => (1, 0.0),
            (Some(times @ 1..=1000), Some(every)) if every > 0.0 => (times, every),
            _ => return Err("`times`, at most 1000, and `every` belong together".into()),
        };
        let again = |action| Self { at, action, times, every };
        let region = || region.clone().ok_or("this fault needs a `region`");
        let ends = || from.clone().zip(to.clone()).ok_or("this fault needs `from` and `to`");
        let one_way = one_way.unwrap_or(false);
        if let Some(deed) = name.deed() {
            let process = process.ok_or("this fault needs a `process`")?;
            return Ok(again(Action::Process { region: region()?, process, deed }));
        }
        let action = match name {
            ActionName::KillRegion => Action::KillRegion(region()?, mode.ok_or("kill_region needs a `mode`: crash or blackhole")?),
            ActionName::StartRegion => Action::StartRegion(region()?),
            ActionName::PauseRegion => Action::PauseRegion(region()?),
            ActionName::CutLink => ends().map(|(from, to)| Action::CutLink { from, to, one_way })?,
            ActionName::HealLink => ends().map(|(from, to)| Action::HealLink { from, to })?,
            ActionName::SetLink => {
                let change = LinkChange { latency_ms, loss_permille, one_way };
                ends().map(|(from, to)| Action::SetLink { from, to, change })?
            }
            _ => Action::ResumeRegion(region()?),
        };
        Ok(again(action))
    }
}

impl ActionName {
    fn deed(self) -> Option<Deed> {
        DEEDS.iter().find(|(name, _)| *name == self).map(|(_, deed)| *deed)
    }
}

const DEEDS: [(ActionName, Deed); 5] = [
    (ActionName::KillProcess, Deed::Kill),
    (ActionName::StartProcess, Deed::Start),
    (ActionName::RestartProcess, Deed::Restart),
    (ActionName::PauseProcess, Deed::Pause),
    (ActionName::ResumeProcess, Deed::Resume),
];

impl From<Fault> for FaultText {
    fn from(fault: Fault) -> Self {
        let again = fault.times > 1;
        let (times, every) = (again.then_some(fault.times), again.then_some(fault.every));
        let mut text = Self { at: fault.at, times, every, ..Self::default() };
        match fault.action {
            Action::KillRegion(region, mode) => (text.region, text.mode) = (Some(region), Some(mode)),
            Action::StartRegion(region) => (text.action, text.region) = (ActionName::StartRegion, Some(region)),
            Action::PauseRegion(region) => (text.action, text.region) = (ActionName::PauseRegion, Some(region)),
            Action::ResumeRegion(region) => (text.action, text.region) = (ActionName::ResumeRegion, Some(region)),
            Action::Process { region, process, deed } => {
                (text.region, text.process) = (Some(region), Some(process));
                text.action = DEEDS.iter().find(|(_, known)| *known == deed).map(|(name, _)| *name).unwrap_or_default();
            }
            Action::SetLink { from, to, change: LinkChange { latency_ms, loss_permille, one_way } } => {
                (text.action, text.from, text.to, text.one_way) = (ActionName::SetLink, Some(from), Some(to), Some(one_way));
                (text.latency_ms, text.loss_permille) = (latency_ms, loss_permille);
            }
            Action::CutLink { from, to, one_way } => {
                (text.action, text.from, text.to, text.one_way) = (ActionName::CutLink, Some(from), Some(to), Some(one_way));
            }
            Action::HealLink { from, to } => (text.action, text.from, text.to) = (ActionName::HealLink, Some(from), Some(to)),
        }
        text
    }
}

impl Action {
    /// Regions that must exist for it.
    pub fn regions(&self) -> Vec<&str> {
        match self {
            Self::KillRegion(region, _) | Self::StartRegion(region) | Self::PauseRegion(region) | Self::ResumeRegion(region) => {
                vec![region]
            }
            Self::Process { region, .. } => vec![region],
            Self::CutLink { from, to, .. } | Self::HealLink { from, to } | Self::SetLink { from, to, .. } => vec![from, to],
        }
    }

    /// A region whose mirror, or the log under it, ends by it: it may append a position again.
    pub fn restarts(&self) -> Option<&str> {
        match self {
            Self::KillRegion(region, _) => Some(region),
            Self::Process { region, process, deed: Deed::Kill | Deed::Restart } if ["mirror", "kafka"].contains(&&**process) => {
                Some(region)
            }
            _ => None,
        }
    }

    /// In words, as shown in reports.
    pub fn words(&self) -> String {
        match self {
            Self::KillRegion(region, KillMode::Crash) => format!("{region} killed"),
            Self::KillRegion(region, KillMode::Blackhole) => format!("{region} killed, silent"),
            Self::StartRegion(region) => format!("{region} started"),
            Self::PauseRegion(region) => format!("{region} paused"),
            Self::ResumeRegion(region) => format!("{region} resumed"),
            Self::Process { region, process, deed } => format!("{region}: {process} {}", deed.past()),
            Self::SetLink { from, to, change } => {
                let latency = change.latency_ms.map(|ms| format!(" {ms} ms")).unwrap_or_default();
                let loss = change.loss_permille.map(|loss| format!(" {} % lost", f64::from(loss) / 10.0)).unwrap_or_default();
                format!("{from} {} {to}:{latency}{loss}", if change.one_way { "→" } else { "–" })
            }
            Self::CutLink { from, to, one_way: true } => format!("{from} → {to} cut"),
            Self::CutLink { from, to, one_way: false } => format!("{from} – {to} cut"),
            Self::HealLink { from, to } => format!("{from} – {to} healed"),
        }
    }
}

/// A direction or both of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkCut {
    /// Sender.
    pub from: String,
    /// Receiver.
    pub to: String,
    /// Only this direction.
    pub one_way: bool,
}

/// Everything that a drill does to the world.
#[derive(Clone)]
pub struct Effects {
    /// Ends every process of a region.
    pub kill_region: Effect<(String, KillMode), ()>,
    /// Starts a killed region, without waiting till it is ready.
    pub start_region: Effect<String, ()>,
    /// Stops every process of a region.
    pub pause_region: Effect<String, ()>,
    /// Lets a paused region go on.
    pub resume_region: Effect<String, ()>,
    /// Ends one process at once.
    pub kill_process: Effect<(String, String), ()>,
    /// Starts one process that ended.
    pub start_process: Effect<(String, String), ()>,
    /// Stops one process without ending it.
    pub pause_process: Effect<(String, String), ()>,
    /// Lets one process go on.
    pub resume_process: Effect<(String, String), ()>,
    /// Changes a link.
    pub set_link: Effect<(String, String, LinkChange), ()>,
    /// Cuts a link.
    pub cut_link: Effect<LinkCut, ()>,
    /// Heals a link.
    pub heal_link: Effect<(String, String), ()>,
}

impl Effects {
    /// Effects through the launcher of the world at `world`.
    pub fn of_launcher(world: PathBuf) -> Self {
        let world = Arc::new(world);
        let run = move |arguments: Vec<String>| {
            let world = Arc::clone(&world);
            async move { native::run(&world, &arguments).await.map(drop) }
        };
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let of_process = |verb: &'static str| {
            let run = run.clone();
            effect(move |(region, process): (String, String)| run(words(&[verb, &region, &process])))
        };
        let of_region = |verb: &'static str| {
            let run = run.clone();
            effect(move |region: String| run(words(&[verb, &region])))
        };
        let (kill, start, set, cut) = (run.clone(), run.clone(), run.clone(), run.clone());
        Self {
            kill_region: effect(move |(region, mode): (String, KillMode)| kill(words(&["kill", &region, "--mode", mode.name()]))),
            start_region: effect(move |region: String| start(words(&["start", &region, "--no-wait"]))),
            pause_region: of_region("pause"),
            resume_region: of_region("resume"),
            kill_process: of_process("kill-process"),
            start_process: of_process("start-process"),
            pause_process: of_process("pause"),
            resume_process: of_process("resume"),
            set_link: effect(move |(from, to, change): (String, String, LinkChange)| set(link_words(&from, &to, change))),
            cut_link: effect(move |LinkCut { from, to, one_way }: LinkCut| {
                let mut arguments = words(&["cut", &from, &to]);
                arguments.extend(one_way.then(|| "--one-way".to_owned()));
                cut(arguments)
            }),
            heal_link: effect(move |(from, to): (String, String)| run(words(&["heal", &from, &to]))),
        }
    }

    /// Carries out one action.
    ///
    /// # Errors
    /// When the world refuses it.
    pub async fn apply(&self, action: &Action) -> Result<()> {
        match action.clone() {
            Action::KillRegion(region, mode) => (self.kill_region)((region, mode)).await,
            Action::StartRegion(region) => (self.start_region)(region).await,
            Action::PauseRegion(region) => (self.pause_region)(region).await,
            Action::ResumeRegion(region) => (self.resume_region)(region).await,
            Action::Process { region, process, deed } => self.apply_to_process(region, process, deed).await,
            Action::SetLink { from, to, change } => (self.set_link)((from, to, change)).await,
            Action::CutLink { from, to, one_way } => (self.cut_link)(LinkCut { from, to, one_way }).await,
            Action::HealLink { from, to } => (self.heal_link)((from, to)).await,
        }
    }

    async fn apply_to_process(&self, region: String, process: String, deed: Deed) -> Result<()> {
        let named = (region, process);
        match deed {
            Deed::Kill => (self.kill_process)(named).await,
            Deed::Start => (self.start_process)(named).await,
            Deed::Restart => {
                (self.kill_process)(named.clone()).await?;
                (self.start_process)(named).await
            }
            Deed::Pause => (self.pause_process)(named).await,
            Deed::Resume => (self.resume_process)(named).await,
        }
    }
}

fn link_words(from: &str, to: &str, change: LinkChange) -> Vec<String> {
    let LinkChange { latency_ms, loss_permille, one_way } = change;
    let mut words = vec!["link".to_owned(), from.to_owned(), to.to_owned()];
    words.extend(one_way.then(|| "--one-way".to_owned()));
    words.extend(latency_ms.iter().flat_map(|ms| ["--latency".to_owned(), format!("{ms}ms")]));
    words.extend(loss_permille.iter().flat_map(|loss| ["--loss".to_owned(), format!("{}%", f64::from(*loss) / 10.0)]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_back_what_they_write() {
        for action in [
            Action::KillRegion("iad".into(), KillMode::Blackhole),
            Action::StartRegion("iad".into()),
            Action::PauseRegion("fra".into()),
            Action::ResumeRegion("fra".into()),
            Action::CutLink { from: "fra".into(), to: "iad".into(), one_way: true },
            Action::HealLink { from: "fra".into(), to: "iad".into() },
            Action::Process { region: "fra".into(), process: "kafka".into(), deed: Deed::Pause },
            Action::SetLink {
                from: "fra".into(),
                to: "iad".into(),
                change: LinkChange { latency_ms: Some(300), loss_permille: Some(20), one_way: false },
            },
        ] {
            let fault = Fault { at: 0.25, action, times: 3, every: 0.125 };
            assert_eq!(toml::from_str::<Fault>(&toml::to_string(&fault).unwrap()).unwrap(), fault);
        }
    }

    #[test]
    fn a_link_is_set_in_the_launchers_words() {
        let change = LinkChange { latency_ms: Some(300), loss_permille: Some(25), one_way: true };
        assert_eq!(link_words("fra", "sin", change).join(" "), "link fra sin --one-way --latency 300ms --loss 2.5%");
    }

    #[test]
    fn fields_of_another_fault_are_refused() {
        for text in [
            "at = 0.1\naction = \"cut_link\"\nfrom = \"fra\"",
            "at = 0.1\naction = \"start_region\"\nfrom = \"fra\"\nto = \"iad\"\nregion = \"fra\"",
            "at = 0.1\naction = \"kill_region\"\nregion = \"fra\"",
            "at = 0.1\naction = \"kill_process\"\nregion = \"fra\"",
            "at = 0.1\naction = \"start_region\"\nregion = \"fra\"\nprocess = \"kafka\"",
            "at = 0.1\naction = \"cut_link\"\nfrom = \"fra\"\nto = \"iad\"\nlatency_ms = 3",
        ] {
            assert!(toml::from_str::<Fault>(text).is_err(), "{text}");
        }
    }
}
