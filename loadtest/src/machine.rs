//! What a run ran on: machine, commit, engines, network, processes.

use crate::{
    native,
    report::json::{Commit, Engine, Lateness, Link, Machine, ProcessReport, Wan},
    world::World,
};
use anyhow::Result;
use serde_json::Value;
use std::{fs, path::Path, process::Command, thread};

/// CPU and memory so far.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    processes: Vec<ProcessReport>,
    machine_busy_s: f64,
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.trim_start_matches(key).trim_start_matches([':', '=', ' ', '\t']).trim_matches('"').trim())
}

/// The machine.
pub fn machine() -> Machine {
    let kib = |key| after(&read("/proc/meminfo"), key).and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or_default();
    Machine {
        cpu: after(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown").into(),
        cores: thread::available_parallelism().map_or(0, usize::from),
        memory_mib: kib("MemTotal") / 1024,
        kernel: read("/proc/sys/kernel/osrelease").trim().into(),
        system: after(&read("/etc/os-release"), "PRETTY_NAME").unwrap_or("unknown").into(),
        load_before: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default(),
        cpu_seconds_elsewhere: 0.0,
        clock: "all regions share one host and one clock".into(),
    }
}

/// The commit of the first of `folders` that lies in a checkout.
pub fn commit(folders: &[&Path]) -> Commit {
    let of = |folder: &Path| {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let id = git(&["rev-parse", "HEAD"])?;
        let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
        Some(Commit { id, dirty })
    };
    folders.iter().find_map(|folder| of(folder)).unwrap_or_default()
}

/// The engines, as the launcher names them.
pub fn engines(world: &World) -> Vec<Engine> {
    serde_json::from_value(world.engines.clone()).unwrap_or_default()
}

fn number(value: &Value, path: &[&str]) -> f64 {
    path.iter().try_fold(value, |value, key| value.get(key)).and_then(Value::as_f64).unwrap_or_default()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().into()
}

/// The network, as the launcher tells it.
///
/// # Errors
/// When the launcher does not answer.
pub async fn wan(world: &World) -> Result<Wan> {
    let answer = native::json(&world.file, &["links", "--json"]).await?;
    let link = |link: &Value| Link {
        from: text(link, "from"),
        to: text(link, "to"),
        latency_ms: number(link, &["settings", "latency_us"]) / 1e3,
        jitter_ms: number(link, &["settings", "jitter_us"]) / 1e3,
        loss: number(link, &["settings", "loss"]),
        duplicate: number(link, &["settings", "duplicate"]),
        rate_bits: number(link, &["settings", "rate_bits"]) as u64,
        packets: number(link, &["counters", "packets"]) as u64,
        bytes: number(link, &["counters", "bytes"]) as u64,
    };
    let ms = |key| number(&answer, &["lateness", key]) / 1e3;
    Ok(Wan {
        links: answer.get("links").and_then(Value::as_array).map(|links| links.iter().map(link).collect()).unwrap_or_default(),
        router_lateness: Lateness {
            packets: number(&answer, &["lateness", "packets"]) as u64,
            p50_ms: ms("p50_us"),
            p99_ms: ms("p99_us"),
            max_ms: ms("max_us"),
        },
    })
}

/// Measures the router's lateness anew from now on; a launcher that cannot is not asked twice.
pub async fn reset_lateness(world: &World) {
    if let Err(error) = native::run(&world.file, &["links".into(), "--reset".into()]).await {
        tracing::debug!(error = format!("{error:#}"), "the router's lateness is that of its whole life");
    }
}

/// CPU and memory of every process of the world, and of this one.
///
/// # Errors
/// When the launcher does not answer.
pub async fn usage(world: &World) -> Result<Usage> {
    let status = native::json(&world.file, &["status", "--json"]).await?;
    let mut processes = Vec::new();
    for region in status.get("regions").and_then(Value::as_array).into_iter().flatten() {
        for process in region.get("processes").and_then(Value::as_array).into_iter().flatten() {
            processes.push(ProcessReport {
                region: text(region, "name"),
                name: text(process, "name"),
                cpu_seconds: number(process, &["cpu_seconds"]),
                peak_rss_mib: number(process, &["rss_peak_bytes"]) / 1_048_576.0,
                starts: number(process, &["starts"]) as u64,
            });
        }
    }
    processes.push(of_pid(number(&status, &["pid"]) as u32, "router and launcher"));
    processes.push(of_pid(std::process::id(), "loadtest"));
    Ok(Usage { processes, machine_busy_s: machine_busy_s() })
}

/// What was used between two readings, and how many CPU seconds somebody else used meanwhile.
pub fn used(before: &Usage, after: &Usage) -> (Vec<ProcessReport>, f64) {
    let mut processes = after.processes.clone();
    for process in &mut processes {
        let earlier = before.processes.iter().find(|earlier| (&earlier.region, &earlier.name) == (&process.region, &process.name));
        process.cpu_seconds = (process.cpu_seconds - earlier.map_or(0.0, |earlier| earlier.cpu_seconds)).max(0.0);
    }
    let ours: f64 = processes.iter().map(|process| process.cpu_seconds).sum();
    (processes, (after.machine_busy_s - before.machine_busy_s - ours).max(0.0))
}

/// Clock ticks a second of /proc (proc(5)); 100 on every Linux that user programs see.
const TICKS: f64 = 100.0;

fn of_pid(pid: u32, name: &str) -> ProcessReport {
    let stat = read(&format!("/proc/{pid}/stat"));
    // After the name, which may hold anything: state is field 3, utime 14, stime 15.
    let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |index: usize| fields.get(index - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    let status = read(&format!("/proc/{pid}/status"));
    let peak_kib = after(&status, "VmHWM").and_then(|text| text.split(' ').next()?.parse::<f64>().ok()).unwrap_or_default();
    ProcessReport {
        region: String::new(),
        name: name.into(),
        cpu_seconds: (ticks(14) + ticks(15)) / TICKS,
        peak_rss_mib: peak_kib / 1024.0,
        starts: 1,
    }
}

/// CPU seconds that the machine was not idle (first line of /proc/stat: user nice system idle iowait irq softirq …).
fn machine_busy_s() -> f64 {
    let stat = read("/proc/stat");
    let ticks: Vec<f64> = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|index| ticks.get(*index)).sum::<f64>();
    busy / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_process_are_read() {
        let machine = machine();
        assert!(machine.cores > 0 && machine.memory_mib > 100 && !machine.kernel.is_empty());
        assert!(of_pid(std::process::id(), "me").peak_rss_mib > 1.0);
        assert!(machine_busy_s() > 0.0);
    }

    #[test]
    fn what_was_used_is_a_difference() {
        let process = |cpu_seconds| ProcessReport { name: "sink".into(), region: "fra".into(), cpu_seconds, ..ProcessReport::default() };
        let reading = |cpu_seconds, machine_busy_s| Usage { processes: vec![process(cpu_seconds)], machine_busy_s };
        let (processes, elsewhere) = used(&reading(2.0, 10.0), &reading(5.0, 20.0));
        assert_eq!((processes[0].cpu_seconds, elsewhere), (3.0, 7.0));
    }
}
