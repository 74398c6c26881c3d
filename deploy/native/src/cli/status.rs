//! `status`: a world as tables.

use super::metrics::{self, Sample};
use crate::control::{Client, Phase, RegionStatus, StateDir, Status};
use crate::world::{ProcessState, ProcessStatus};
use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;

const LAG: &str = "meridian_lag_seconds";
const WATERMARK_AGE: &str = "meridian_watermark_age_seconds";
const PARKED: &str = "meridian_parked_records";
const DEAD_LETTERS: &str = "meridian_dead_letters";
/// Exit code of `status` when there is a world that is not, or no longer, ready.
const NOT_READY: i32 = 3;
/// The order in which an event passes them.
const HOPS: [&str; 5] = ["relay", "mirror", "sink", "feed", "consumer"];

pub fn status(dir: &StateDir, json: bool) -> Result<i32> {
    let status = Client::of(dir)?.status()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        print(&status);
    }
    Ok(if matches!(status.phase, Phase::Ready) { 0 } else { NOT_READY })
}

/// Prints all that a person wants to know.
pub fn print(status: &Status) {
    let phase = match &status.phase {
        Phase::Starting => "starting".into(),
        Phase::Ready => "ready".into(),
        Phase::Ending => "ending".into(),
        Phase::Failed(reason) => format!("failed: {reason}"),
    };
    println!("world {phase}, up for {:.0} s, launcher {}", status.seconds, status.pid);
    if let Some(folder) = &status.folder {
        println!("disks, logs and keys (secrets/dev-keys.toml): {}", folder.display());
    }
    for remark in &status.remarks {
        println!("note: {remark}");
    }
    println!("{}", processes(&status.regions));
    let ports = ports(&status.regions);
    if !ports.is_empty() {
        println!("{ports}");
    }
    let said = ask_all(&status.regions);
    if said.iter().any(|(_, services)| !services.is_empty()) {
        println!("{}\n{}", lag(&said), counts(&said));
    }
}

fn table<const COLUMNS: usize>(header: [&str; COLUMNS], right_from: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    table.column_iter_mut().skip(right_from).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn processes(regions: &[RegionStatus]) -> Table {
    let mut table = table(["region", "address", "process", "state", "pid", "starts", "CPU s", "RSS MiB", "peak MiB"], 4);
    for region in regions {
        let state = if region.up { "up" } else { "DOWN" };
        table.add_row([&*region.name, &region.address, "", state, "", "", "", "", ""]);
        for process in &region.processes {
            let mib = |bytes: u64| format!("{:.0}", bytes as f64 / 1_048_576.0);
            table.add_row([
                String::new(),
                String::new(),
                process.name.clone(),
                state_word(process),
                process.pid.map(|pid| pid.to_string()).unwrap_or_default(),
                process.starts.to_string(),
                format!("{:.1}", process.cpu_seconds),
                mib(process.rss_bytes),
                mib(process.rss_peak_bytes),
            ]);
        }
    }
    table
}

fn state_word(process: &ProcessStatus) -> String {
    match &process.state {
        ProcessState::Starting => "starting".into(),
        ProcessState::Running => "running".into(),
        ProcessState::Paused => "PAUSED".into(),
        ProcessState::Failed { error } => format!("FAILED: {error}"),
        ProcessState::Exited { status } if status.success() => "done".into(),
        ProcessState::Exited { status } => format!("ENDED: {status}"),
    }
}

/// Services against regions: the addresses that a person can use from the host.
fn ports(regions: &[RegionStatus]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(std::iter::once("from the host").chain(regions.iter().map(|region| &*region.name)));
    let mut names: Vec<&String> = regions.iter().flat_map(|region| region.exposed.keys()).collect();
    names.sort_unstable();
    names.dedup();
    // Not those of services that this world was started without; a port that somebody exposed is known by its number.
    let is_there = |name: &str| {
        regions.iter().any(|region| region.processes.iter().any(|process| process.name == name)) || name.parse::<u16>().is_ok()
    };
    for name in names.into_iter().filter(|name| is_there(name)) {
        let address = |region: &RegionStatus| region.exposed.get(name).map(ToString::to_string).unwrap_or_default();
        table.add_row(std::iter::once(name.clone()).chain(regions.iter().map(address)));
    }
    table
}

/// What the services of a region say about themselves: by service.
type Said = BTreeMap<String, Vec<Sample>>;

/// Asks every service of every region at once.
fn ask_all(regions: &[RegionStatus]) -> Vec<(String, Said)> {
    let names = [LAG, WATERMARK_AGE, PARKED, DEAD_LETTERS];
    std::thread::scope(|scope| {
        let asked: Vec<_> = regions.iter().map(|region| (region, ask(scope, region, names))).collect();
        let answered = asked.into_iter().map(|(region, services)| {
            let said = services.into_iter().filter_map(|(service, answer)| Some((service, answer.join().ok()??)));
            (region.name.clone(), said.collect())
        });
        answered.collect()
    })
}

type Answer<'scope> = std::thread::ScopedJoinHandle<'scope, Option<Vec<Sample>>>;

fn ask<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    region: &RegionStatus,
    names: [&'static str; 4],
) -> Vec<(String, Answer<'scope>)> {
    let runs = |service: &str| region.processes.iter().any(|process| process.name == service && process.state == ProcessState::Running);
    let services =
        region.exposed.iter().filter(|(service, _)| region.up && runs(service) && !["clickhouse", "nats"].contains(&&***service));
    services
        .map(|(service, address)| {
            (
                service.clone(),
                scope.spawn({
                    let address = *address;
                    move || metrics::read(address, &names)
                }),
            )
        })
        .collect()
}

/// Lag in seconds and age of the watermark, by origin → region and hop.
fn lag(said: &[(String, Said)]) -> Table {
    let mut rows: BTreeMap<(String, String), BTreeMap<String, f64>> = BTreeMap::new();
    let mut hops: Vec<String> = Vec::new();
    for (region, services) in said {
        for (service, sample) in services.iter().flat_map(|(service, samples)| samples.iter().map(move |sample| (service, sample))) {
            let hop = match &*sample.name {
                LAG => sample.label("hop").to_string(),
                WATERMARK_AGE => format!("watermark age ({service})"),
                _ => continue,
            };
            let origin = Some(sample.label("origin")).filter(|origin| !origin.is_empty()).unwrap_or(region);
            let worst = rows.entry((origin.into(), region.clone())).or_default().entry(hop.clone()).or_insert(sample.value);
            *worst = worst.max(sample.value);
            hops.push(hop);
        }
    }
    hops.sort_by_cached_key(|hop| (HOPS.iter().position(|known| known == hop).unwrap_or(HOPS.len()), hop.clone()));
    hops.dedup();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header(std::iter::once("seconds behind".to_string()).chain(hops.iter().cloned()));
    for ((origin, region), values) in &rows {
        let value = |hop: &String| values.get(hop).map(|seconds| format!("{seconds:.3}")).unwrap_or_default();
        table.add_row(std::iter::once(format!("{origin} → {region}")).chain(hops.iter().map(value)));
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Records that were set aside, by region.
fn counts(said: &[(String, Said)]) -> Table {
    let mut table = table(["region", "parked", "dead letters", "services that answer"], 1);
    for (region, services) in said {
        let sum =
            |name: &str| services.values().flatten().filter(|sample| sample.name == name).map(|sample| sample.value as u64).sum::<u64>();
        let names: Vec<&str> = services.keys().map(|service| &**service).collect();
        table.add_row([region.clone(), sum(PARKED).to_string(), sum(DEAD_LETTERS).to_string(), names.join(" ")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_is_shown_by_pair_and_hop() {
        let sample = |name: &str, labels: &[(&str, &str)], value| Sample {
            name: name.into(),
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            value,
        };
        let sink = vec![sample(LAG, &[("origin", "fra"), ("hop", "stored")], 0.25), sample(WATERMARK_AGE, &[("origin", "fra")], 1.5)];
        let feed = vec![sample(LAG, &[("origin", "fra"), ("hop", "stored")], 0.75), sample(PARKED, &[], 2.0)];
        let said = vec![("iad".to_string(), Said::from([("sink".into(), sink), ("feed".into(), feed)]))];
        let text = lag(&said).to_string();
        assert!(["fra → iad", "stored", "0.750", "watermark age (sink)", "1.500"].iter().all(|part| text.contains(part)), "{text}");
        assert!(!text.contains("0.250"), "{text}");
        assert!(counts(&said).to_string().contains("feed sink"));
    }
}
