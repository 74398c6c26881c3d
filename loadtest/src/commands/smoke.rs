//! `loadtest smoke`: a handful of events in one region, each hop shown.

use crate::{
    audit::{RegionAudit, outside},
    converge::{self, converge, utc},
    generate::{Generator, InvalidKind},
    history::{Head, History, Outcome, Record, SCHEMA},
    latency::{self, Hop},
    plan::Plan,
    post::{Effects, Post},
    schedule::{Kind, Operation},
    send,
    world::World,
};
use adapters::clock::HostClock;
use anyhow::{Context, Result};
use std::{path::Path, sync::Arc, time::Duration};

const PLAN: &str = include_str!("../../plans/smoke.toml");
const TENANT: u16 = 0;

/// Three single events, a batch of five, the first one again, the second with another payload, and two that are wrong.
fn operations(region: u8) -> Vec<Operation> {
    let kinds = [
        (Kind::Post, 1, 0),
        (Kind::Post, 1, 1),
        (Kind::Post, 1, 2),
        (Kind::Post, 5, 3),
        (Kind::Repeat { of: 0 }, 1, 0),
        (Kind::Conflict { of: 1, event: 0 }, 1, 1),
        (Kind::Invalid(InvalidKind::MissingType), 1, 8),
        (Kind::Invalid(InvalidKind::BadAmount), 1, 9),
    ];
    let operation =
        |(kind, events, first_event)| Operation { at_us: 0, region, tenant: TENANT, kind, batch: events > 1, events, first_event };
    kinds.map(operation).to_vec()
}

pub async fn smoke(world: Option<&Path>, region: Option<String>) -> Result<u8> {
    let world = Arc::new(World::find(world)?);
    let region = region.unwrap_or_else(|| world.regions[0].name.clone());
    let index = world.region_names().iter().position(|name| *name == region).with_context(|| format!("no region {region:?}"))?;
    let plan: Plan = toml::from_str(PLAN).context("the plan of smoke")?;
    let clock = HostClock::start();
    let generator = Generator::new(plan.clone(), format!("/loadtest/smoke-{}", utc(&clock).0), clock.now().0);
    let tenants = generator.tenants()[..1].to_vec();
    let effects = Effects::on(&world, &plan, &tenants, &clock)?;
    let usage = Arc::new(outside::Usage::on(&world, &tenants, &plan.event.meter)?);

    println!("smoke: tenant {} posts to {region}\n", tenants[0]);
    let history = post_all(&effects, &generator, &world, index as u8, &region, &clock).await?;
    println!();
    let effects = converge::Effects::on(Arc::clone(&world), Arc::clone(&usage), history.head.clone());
    let converged = converge(&effects, &history, Duration::from_secs(plan.limits.converge_s)).await?;
    hops(&history, &converged.audits);
    let answer = usage.ask(&region, &tenants[0], &history.head).await?;
    println!("\nGET /v1/usage?meter={}\n{}\n", plan.event.meter, serde_json::to_string_pretty(&answer)?);
    for examples in converged.verdict.examples.iter().filter(|(kind, _)| *kind != "duplicated_in_log") {
        examples.1.iter().for_each(|example| println!("{}: {} {}", examples.0, example.id, example.what));
    }
    println!("{}", converged.verdict.words());
    Ok(converged.verdict.exit_code())
}

async fn post_all(effects: &Effects, generator: &Generator, world: &World, index: u8, region: &str, clock: &HostClock) -> Result<History> {
    let schedule = operations(index);
    let mut records = Vec::new();
    for number in 0..schedule.len() {
        let request = Arc::new(generator.request(&schedule[number], &schedule));
        let mut record = send::record(generator, &world.region_names(), &schedule, number, &request);
        record.intended_us = clock.now().0;
        let answer = (effects.post_request)(Post { tenant: TENANT, region: index, request }).await?;
        record.attempts.push(answer.attempt(region));
        answer.decide(&mut record);
        println!("{}", line(&record));
        records.push(record);
    }
    let head = Head {
        schema: SCHEMA.into(),
        source: generator.source().into(),
        start_us: generator.start_us(),
        end_us: clock.now().0,
        measured_from_us: 0,
        regions: vec![region.into()],
        tenants: generator.tenants()[..1].to_vec(),
        restarted: Vec::new(),
    };
    Ok(History { head, records })
}

fn line(record: &Record) -> String {
    let what = match record.kind.as_str() {
        "post" if record.events.len() > 1 => format!("batch of {}", record.events.len()),
        "post" => "one event".into(),
        "repeat" => "the same event again".into(),
        "conflict" => "the same id, another payload".into(),
        _ => record.detail.clone(),
    };
    let attempt = record.attempts.last();
    let status = attempt.and_then(|attempt| attempt.status).map_or_else(|| "no answer".into(), |status| status.to_string());
    let took_ms = attempt.map_or(0.0, |attempt| (attempt.answered_us - attempt.sent_us) as f64 / 1e3);
    let note = match record.events.first().and_then(|event| event.commit_id) {
        Some(commit) if record.outcome == Outcome::Ok => format!("commit {commit:032x}"),
        _ => attempt.map(|attempt| attempt.note.clone()).unwrap_or_default(),
    };
    format!("post    {what:<30} {status} in {took_ms:>5.1} ms  {note}")
}

fn hops(history: &History, audits: &[RegionAudit]) {
    let latency = latency::measure(history, audits);
    for ((origin, destination), times) in &latency.pairs {
        println!("{origin} → {destination}: post → commit → relay → log → sink → usage · feed → signal → pull");
        for hop in Hop::ALL {
            if let Some(stats) = times.get(&hop).map(|times| times.corrected.stats()).filter(|stats| stats.count > 0) {
                println!("  {:<10} {:>3} events  p50 {:>7.1} ms  greatest {:>7.1} ms", hop.name(), stats.count, stats.p50_ms, stats.max_ms);
            }
        }
    }
}
