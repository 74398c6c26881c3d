//! After the load: waiting until everything is everywhere, with a deadline, never by sleeping long enough.

use crate::{
    audit::{RegionAudit, Scope, outside, outside::Complete},
    history::{Head, History},
    native,
    verdict::{Verdict, judge},
    world::World,
};
use adapters::clock::HostClock;
use anyhow::{Context, Result};
use futures::future::join_all;
use kit::{Effect, effect};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Everything that convergence asks of the world.
#[derive(Clone)]
pub struct Effects {
    /// How complete a region's answers are, by the region's index.
    pub read_complete: Effect<usize, Complete>,
    /// A region's audit, by its index.
    pub audit_region: Effect<usize, RegionAudit>,
}

/// How it ended.
pub struct Converged {
    /// The last audits.
    pub audits: Vec<RegionAudit>,
    /// Their verdict.
    pub verdict: Verdict,
    /// How long it took, if it came to be.
    pub after: Option<Duration>,
}

const POLL: Duration = Duration::from_secs(1);

impl Effects {
    /// Through the public interfaces and the launcher.
    pub fn on(world: Arc<World>, usage: Arc<outside::Usage>, head: Head) -> Self {
        let head = Arc::new(head);
        let (asked, told) = (Arc::clone(&usage), Arc::clone(&head));
        let read_complete = effect(move |region: usize| {
            let (usage, head) = (Arc::clone(&asked), Arc::clone(&told));
            async move { usage.complete(&head.regions[region], &head).await }
        });
        let audit_region = effect(move |region: usize| {
            let (world, usage, head) = (Arc::clone(&world), Arc::clone(&usage), Arc::clone(&head));
            async move {
                let mut audit = audit_inside(&world, &head.regions[region], &head).await?;
                outside::add(&mut audit, &world, &usage, &head).await;
                Ok(audit)
            }
        });
        Self { read_complete, audit_region }
    }
}

/// Runs `loadtest audit` inside a region and reads what it found.
async fn audit_inside(world: &World, region: &str, head: &Head) -> Result<RegionAudit> {
    let out = world.region_folder(region).join(format!("loadtest-{}.audit", std::process::id()));
    let scope = Scope { source: head.source.clone(), since_us: head.start_us };
    let program = std::env::current_exe()?;
    let arguments = [
        "exec",
        region,
        "--",
        &program.display().to_string(),
        "audit",
        "--region",
        region,
        "--source",
        &scope.source,
        "--since-us",
        &scope.since_us.to_string(),
        "--out",
        &out.display().to_string(),
        "--world",
        &world.file.display().to_string(),
    ]
    .map(ToOwned::to_owned);
    let ran = native::run(&world.file, &arguments).await;
    let audit = ran.and_then(|_| RegionAudit::read(&out));
    let _ = std::fs::remove_file(&out);
    audit.with_context(|| format!("audit of {region}"))
}

/// Which regions' answers do not hold all yet: region, origin, and by how much they lag, if that is known.
fn behind(last_commits: &[(String, u64)], regions: &[String], answers: &[Result<Complete>]) -> Vec<String> {
    let mut behind = Vec::new();
    for (region, answer) in regions.iter().zip(answers) {
        let complete = match answer {
            Ok(complete) => complete,
            Err(error) => {
                behind.push(format!("{region} does not answer: {error:#}"));
                continue;
            }
        };
        for (origin, last_us) in last_commits {
            match complete.get(origin).copied().unwrap_or_default() {
                0 => behind.push(format!("{region} knows nothing of {origin}")),
                through if through < *last_us => {
                    behind.push(format!("{region} lacks {:.1} s of {origin}", (*last_us - through) as f64 / 1e6));
                }
                _ => {}
            }
        }
    }
    behind
}

/// Waits until every region is complete through the last commit and all tiers are what they must be, or the deadline passes.
///
/// # Errors
/// Never by itself: a region that cannot be audited is missing from the audits, and the verdict says so.
pub async fn converge(effects: &Effects, history: &History, deadline: Duration) -> Result<Converged> {
    let began = Instant::now();
    let last_commits = history.last_commit_us();
    let regions = &history.head.regions;
    let mut last_report = None;
    loop {
        let answers = join_all((0..regions.len()).map(|region| (effects.read_complete)(region))).await;
        let behind = behind(&last_commits, regions, &answers);
        let late = began.elapsed() > deadline;
        if behind.is_empty() || late {
            let (audits, failures) = audits(effects, regions.len()).await;
            let mut verdict = judge(history, &audits);
            verdict.doubt(failures);
            if late && !behind.is_empty() {
                verdict.doubt([format!("not complete within {} s: {}", deadline.as_secs(), behind.join("; "))]);
            }
            let settled = verdict.good || began.elapsed() > deadline || !may_settle(&verdict);
            let after = (verdict.good && behind.is_empty()).then(|| began.elapsed());
            if settled {
                return Ok(Converged { audits, verdict, after });
            }
            progress(&mut last_report, began, &format!("complete everywhere, not equal yet: {}", verdict.words()));
        } else {
            progress(&mut last_report, began, &behind.join("; "));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether waiting can make it good: what is lost or divergent may be on its way, what is there too often stays.
fn may_settle(verdict: &Verdict) -> bool {
    verdict.phantom == 0 && verdict.wrong_answers == 0 && verdict.conflicts == 0
}

fn progress(last: &mut Option<Instant>, began: Instant, text: &str) {
    if last.is_none_or(|last| last.elapsed() >= POLL) {
        *last = Some(Instant::now());
        let text: String = text.chars().take(150).collect();
        println!("converge {:>4.0} s  {text}", began.elapsed().as_secs_f64());
    }
}

async fn audits(effects: &Effects, regions: usize) -> (Vec<RegionAudit>, Vec<String>) {
    let (mut audits, mut failures) = (Vec::new(), Vec::new());
    for audit in join_all((0..regions).map(|region| (effects.audit_region)(region))).await {
        match audit {
            Ok(audit) => audits.push(audit),
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    (audits, failures)
}

/// A clock's time as UTC text, for names of runs (`20260131T235959Z`) and for people (RFC 3339).
pub fn utc(clock: &HostClock) -> (String, String) {
    let now = jiff::Timestamp::from_microsecond(clock.now().0 as i64).unwrap_or_default();
    (now.strftime("%Y%m%dT%H%M%SZ").to_string(), format!("{now:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn behind_names_region_and_origin() {
        let complete = |fra, iad| Ok([("fra".to_owned(), fra), ("iad".to_owned(), iad)].into());
        let last = [("fra".to_owned(), 5_000_000), ("iad".to_owned(), 1_000_000)];
        let regions = ["fra".to_owned(), "iad".to_owned()];
        assert_eq!(behind(&last, &regions, &[complete(5_000_000, 2_000_000), complete(6_000_000, 1_000_000)]), Vec::<String>::new());
        let texts = behind(&last, &regions, &[complete(3_000_000, 0), Err(anyhow::anyhow!("gone"))]);
        assert_eq!(texts, ["fra lacks 2.0 s of fra", "fra knows nothing of iad", "iad does not answer: gone"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stands_still_ends_at_the_deadline_without_a_judgement() {
        let effects = Effects {
            read_complete: effect(|_| async { Ok(Complete::new()) }),
            audit_region: effect(|_| async { anyhow::bail!("no way in") }),
        };
        let mut history = History { head: Head { regions: vec!["fra".into()], ..Head::default() }, ..History::default() };
        history.records.push(crate::history::Record {
            operation: 0,
            kind: "post".into(),
            detail: String::new(),
            tenant: "t".into(),
            region: "fra".into(),
            intended_us: 0,
            attempts: vec![crate::history::Attempt {
                region: "fra".into(),
                sent_us: 0,
                answered_us: 1,
                status: Some(202),
                outcome: crate::history::Outcome::Ok,
                note: String::new(),
            }],
            outcome: crate::history::Outcome::Ok,
            events: vec![crate::history::EventRecord {
                id: "e".into(),
                hash: [0; 32],
                amount: crate::decimal::Decimal::default(),
                commit_id: Some(9 << 64),
            }],
        });
        let converged = converge(&effects, &history, Duration::from_secs(30)).await.unwrap();
        assert!(!converged.verdict.good && converged.after.is_none());
        assert_eq!(converged.verdict.exit_code(), 2);
        assert!(converged.verdict.words().contains("not complete within 30 s"), "{}", converged.verdict.words());
    }

    #[tokio::test(start_paused = true)]
    async fn regions_are_asked_until_they_are_complete() {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let effects = Effects {
            read_complete: effect(move |_| {
                let through = counted.fetch_add(4, Ordering::Relaxed);
                async move { Ok(Complete::from([("fra".to_owned(), through)])) }
            }),
            audit_region: effect(|_| async { Ok(RegionAudit { region: "fra".into(), ..RegionAudit::default() }) }),
        };
        let history = History { head: Head { regions: vec!["fra".into()], ..Head::default() }, ..History::default() };
        // Nothing was acknowledged, so nothing can be judged; the point is that it ends.
        let converged = converge(&effects, &history, Duration::from_secs(5)).await.unwrap();
        assert_eq!(converged.verdict.exit_code(), 2);
        assert!(asked.load(Ordering::Relaxed) >= 4);
    }
}
