//! `loadtest drill` and `loadtest load`.

use super::LoadOptions;
use crate::{
    audit::outside,
    converge::{self, Converged, converge, utc},
    faults,
    history::History,
    latency, machine,
    plan::{Drill, Plan},
    post,
    report::{
        json::{self, FaultMark, Run},
        terminal,
        write::{self, Parts},
    },
    schedule::schedule,
    send::{self, Load},
    world::World,
};
use adapters::clock::HostClock;
use anyhow::{Context, Result};
use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

pub async fn drill(world: Option<&Path>, file: &Path, options: &LoadOptions) -> Result<u8> {
    run(world, "drill", Drill::read(file, options.overrides())?, options).await
}

pub async fn load(world: Option<&Path>, plan: &Path, options: &LoadOptions) -> Result<u8> {
    run(world, "load", Drill::of_plan(Plan::read(plan, options.overrides())?), options).await
}

async fn run(world: Option<&Path>, kind: &str, drill: Drill, options: &LoadOptions) -> Result<u8> {
    let world = Arc::new(World::find(world)?);
    drill.check_regions(&world.region_names())?;
    let clock = HostClock::start();
    let (id, started) = utc(&clock);
    let plan = &drill.plan;
    let (regions, source) = (world.region_names(), format!("/loadtest/{id}"));
    let tenants: Vec<String> = (1..=plan.tenants).map(|number| format!("tenant-{number:02}")).collect();
    let usage = Arc::new(outside::Usage::on(&world, &tenants, &plan.event.meter)?);
    let schedule = schedule(plan, regions.len());
    println!(
        "{kind} {}: {} requests, {:.0} events/s in each of {}, {:.0} s, seed {}",
        drill.name,
        schedule.len(),
        plan.load.events_per_s(),
        regions.join(", "),
        plan.duration_s,
        plan.seed
    );
    let machine_before = machine::machine();
    machine::reset_lateness(&world).await;
    let before = machine::usage(&world).await.context("the world's status")?;
    let effects = post::Effects::on(&world, plan, &tenants, &clock)?;
    let load = send::start(plan, &source, regions.clone(), schedule, effects, &clock)?;
    let (history, faults) = watch(load, &drill, &world, &clock).await?;

    let effects = converge::Effects::on(Arc::clone(&world), usage, history.head.clone());
    let converged = converge(&effects, &history, Duration::from_secs(plan.limits.converge_s)).await?;
    let after = machine::usage(&world).await.context("the world's status")?;
    let wan = machine::wan(&world).await.context("the world's links")?;
    let (processes, cpu_seconds_elsewhere) = machine::used(&before, &after);

    let Converged { audits, mut verdict, after } = converged;
    verdict.doubt(json::not_inflicted(&faults));
    let latency = latency::measure(&history, &audits);
    let run = Run {
        schema: json::SCHEMA.into(),
        kind: kind.into(),
        name: drill.name.clone(),
        started,
        ended: utc(&clock).1,
        commit: machine::commit(&[world.folder(), Path::new(".")]),
        machine: json::Machine { cpu_seconds_elsewhere, ..machine_before },
        engines: machine::engines(&world),
        wan,
        regions,
        plan: plan.clone(),
        seed: plan.seed,
        warm_up_s: plan.warm_up_s,
        faults,
        operations: json::operations(&history, plan.duration_s),
        verdict,
        converged_s: after.map(|after| after.as_secs_f64()),
        send_error_ms: latency.send_error.stats(),
        pairs: json::pairs(&latency),
        series: json::series(&history, &latency),
        processes,
        id,
    };
    let folder = write::whole(&options.runs, &Parts { run: &run, history: &history, audits: &audits, latency: &latency })?;
    terminal::print(&run);
    println!("{}", folder.join("report.html").display());
    Ok(run.verdict.exit_code())
}

/// Shows the load second by second, carries out the faults, and waits until every outcome is decided.
async fn watch(load: Load, drill: &Drill, world: &World, clock: &Arc<HostClock>) -> Result<(History, Vec<FaultMark>)> {
    let start_us = load.start_us;
    let faults = inflict(drill, world, clock, start_us);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let settle = Instant::now() + drill.plan.duration() + Duration::from_secs(drill.plan.limits.converge_s + 10);
    let mut said_until = 0.0;
    while !load.is_decided() && Instant::now() < settle {
        tick.tick().await;
        let second = clock.now().0.saturating_sub(start_us) as f64 / 1e6;
        if second - said_until >= 0.9 {
            said_until = second;
            line(&load, second, drill.plan.duration_s);
        }
    }
    let mut history = load.finish().await;
    let faults = faults.await.context("the task of the faults")?;
    history.head.restarted = drill.faults.iter().filter_map(|fault| fault.action.restarts()).map(Into::into).collect();
    history.head.restarted.dedup();
    Ok((history, faults))
}

fn line(load: &Load, second: f64, duration_s: f64) {
    let progress = &load.progress;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let recent = progress.take_recent().stats();
    let answers = match recent.count {
        0 => String::new(),
        _ => format!("  answer p50 {:.1} ms, p99 {:.1} ms", recent.p50_ms, recent.p99_ms),
    };
    let what = if load.is_sent() { "decide" } else { "load" };
    println!(
        "{what:<8} {second:>4.0} s of {duration_s:.0}  {} sent, {} events acknowledged, {} refused, {} unknown, {} unsent{answers}",
        count(&progress.sent),
        count(&progress.events_ok),
        count(&progress.refused),
        count(&progress.unknown),
        count(&progress.unsent),
    );
}

/// Carries out the faults at their times, one after the other.
fn inflict(drill: &Drill, world: &World, clock: &Arc<HostClock>, start_us: u64) -> JoinHandle<Vec<FaultMark>> {
    let (drill, clock) = (drill.clone(), Arc::clone(clock));
    let effects = faults::Effects::of_launcher(world.file.clone());
    tokio::spawn(async move {
        let mut marks = Vec::new();
        for fault in &drill.faults {
            let planned_s = fault.at * drill.plan.duration_s;
            let seconds = || clock.now().0 as f64 / 1e6 - start_us as f64 / 1e6;
            tokio::time::sleep(Duration::from_secs_f64((planned_s - seconds()).max(0.0))).await;
            let done_s = seconds();
            let error = effects.apply(&fault.action).await.err().map(|error| format!("{error:#}"));
            let failed = error.as_ref().map(|error| format!("  FAILED: {error}")).unwrap_or_default();
            println!("fault    {done_s:>4.1} s  {}{failed}", fault.action.words());
            let region = fault.action.regions().first().map(ToString::to_string);
            marks.push(FaultMark { what: fault.action.words(), region, planned_s, done_s, error });
        }
        marks
    })
}
