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

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ActionName {
    KillRegion,
    StartRegion,
    PauseRegion,
    ResumeRegion,
    CutLink,
    HealLink,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultText {
    at: f64,
    action: ActionName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
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
        let FaultText { at, action: name, region, mode, from, to, one_way } = text;
        let about_link = matches!(name, ActionName::CutLink | ActionName::HealLink);
        if about_link && (region.is_some() || mode.is_some()) || !about_link && (from.is_some() || to.is_some() || one_way.is_some()) {
            return Err("a fault of a region has `region`, one of a link `from` and `to`".into());
        }
        let region = || region.clone().ok_or("this fault needs a `region`");
        let ends = || from.clone().zip(to.clone()).ok_or("this fault needs `from` and `to`");
        let action = match name {
            ActionName::KillRegion => Action::KillRegion(region()?, mode.ok_or("kill_region needs a `mode`: crash or blackhole")?),
            ActionName::StartRegion => Action::StartRegion(region()?),
            ActionName::PauseRegion => Action::PauseRegion(region()?),
            ActionName::ResumeRegion => Action::ResumeRegion(region()?),
            ActionName::CutLink => ends().map(|(from, to)| Action::CutLink { from, to, one_way: one_way.unwrap_or(false) })?,
            ActionName::HealLink => ends().map(|(from, to)| Action::HealLink { from, to })?,
        };
        Ok(Self { at, action })
    }
}

impl From<Fault> for FaultText {
    fn from(fault: Fault) -> Self {
        let mut text = Self { at: fault.at, action: ActionName::KillRegion, region: None, mode: None, from: None, to: None, one_way: None };
        match fault.action {
            Action::KillRegion(region, mode) => (text.region, text.mode) = (Some(region), Some(mode)),
            Action::StartRegion(region) => (text.action, text.region) = (ActionName::StartRegion, Some(region)),
            Action::PauseRegion(region) => (text.action, text.region) = (ActionName::PauseRegion, Some(region)),
            Action::ResumeRegion(region) => (text.action, text.region) = (ActionName::ResumeRegion, Some(region)),
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
            Self::CutLink { from, to, .. } | Self::HealLink { from, to } => vec![from, to],
        }
    }

    /// Regions whose processes end by it: their mirrors may append a position again.
    pub fn restarts(&self) -> Option<&str> {
        match self {
            Self::KillRegion(region, _) => Some(region),
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
        let (kill, start, pause, resume, cut) = (run.clone(), run.clone(), run.clone(), run.clone(), run.clone());
        Self {
            kill_region: effect(move |(region, mode): (String, KillMode)| kill(words(&["kill", &region, "--mode", mode.name()]))),
            start_region: effect(move |region: String| start(words(&["start", &region, "--no-wait"]))),
            pause_region: effect(move |region: String| pause(words(&["pause", &region]))),
            resume_region: effect(move |region: String| resume(words(&["resume", &region]))),
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
        let Self { kill_region, start_region, pause_region, resume_region, cut_link, heal_link } = self;
        match action.clone() {
            Action::KillRegion(region, mode) => kill_region((region, mode)).await,
            Action::StartRegion(region) => start_region(region).await,
            Action::PauseRegion(region) => pause_region(region).await,
            Action::ResumeRegion(region) => resume_region(region).await,
            Action::CutLink { from, to, one_way } => cut_link(LinkCut { from, to, one_way }).await,
            Action::HealLink { from, to } => heal_link((from, to)).await,
        }
    }
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
        ] {
            let fault = Fault { at: 0.25, action };
            assert_eq!(toml::from_str::<Fault>(&toml::to_string(&fault).unwrap()).unwrap(), fault);
        }
    }

    #[test]
    fn fields_of_another_fault_are_refused() {
        for text in [
            "at = 0.1\naction = \"cut_link\"\nfrom = \"fra\"",
            "at = 0.1\naction = \"start_region\"\nfrom = \"fra\"\nto = \"iad\"\nregion = \"fra\"",
            "at = 0.1\naction = \"kill_region\"\nregion = \"fra\"",
        ] {
            assert!(toml::from_str::<Fault>(text).is_err(), "{text}");
        }
    }
}
