//! The consumer's side: pages of a feed's real page function, over a link; what it keeps survives its kills.

use crate::{services::cursor_key, world::Process};
use anyhow::Result;
use client::{FeedEvent, Hops, Page, Problem, PullError};
use consumer::{HandlePage, PullPage, SaveCursor};
use feed::page::PageError;
use meridian_proto::{Cursor, Event};
use prost::Message;
use serde_json::value::RawValue;
use std::{sync::Arc, time::Duration};

fn later(reason: &str) -> PullError {
    PullError::Later { reason: reason.into(), retry_after: None }
}

/// The regions that a consumer asks, in order.
pub fn regions_asked(process: &Process) -> Vec<usize> {
    let state = process.world.state();
    let (me, now_ms, count) = (process.region, process.world.now_ms(), state.regions.len());
    let first = state.regions[me].consumer_pulls;
    let order = (0..count).map(|step| (first + step) % count);
    order.filter(|region| *region == me || (state.reaches(me, *region, now_ms) && state.reaches(*region, me, now_ms))).collect()
}

/// See [`consumer::pull_page`].
pub async fn pull_page(process: Arc<Process>, PullPage { tenant, cursor, limit }: PullPage) -> Result<Result<Page, PullError>> {
    process.short().await;
    let mut last = later("no feed answers");
    for region in regions_asked(&process) {
        if region != process.region {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let Some(feed) = process.world.state().regions[region].feed.clone() else { continue };
        let at = match cursor.as_str() {
            "" => Cursor::default(),
            text => Cursor::decode(text, &tenant, &cursor_key())?,
        };
        match tokio::time::timeout(Duration::from_secs(3), feed.page(&tenant, &at, limit)).await {
            Ok(Ok(page)) => return Ok(Ok(page_of(&tenant, page))),
            Ok(Err(PageError::Trimmed { partition, oldest })) => {
                let detail = format!("{partition} is kept from offset {oldest} on only");
                return Ok(Err(PullError::Trimmed(Problem { status: 410, detail, ..Problem::default() })));
            }
            Ok(Err(PageError::Unavailable(error))) => last = later(&format!("{error:#}")),
            Err(_) => last = later("no answer in time"),
        }
    }
    Ok(Err(last))
}

fn page_of(tenant: &str, page: feed::page::Page) -> Page {
    let read = |value: &bytes::Bytes| Event::decode(value.clone()).ok().filter(|event| event.tenant == tenant);
    let events = page.events.iter().filter_map(|(_, found)| feed_event(read(&found.value)?)).collect();
    Page { events, cursor: page.cursor.encode(tenant, &cursor_key()), more: page.more }
}

/// An event as a page shows it, without its JSON.
pub fn feed_event(event: Event) -> Option<FeedEvent> {
    Some(FeedEvent {
        commit_id: hex(&event.commit_id),
        hash: hex(&event.payload_hash),
        id: event.id,
        source: event.source,
        origin: event.origin,
        hops: Hops::default(),
        json: RawValue::from_string("null".into()).ok()?,
    })
}

/// Hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        text.extend([byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('?')));
        text
    })
}

/// See [`consumer::handle_page`].
pub async fn handle_page(process: Arc<Process>, HandlePage { tenant, page, .. }: HandlePage) -> Result<()> {
    process.short().await;
    let mut state = process.world.state();
    let handled = &mut state.regions[process.region].kept.handled;
    for event in page.events {
        handled.insert((tenant.clone(), event.id, event.hash, event.commit_id));
    }
    Ok(())
}

/// See [`consumer::save_cursor`].
pub async fn save_cursor(process: Arc<Process>, SaveCursor { tenant, cursor }: SaveCursor) -> Result<()> {
    process.short().await;
    process.world.state().regions[process.region].kept.cursors.insert(tenant, cursor);
    Ok(())
}

/// See [`consumer::load_cursor`].
pub async fn load_cursor(process: Arc<Process>, tenant: String) -> Result<String> {
    Ok(process.world.state().regions[process.region].kept.cursors.get(&tenant).cloned().unwrap_or_default())
}
