//! The table of a region's processes, and what the kernel says about them.

use super::orders::{ExitStatus, ProcessSpec, Report};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a process is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It was ordered, init has not answered yet.
    Starting,
    /// It runs.
    Running,
    /// It is stopped by SIGSTOP.
    Paused,
    /// It could not be started.
    Failed {
        /// Why.
        error: String,
    },
    /// It has ended.
    Exited {
        /// How.
        status: ExitStatus,
    },
}

/// A process as `status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// Its name in the region.
    pub name: String,
    /// Its number as the host sees it, while it runs.
    pub pid: Option<i32>,
    /// What it is doing.
    pub state: ProcessState,
    /// How often it was started.
    pub starts: u32,
    /// CPU seconds of its process group, with those of earlier runs as far as they are known.
    pub cpu_seconds: f64,
    /// Resident memory of its process group.
    pub rss_bytes: u64,
    /// Largest resident memory seen by the kernel, over all runs.
    pub rss_peak_bytes: u64,
}

#[derive(Debug)]
struct Process {
    spec: ProcessSpec,
    state: ProcessState,
    pid: Option<i32>,
    starts: u32,
    past_cpu_seconds: f64,
    rss_peak_bytes: u64,
}

/// All processes that were ever started in a region, by name.
#[derive(Default)]
pub struct Table {
    processes: Mutex<BTreeMap<String, Process>>,
    changed: Condvar,
}

impl Table {
    /// Enters a process that is about to be ordered; false when one of that name runs.
    pub fn begin(&self, spec: &ProcessSpec) -> bool {
        let mut processes = self.lock();
        let process = processes.entry(spec.name.clone()).or_insert_with(|| Process {
            spec: spec.clone(),
            state: ProcessState::Exited { status: ExitStatus::KILLED },
            pid: None,
            starts: 0,
            past_cpu_seconds: 0.0,
            rss_peak_bytes: 0,
        });
        if is_alive(&process.state) {
            return false;
        }
        process.spec = spec.clone();
        process.state = ProcessState::Starting;
        process.starts += 1;
        true
    }

    /// Enters what init said; `init_pid` finds the host's number of a new process.
    pub fn hear(&self, report: Report, init_pid: i32) {
        let (name, state, pid) = match report {
            Report::Ready => return,
            Report::Started { name, inner_pid } => (name, ProcessState::Running, host_pid(init_pid, inner_pid)),
            Report::Failed { name, error } => (name, ProcessState::Failed { error }, None),
            Report::Exited { name, status } => (name, ProcessState::Exited { status }, None),
        };
        self.update(&name, |process| (process.state, process.pid) = (state, pid));
    }

    /// Everything that was alive is dead.
    pub fn all_killed(&self) {
        for process in self.lock().values_mut().filter(|process| is_alive(&process.state)) {
            process.state = ProcessState::Exited { status: ExitStatus::KILLED };
            process.pid = None;
        }
        self.changed.notify_all();
    }

    /// Marks a process as stopped or going on.
    pub fn set_paused(&self, name: &str, paused: bool) {
        self.update(name, |process| match (&process.state, paused) {
            (ProcessState::Running, true) => process.state = ProcessState::Paused,
            (ProcessState::Paused, false) => process.state = ProcessState::Running,
            _ => {}
        });
    }

    /// Names of the processes that are alive.
    pub fn alive(&self) -> Vec<String> {
        self.lock().iter().filter(|(_, process)| is_alive(&process.state)).map(|(name, _)| name.clone()).collect()
    }

    /// What the process of that name was started with.
    pub fn spec(&self, name: &str) -> Option<ProcessSpec> {
        self.lock().get(name).map(|process| process.spec.clone())
    }

    /// Waits until the state of a process satisfies `wanted`; the last state seen otherwise, `None` when there is no such process.
    pub fn wait(&self, name: &str, deadline: Duration, wanted: impl Fn(&ProcessState) -> bool) -> Option<ProcessState> {
        let unwanted = |processes: &mut BTreeMap<String, Process>| processes.get(name).is_some_and(|process| !wanted(&process.state));
        let (processes, _) = self.changed.wait_timeout_while(self.lock(), deadline, unwanted).unwrap_or_else(PoisonError::into_inner);
        processes.get(name).map(|process| process.state.clone())
    }

    /// Waits until nothing is alive; false after the deadline.
    pub fn wait_all_dead(&self, deadline: Duration) -> bool {
        let alive = |processes: &mut BTreeMap<String, Process>| processes.values().any(|process| is_alive(&process.state));
        let (processes, _) = self.changed.wait_timeout_while(self.lock(), deadline, alive).unwrap_or_else(PoisonError::into_inner);
        !processes.values().any(|process| is_alive(&process.state))
    }

    /// The table with the kernel's numbers.
    pub fn statuses(&self, usage: &BTreeMap<i32, Usage>) -> Vec<ProcessStatus> {
        let mut processes = self.lock();
        let status = |(name, process): (&String, &mut Process)| {
            let usage = process.pid.and_then(|pid| usage.get(&pid)).copied().unwrap_or_default();
            process.rss_peak_bytes = process.rss_peak_bytes.max(usage.rss_peak_bytes);
            ProcessStatus {
                name: name.clone(),
                pid: process.pid,
                state: process.state.clone(),
                starts: process.starts,
                cpu_seconds: process.past_cpu_seconds + usage.cpu_seconds,
                rss_bytes: usage.rss_bytes,
                rss_peak_bytes: process.rss_peak_bytes,
            }
        };
        processes.iter_mut().map(status).collect()
    }

    /// Keeps the numbers of processes that are about to be killed.
    pub fn keep_usage(&self, usage: &BTreeMap<i32, Usage>, only: Option<&str>) {
        for (name, process) in self.lock().iter_mut() {
            let usage = process.pid.and_then(|pid| usage.get(&pid)).filter(|_| only.is_none_or(|only| only == name));
            if let Some(usage) = usage {
                process.past_cpu_seconds += usage.cpu_seconds;
                process.rss_peak_bytes = process.rss_peak_bytes.max(usage.rss_peak_bytes);
                process.pid = None;
            }
        }
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.lock().get_mut(name) {
            change(process);
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Process>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True while there is a process to speak of.
pub fn is_alive(state: &ProcessState) -> bool {
    matches!(state, ProcessState::Starting | ProcessState::Running | ProcessState::Paused)
}

/// Numbers of one process group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// User and system time, with that of reaped children.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub rss_bytes: u64,
    /// Largest resident memory.
    pub rss_peak_bytes: u64,
}

/// Usage of every process group of the machine, by its number (proc_pid_stat(5)).
pub fn usage_by_group() -> BTreeMap<i32, Usage> {
    let mut groups: BTreeMap<i32, Usage> = BTreeMap::new();
    for stat in processes_of_the_machine() {
        let Some(fields) = stat_fields(&stat.text) else { continue };
        let number = |place: usize| fields.get(place).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let usage = groups.entry(number(2) as i32).or_default();
        usage.cpu_seconds += (11..15).map(number).sum::<u64>() as f64 / clock_ticks();
        usage.rss_bytes += number(21) * page_bytes();
        usage.rss_peak_bytes += peak_bytes(stat.pid);
    }
    groups
}

/// The processes of which `ancestor` is the parent, or a parent's parent, and so on.
pub fn descendants(ancestor: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> = processes_of_the_machine()
        .filter_map(|stat| stat_fields(&stat.text).and_then(|fields| fields.get(1)?.parse().ok()).map(|parent| (stat.pid, parent)))
        .collect();
    let mut family = vec![ancestor];
    let mut place = 0;
    while let Some(parent) = family.get(place).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        place += 1;
    }
    family.split_off(1)
}

struct Stat {
    pid: i32,
    text: String,
}

fn processes_of_the_machine() -> impl Iterator<Item = Stat> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    numbers.filter_map(|pid| Some(Stat { pid, text: fs::read_to_string(format!("/proc/{pid}/stat")).ok()? }))
}

/// The fields after the program's name (which may hold anything): state is 0, parent 1, group 2, times 11 to 14, resident pages 21.
fn stat_fields(text: &str) -> Option<Vec<&str>> {
    text.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace().collect())
}

fn peak_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|rest| rest.split_ascii_whitespace().next());
    peak.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn clock_ticks() -> f64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as f64
}

fn page_bytes() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096) as u64
}

/// The host's number of a process that init knows as `inner_pid` (proc_pid_status(5): NSpid).
fn host_pid(init_pid: i32, inner_pid: i32) -> Option<i32> {
    descendants(init_pid).into_iter().find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        numbers.split_ascii_whitespace().next_back() == Some(&*inner_pid.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_program_name() {
        let fields = stat_fields("12 (a) b (c) S 7 12 12 0 -1").unwrap();
        assert_eq!(fields[..3], ["S", "7", "12"]);
    }

    #[test]
    fn this_process_has_numbers_and_a_parent() {
        let own = std::process::id() as i32;
        assert!(descendants(nix::unistd::getppid().as_raw()).contains(&own));
        assert!(usage_by_group().values().any(|usage| usage.rss_bytes > 0 && usage.rss_peak_bytes > 0));
    }

    #[test]
    fn a_name_runs_once() {
        let table = Table::default();
        let spec = ProcessSpec { name: "kafka".into(), ..ProcessSpec::default() };
        assert!(table.begin(&spec) && !table.begin(&spec));
        table.hear(Report::Exited { name: "kafka".into(), status: ExitStatus { code: Some(3), signal: None } }, 0);
        let state = table.wait("kafka", Duration::from_secs(1), |state| !is_alive(state)).unwrap();
        assert_eq!(state, ProcessState::Exited { status: ExitStatus { code: Some(3), signal: None } });
        assert!(table.begin(&spec));
        assert_eq!(table.alive(), ["kafka"]);
        table.all_killed();
        assert!(table.wait_all_dead(Duration::ZERO));
    }
}
