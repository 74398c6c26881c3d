//! Commands that ask a living world for one thing.

use super::arguments::LinkArguments;
use crate::control::{Client, Links, Request, Response, StateDir};
use crate::world::router::LinkSettings;
use crate::world::{KillMode, Selection, Signal};
use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};
use nix::sys::signal::kill as send_signal;
use nix::unistd::Pid;
use std::time::Duration;

/// How long a world may take to end before its launcher is killed, which ends the rest.
const DOWN_DEADLINE: Duration = Duration::from_secs(20);
const KILLED_DEADLINE: Duration = Duration::from_secs(5);

fn ask(dir: &StateDir, request: &Request) -> Result<i32> {
    Client::of(dir)?.call_with(request, |line| eprintln!("{line}")).map(|_| 0)
}

pub fn down(dir: &StateDir) -> Result<i32> {
    let Some(launcher) = dir.holder() else {
        // A launcher that was killed could not do it.
        dir.clean();
        println!("no world is up in {}", dir.path().display());
        return Ok(0);
    };
    // A launcher that no longer listens is ended all the same, below.
    let _ = Client::of(dir).and_then(|client| client.call(&Request::Down));
    if dir.wait_free(DOWN_DEADLINE) {
        println!("the world in {} is down", dir.path().display());
        return Ok(0);
    }
    if launcher > 1 {
        eprintln!("the launcher {launcher} does not end by itself: killing it");
        let _ = send_signal(Pid::from_raw(launcher), Signal::SIGKILL);
    }
    if !dir.wait_free(KILLED_DEADLINE) {
        bail!("the launcher {launcher} does not end");
    }
    dir.clean();
    Ok(0)
}

pub fn link(dir: &StateDir, from: String, to: String, one_way: bool, change: LinkArguments) -> Result<i32> {
    ask(dir, &Request::Link { selection: Selection { from, to, one_way }, change: change.into() })
}

pub fn cut(dir: &StateDir, from: String, to: String, one_way: bool) -> Result<i32> {
    ask(dir, &Request::Cut(Selection { from, to, one_way }))
}

pub fn heal(dir: &StateDir, from: Option<String>, to: Option<String>) -> Result<i32> {
    let selection = match (from, to) {
        (Some(from), Some(to)) => Selection { from, to, one_way: false },
        _ => Selection::everything(),
    };
    ask(dir, &Request::Heal(selection))
}

pub fn kill(dir: &StateDir, region: &str, mode: KillMode) -> Result<i32> {
    Client::of(dir)?.kill(region, mode).map(|()| 0)
}

pub fn start(dir: &StateDir, region: &str, no_wait: bool) -> Result<i32> {
    ask(dir, &Request::Start { region: region.into(), wait: !no_wait })
}

pub fn pause(dir: &StateDir, region: String, process: Option<String>) -> Result<i32> {
    ask(dir, &Request::Pause { region, process })
}

pub fn resume(dir: &StateDir, region: String, process: Option<String>) -> Result<i32> {
    ask(dir, &Request::Resume { region, process })
}

pub fn kill_process(dir: &StateDir, region: String, process: String, polite: bool) -> Result<i32> {
    ask(dir, &Request::KillProcess { region, process, polite })
}

pub fn start_process(dir: &StateDir, region: String, process: String) -> Result<i32> {
    ask(dir, &Request::StartProcess { region, process })
}

pub fn expose(dir: &StateDir, region: String, port: u16) -> Result<i32> {
    match Client::of(dir)?.call(&Request::Expose { region, port })? {
        Response::Exposed { address } => println!("{address}"),
        other => bail!("unexpected answer {other:?}"),
    }
    Ok(0)
}

pub fn links(dir: &StateDir, json: bool, reset: bool) -> Result<i32> {
    let client = Client::of(dir)?;
    let links = client.links()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&links)?);
    } else {
        print_links(&links);
    }
    if reset {
        client.call(&Request::ResetLateness)?;
    }
    Ok(0)
}

fn print_links(links: &Links) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "link",
        "latency",
        "jitter",
        "loss",
        "duplicate",
        "rate",
        "packets",
        "bytes",
        "lost",
        "doubled",
        "blackholed",
        "overflowed",
    ]);
    for link in &links.links {
        let LinkSettings { up, latency_us, jitter_us, loss, duplicate, rate_bits, .. } = link.settings;
        let counters = &link.counters;
        let ms = |micros: u64| format!("{} ms", micros as f64 / 1e3);
        table.add_row([
            format!("{} → {}{}", link.from, link.to, if up { "" } else { " CUT" }),
            ms(latency_us),
            ms(jitter_us),
            format!("{} %", loss * 100.0),
            format!("{} %", duplicate * 100.0),
            if rate_bits == 0 { "–".into() } else { format!("{} Mbit/s", rate_bits as f64 / 1e6) },
            counters.packets.to_string(),
            counters.bytes.to_string(),
            counters.lost.to_string(),
            counters.duplicated.to_string(),
            counters.blackholed.to_string(),
            counters.overflowed.to_string(),
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
    let late = &links.lateness;
    let priority = if links.realtime { "real-time" } else { "ordinary" };
    println!(
        "router ({priority} priority): {} packets delivered late by p50 {} µs, p99 {} µs, at most {} µs",
        late.packets, late.p50_us, late.p99_us, late.max_us
    );
    let buckets: Vec<String> = late.buckets.iter().map(|bucket| format!("< {} µs: {}", bucket.below_us, bucket.packets)).collect();
    println!("  {}", buckets.join(" · "));
    println!("packets that do not belong to the world (dropped): {}", links.stray_packets);
}
