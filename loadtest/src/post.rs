//! One try of one request, through the client library that users of Meridian link.

use crate::{generate::Request, history::Outcome, plan::Plan, world::World};
use adapters::clock::HostClock;
use anyhow::{Context, Result};
use client::{Ack, Client, ClientConfig, PostOutcome, Receipt, connection_pool};
use kit::{Effect, effect};
use std::{sync::Arc, time::Duration};

/// A request on its way to a region.
#[derive(Clone, Debug)]
pub struct Post {
    /// Index of the tenant.
    pub tenant: u16,
    /// Index of the region.
    pub region: u8,
    /// What is sent.
    pub request: Arc<Request>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// When the request was handed to the connection, microseconds since the Unix epoch.
    pub sent_us: u64,
    /// When the answer was read, or the try given up.
    pub answered_us: u64,
    /// HTTP status; `None` without an answer.
    pub status: Option<u16>,
    /// What a client may conclude.
    pub outcome: Outcome,
    /// Why not, in short.
    pub note: String,
    /// Commit ids of the events in order, where the answer names them.
    pub commits: Vec<Option<u128>>,
}

impl Answer {
    /// Whether a repeat can say nothing more: accepted, or refused by a server that looked at it.
    pub fn decides(&self) -> bool {
        match self.outcome {
            Outcome::Ok => true,
            Outcome::Fail => self.status.is_some_and(|status| status != 429),
            Outcome::Unknown | Outcome::Unsent => false,
        }
    }
}

/// Everything that sending does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// One try, without repeats.
    pub post_request: Effect<Post, Answer>,
}

const NOTE_CHARS_MAX: usize = 160;

impl Effects {
    /// Posts to the world's regions with its development keys.
    ///
    /// # Errors
    /// When the world has no key for one of `tenants`, or exposes no ingest.
    pub fn on(world: &World, plan: &Plan, tenants: &[String], clock: &Arc<HostClock>) -> Result<Self> {
        let pool = connection_pool(Duration::from_secs(1))?;
        let keys = world.keys()?;
        let config = ClientConfig {
            ingest_urls: world.urls("ingest")?,
            ack: match plan.ack {
                crate::plan::AckLevel::Local => Ack::Local,
                crate::plan::AckLevel::Global => Ack::Global,
            },
            attempt_timeout: Duration::from_millis(plan.limits.request_timeout_ms),
            ..ClientConfig::default()
        };
        let client = |key: &str| Client::with_pool(pool.clone(), ClientConfig { key: key.into(), ..config.clone() });
        let of_tenant = |tenant: &String| {
            let key = keys.get(tenant).with_context(|| format!("the world has no key for {tenant}"))?;
            Ok(client(key))
        };
        let clients: Vec<Client> = tenants.iter().map(of_tenant).collect::<Result<_>>()?;
        let context = Arc::new((clients, client("nobody.0000000000000000"), Arc::clone(clock)));
        let post_request = effect(move |post: Post| {
            let context = Arc::clone(&context);
            async move {
                let (clients, stranger, clock) = &*context;
                let client = if post.request.unknown_key { stranger } else { &clients[usize::from(post.tenant)] };
                let sent_us = clock.now().0;
                let end = client.post_to(usize::from(post.region), &post.request.body, post.request.content_type).await;
                Ok(answer(end, sent_us, clock.now().0))
            }
        });
        Ok(Self { post_request })
    }
}

fn answer(end: PostOutcome, sent_us: u64, answered_us: u64) -> Answer {
    let some = |status: u16| (status != 0).then_some(status);
    let cut = |text: &str| text.chars().take(NOTE_CHARS_MAX).collect::<String>();
    let (status, outcome, note, commits) = match end {
        PostOutcome::Accepted { events, .. } => (Some(202), Outcome::Ok, String::new(), events.iter().map(commit).collect()),
        PostOutcome::Refused { status, problem, .. } => {
            let field = problem.field.map(|field| format!("{field}: ")).unwrap_or_default();
            (
                some(status),
                Outcome::Fail,
                cut(&format!("{field}{}", if problem.detail.is_empty() { problem.title } else { problem.detail })),
                vec![],
            )
        }
        PostOutcome::Unknown { status, reason, .. } => (some(status), Outcome::Unknown, cut(&reason), vec![]),
    };
    Answer { sent_us, answered_us, status, outcome, note, commits }
}

fn commit(receipt: &Receipt) -> Option<u128> {
    u128::from_str_radix(&receipt.commit_id, 16).ok()
}
