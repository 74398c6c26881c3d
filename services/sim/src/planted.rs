//! Bugs planted on purpose, each breaking one rule: other functions in the place of those that keep it. **No product code has a
//! switch for them.** The list is a test: each is found within so many seeds, see `tests/planted.rs`.

mod verbs;

use crate::world::Process;
use adapters::clickhouse::Aggregation;
use api::Problem;
use client::FollowConfig;
use meridian_proto::{Event, Incarnation};
use std::{sync::Arc, time::Duration};
use usage::{Answer, Meters, Question};

use crate::effects::{bind, bind_droppable};

macro_rules! bugs {
    ($($bug:ident, $rule:literal;)*) => {
        /// A rule that is broken on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Bug { $(#[doc = $rule] $bug,)* }

        impl Bug {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];

            /// What it does wrong, for people.
            pub fn rule(self) -> &'static str {
                match self { $(Self::$bug => $rule,)* }
            }
        }
    };
}

bugs! {
    AcknowledgedAfterTheFence, "a row is acknowledged later than L after its commit time";
    RelayClockAhead, "the relay's clock is ahead of the ingests'";
    SealBoundTakenAfterTheRead, "the time up to which is sealed is taken after the pages were read";
    ProgressKeptWhenTheStoreIsEmptied, "positions are kept beside the store, which was made anew";
    CursorByLocalOffset, "a cursor holds offsets of the local copy";
    JumpAcceptedByMirror, "the mirror goes on behind records that it could not append";
    JumpAcceptedBySink, "the sink goes on behind records that it did not get";
    JumpAcceptedByFeed, "a page goes on behind records that it did not look at";
    MinimumOverThePartitionsThere, "completeness is the minimum over the partitions that happen to be there";
    CompletenessReadAfterTheSums, "completeness is read after the sums";
    IdentityLastWriteWins, "of two payloads of an identity the one stored last counts";
    HashWithTraceContext, "the payload hash covers the trace context";
    PositionSavedBeforeTheBlock, "a position is saved before its block is stored";
    CommitIdWithoutIncarnation, "two processes make commit ids without an incarnation";
    EmptyPageCursorNotMoved, "the cursor of an empty page is not moved";
    EarlyCommitInTheSink, "the sink saves positions of what it was only handed";
    AppendedTwiceByTheMirror, "the mirror repeats an append of unknown outcome by itself";
    LostWakeUpWithoutTick, "a consumer has signals alone, no tick";
}

/// The relay's effects.
pub fn relay(process: &Arc<Process>, effects: relay::Effects) -> relay::Effects {
    match process.world.bug {
        Some(Bug::RelayClockAhead) => relay::Effects { region_time: bind(process, verbs::region_time_ahead), ..effects },
        Some(Bug::SealBoundTakenAfterTheRead) => {
            relay::Effects { read_changes: bind(process, verbs::read_changes_before_the_bound), ..effects }
        }
        _ => effects,
    }
}

/// Ingest's effects.
pub fn ingest(_: &Arc<Process>, effects: ingest::Effects) -> ingest::Effects {
    effects
}

/// Ingest's limits.
pub fn ingest_limits(bug: Option<Bug>, limits: ingest::Limits) -> ingest::Limits {
    match bug {
        Some(Bug::AcknowledgedAfterTheFence) => {
            ingest::Limits { fence: Duration::from_millis(6_000), request_timeout: Duration::from_secs(13), ..limits }
        }
        _ => limits,
    }
}

/// An ingest's incarnation.
pub fn incarnation(process: &Process, drawn: Incarnation) -> Incarnation {
    match process.world.bug {
        Some(Bug::CommitIdWithoutIncarnation) => Incarnation::from_random(0),
        _ => drawn,
    }
}

/// An event as it is posted.
pub fn posted(bug: Option<Bug>, mut event: Event, trace_parent: &str) -> Event {
    if bug == Some(Bug::HashWithTraceContext) {
        event.extensions.insert("hashedtrace".into(), trace_parent.into());
    }
    event
}

/// The mirror's effects.
pub fn mirror(process: &Arc<Process>, effects: mirror::Effects) -> mirror::Effects {
    match process.world.bug {
        Some(Bug::JumpAcceptedByMirror) => mirror::Effects { append_local_log: bind(process, verbs::append_and_go_on), ..effects },
        Some(Bug::AppendedTwiceByTheMirror) => mirror::Effects { append_local_log: bind(process, verbs::append_again), ..effects },
        _ => effects,
    }
}

/// The sink's effects.
pub fn sink(process: &Arc<Process>, effects: sink::Effects) -> sink::Effects {
    match process.world.bug {
        Some(Bug::ProgressKeptWhenTheStoreIsEmptied) => sink::Effects {
            load_positions: bind(process, verbs::load_kept_positions),
            save_positions: bind(process, verbs::save_and_keep_positions),
            ..effects
        },
        Some(Bug::JumpAcceptedBySink) => sink::Effects { poll_batch: bind_droppable(process, verbs::poll_and_jump), ..effects },
        Some(Bug::IdentityLastWriteWins) => sink::Effects { insert_block: bind(process, verbs::insert_last_wins), ..effects },
        Some(Bug::PositionSavedBeforeTheBlock) => sink::Effects { insert_block: bind(process, verbs::insert_later), ..effects },
        Some(Bug::EarlyCommitInTheSink) => sink::Effects { poll_batch: bind_droppable(process, verbs::poll_and_commit), ..effects },
        _ => effects,
    }
}

/// The feed's effects.
pub fn feed(_: &Arc<Process>, effects: feed::Effects) -> feed::Effects {
    effects
}

/// The consumer's effects.
pub fn consumer(process: &Arc<Process>, effects: consumer::Effects) -> consumer::Effects {
    match process.world.bug {
        Some(Bug::CursorByLocalOffset) => consumer::Effects { pull_page: bind(process, verbs::pull_by_local_offset), ..effects },
        Some(Bug::JumpAcceptedByFeed) => consumer::Effects { pull_page: bind(process, verbs::pull_and_jump), ..effects },
        Some(Bug::EmptyPageCursorNotMoved) => consumer::Effects { pull_page: bind(process, verbs::pull_and_stay), ..effects },
        _ => effects,
    }
}

/// How a consumer follows.
pub fn follow(bug: Option<Bug>, config: FollowConfig) -> FollowConfig {
    match bug {
        Some(Bug::LostWakeUpWithoutTick) => FollowConfig { tick: Duration::from_secs(100_000), ..config },
        _ => config,
    }
}

/// Usage's effects.
pub fn usage(process: &Arc<Process>, effects: usage::Effects) -> usage::Effects {
    match process.world.bug {
        Some(Bug::MinimumOverThePartitionsThere) => {
            usage::Effects { read_progress: bind(process, verbs::read_progress_of_those_there), ..effects }
        }
        _ => effects,
    }
}

/// Answers a question.
///
/// # Errors
/// As [`usage::answer`].
pub async fn answer(
    bug: Option<Bug>,
    effects: &usage::Effects,
    meters: &Meters,
    regions: &[String],
    region: &str,
    tenant: &str,
    question: Question,
) -> Result<Answer, Problem> {
    if bug != Some(Bug::CompletenessReadAfterTheSums) {
        return usage::answer(effects, meters, regions, region, tenant, question).await;
    }
    // The sums are read, then progress, then the rest as ever: `complete` is what is known after the sums.
    let early = adapters::clickhouse::SumMeter {
        tenant: tenant.into(),
        event_type: "order".into(),
        aggregation: Aggregation::Count,
        starts_us: vec![0],
        end_us: i64::MAX,
    };
    let sums = (effects.sum_meter)(early).await;
    let sums = sums.map_err(|error| Problem::new(api::Kind::Unavailable, error.to_string()))?;
    let known = kit::effect(move |_| {
        let sums = sums.clone();
        async move { Ok(sums) }
    });
    let effects = usage::Effects { sum_meter: known, ..effects.clone() };
    usage::answer(&effects, meters, regions, region, tenant, question).await
}
