//! Those who use the services: posters who repeat until they are answered, and tenants who ask for their usage.

use crate::{
    drive::asker,
    ledger::{Attempt, Claim, Seen},
    plan::{INGESTS, Post, REGIONS, TENANTS},
    planted,
    random::Random,
    services::usage_effects,
    world::World,
};
use adapters::scylla::Ack;
use api::Kind;
use ingest::{Charge, Post as Request};
use meridian_proto::Event;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, timeout};
use usage::{Answer, Conflicts, Meters, Question, Window};

/// Attempts of one post at most.
const ATTEMPTS: u64 = 12;
/// After this a poster gives an attempt up.
const PATIENCE: Duration = Duration::from_millis(4_800);

/// Posts an event until it is accepted or refused.
pub async fn post(world: Arc<World>, post: Post) {
    let mut random = Random::of(world.plan.seed, "post", u64::from(post.id) << 32 | post.at_ms);
    world.until_ms(post.at_ms).await;
    for attempt in 0..ATTEMPTS {
        let region = if post.roams { (post.region + attempt as usize) % world.plan.regions } else { post.region };
        let ingest = ((u64::from(post.ingest) + attempt) % u64::from(INGESTS)) as u8;
        let from_ms = world.now_ms();
        let seen = attempt_once(&world, &post, region, ingest, attempt).await;
        let (tenant, id, amount) = (TENANTS[post.tenant], format!("order-{}", post.id), u64::from(post.amount));
        world.tell(region, format!("ingest-{ingest}"), || told(&id, amount, seen));
        let to_ms = world.now_ms();
        world.state().ledger.attempts.push(Attempt { tenant, id, amount, region, from_ms, to_ms, seen });
        if seen != Seen::Unknown {
            return;
        }
        tokio::time::sleep(Duration::from_millis(random.between(150, 900))).await;
    }
}

fn told(id: &str, amount: u64, seen: Seen) -> String {
    match seen {
        Seen::Accepted { committed_us } => {
            format!("accepts {id} (amount {amount}), committed at {} ms", (committed_us - crate::world::EPOCH_US) / 1_000)
        }
        Seen::Conflict => format!("answers 409 to {id} (amount {amount})"),
        Seen::Refused => format!("refuses {id} (amount {amount})"),
        Seen::Unknown => format!("gives {id} (amount {amount}) no answer"),
    }
}

async fn attempt_once(world: &Arc<World>, post: &Post, region: usize, ingest: u8, attempt: u64) -> Seen {
    let Some(ingest) = world.state().regions[region].ingests.get(&ingest).cloned() else { return Seen::Unknown };
    let event = Event {
        source: "/sim".into(),
        id: format!("order-{}", post.id),
        r#type: "order".into(),
        subject: Some(format!("customer-{}", post.subject)),
        data: format!(r#"{{"amount":{}}}"#, post.amount).into(),
        ..Event::default()
    };
    let trace_parent = format!("00-{:032x}-{attempt:016x}-01", u64::from(post.id) << 32 | post.at_ms);
    let request = Request {
        tenant: TENANTS[post.tenant].into(),
        events: vec![planted::posted(world.bug, event, &trace_parent)],
        batch: false,
        ack: if post.global { Ack::Global } else { Ack::Local },
        trace_parent,
        deadline: Instant::now() + Duration::from_secs(5),
        charge: Charge::none(),
    };
    match timeout(PATIENCE, ingest.post_events(request)).await {
        Ok(Ok(posted)) => Seen::Accepted { committed_us: posted.events.first().map_or(0, |event| event.commit_id.time().0) },
        Ok(Err(problem)) if problem.kind == Kind::Conflict => Seen::Conflict,
        Ok(Err(problem)) if problem.kind == Kind::Unavailable => Seen::Unknown,
        Ok(Err(_)) => Seen::Refused,
        Err(_) => Seen::Unknown,
    }
}

const METERS: &str = "[[meter]]\nname = \"amount\"\nevent_type = \"order\"\naggregation = \"sum\"\nproperty = \"amount\"\n";

fn question_of_all_time() -> Question {
    let (from, to) = ("2020-01-01T00:00:00Z".into(), "2030-01-01T00:00:00Z".into());
    Question { meter: "amount".into(), from, to, window: Window::Total, tz: None }
}

/// The regions' names.
pub fn regions(world: &World) -> Vec<String> {
    REGIONS[..world.plan.regions].iter().map(|region| (*region).to_owned()).collect()
}

/// Asks for usage about once a second, and keeps what was claimed.
pub async fn question(world: Arc<World>, region: usize) {
    let process = asker(&world, region);
    let effects = usage_effects(&process);
    let regions = regions(&world);
    let Ok(meters) = Meters::parse(METERS) else { return };
    for turn in 0.. {
        let wait_ms = process.draw(|random| random.between(300, 1_100));
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let tenant = TENANTS[turn % TENANTS.len()];
        let answer = planted::answer(world.bug, &effects, &meters, &regions, REGIONS[region], tenant, question_of_all_time()).await;
        let Ok(answer) = answer else { continue };
        let claim = Claim { region, tenant, summed: process.last_sum(), at_ms: world.now_ms(), complete: answer.complete };
        world.state().ledger.claims.push(claim);
    }
}

/// What every region answers in the end: usage and conflicts by tenant.
pub async fn final_answers(world: &Arc<World>) -> Vec<(usize, &'static str, Answer, Conflicts)> {
    let (mut answers, regions) = (Vec::new(), regions(world));
    let Ok(meters) = Meters::parse(METERS) else { return answers };
    for (region, name) in REGIONS.iter().enumerate().take(world.plan.regions) {
        let effects = usage_effects(&asker(world, region));
        for tenant in TENANTS {
            let usage = usage::answer(&effects, &meters, &regions, name, tenant, question_of_all_time()).await;
            let conflicts = usage::conflicts(&effects, tenant).await;
            if let (Ok(usage), Ok(conflicts)) = (usage, conflicts) {
                answers.push((region, tenant, usage, conflicts));
            }
        }
    }
    answers
}
