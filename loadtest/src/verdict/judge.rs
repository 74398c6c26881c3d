//! From claims and views to numbers and examples.

use super::{
    EXAMPLES_MAX, Example, TierLine, Verdict,
    claims::{Claims, Key, State},
    view::{View, log_tier},
};
use crate::{
    audit::{Name, RegionAudit, Tier},
    decimal::Decimal,
    history::{History, Outcome},
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What must be everywhere.
struct Reference {
    /// Every key that may count and is in some log or acknowledged.
    present: HashSet<Key>,
    /// The least commit id of each identity, and its payload.
    winners: HashMap<u32, (u128, Key)>,
    /// Sum and number of events by tenant.
    usage: BTreeMap<String, (Decimal, u64)>,
}

/// Judges a run by its history and the audits of its regions.
pub fn judge(history: &History, audits: &[RegionAudit]) -> Verdict {
    let mut claims = Claims::of(history);
    let views: Vec<View<'_>> = audits.iter().map(|audit| View::of(audit, &mut claims)).collect();
    let names = std::mem::take(&mut claims.names).into_list();
    let mut court = Court { history, claims, views, names, verdict: Verdict::default() };
    let reference = court.reference();
    court.not_judged();
    court.lost(&reference);
    court.counted_twice(&reference);
    court.phantom();
    court.unresolved();
    court.conflicts(&reference);
    court.wrong_answers();
    court.duplicated_in_log();
    court.divergent(&reference);
    let mut verdict = court.verdict;
    verdict.sum = reference.usage.values().map(|(sum, _)| *sum).sum::<Decimal>().to_string();
    verdict.good = verdict.exit_code() == 0;
    verdict
}

struct Court<'a> {
    history: &'a History,
    claims: Claims,
    views: Vec<View<'a>>,
    names: Vec<Name>,
    verdict: Verdict,
}

impl Court<'_> {
    fn reference(&self) -> Reference {
        let acknowledged = self.claims.of.iter().filter(|(_, claim)| claim.state == State::Acknowledged).map(|(key, _)| *key);
        let logged = self.views.iter().flat_map(|view| view.commits.values().copied());
        let present: HashSet<Key> = acknowledged.chain(logged.filter(|key| self.claims.allowed(key))).collect();
        let acks = self.claims.of.iter().flat_map(|(key, claim)| claim.acks.iter().filter_map(|(_, commit)| Some(((*commit)?, *key))));
        let logged = self.views.iter().flat_map(|view| view.commits.iter().map(|(commit, key)| (*commit, *key)));
        // An acknowledgement without commit id and without a record anywhere still counts, after all others.
        let unnamed = present.iter().map(|key| (u128::MAX, *key));
        let mut winners: HashMap<u32, (u128, Key)> = HashMap::new();
        for (commit, key) in acks.chain(logged).chain(unnamed).filter(|(_, key)| present.contains(key)) {
            let winner = winners.entry(key.0).or_insert((commit, key));
            *winner = (*winner).min((commit, key));
        }
        let mut usage: BTreeMap<String, (Decimal, u64)> = BTreeMap::new();
        for (_, key) in winners.values() {
            let amount = self.claims.of.get(key).map(|claim| claim.amount).unwrap_or_default();
            let (sum, count) = usage.entry(self.names[key.0 as usize].tenant.clone()).or_default();
            (*sum, *count) = (*sum + amount, *count + 1);
        }
        Reference { present, winners, usage }
    }

    fn not_judged(&mut self) {
        let reasons = &mut self.verdict.not_judged;
        for region in &self.history.head.regions {
            if !self.views.iter().any(|view| view.region() == region) {
                reasons.push(format!("{region} was not audited"));
            }
        }
        for view in &self.views {
            reasons.extend(view.audit.unread.iter().map(|(tier, why)| format!("{}: {tier:?} could not be read: {why}", view.region())));
        }
        self.verdict.acknowledged = self.claims.of.values().filter(|claim| claim.state == State::Acknowledged).count() as u64;
        if self.verdict.acknowledged == 0 {
            reasons.push("nothing was acknowledged".into());
        }
    }

    /// In order of name, so that examples are the same each time.
    fn sorted(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let mut keys: Vec<Key> = keys.into_iter().collect();
        keys.sort_by(|a, b| (&self.names[a.0 as usize], a.1).cmp(&(&self.names[b.0 as usize], b.1)));
        keys.dedup();
        keys
    }

    fn example(&mut self, kind: &str, key: &Key, what: String) {
        let examples = self.verdict.examples.entry(kind.into()).or_default();
        if examples.len() >= EXAMPLES_MAX {
            return;
        }
        // Of the logs those matter that have it somewhere, or should.
        let holding =
            self.views.iter().flat_map(|view| view.logs.iter()).filter(|(_, log)| log.contains_key(key)).map(|(origin, _)| *origin);
        let acks = self.claims.of.get(key).map_or(&[][..], |claim| &claim.acks);
        let origins: BTreeSet<&str> = holding.chain(acks.iter().map(|(origin, _)| origin.as_str())).collect();
        let sights = self.views.iter().flat_map(|view| view.sights(key, &origins));
        let (seen, not_seen): (Vec<_>, Vec<_>) = sights.partition(|(_, seen)| *seen);
        let tiers = |sights: Vec<(String, bool)>| sights.into_iter().map(|(tier, _)| tier).collect();
        let Name { tenant, source, id } = self.names[key.0 as usize].clone();
        examples.push(Example { tenant, source, id, what, seen: tiers(seen), not_seen: tiers(not_seen) });
    }

    fn lost(&mut self, reference: &Reference) {
        let missing = |key: &Key| -> Vec<String> {
            let claim = &self.claims.of[key];
            let mut missing = Vec::new();
            for view in &self.views {
                let region = view.region();
                for (origin, commit) in claim.acks.iter().filter(|_| view.read(Tier::Log)) {
                    let there = match commit {
                        Some(commit) => view.commits.get(commit) == Some(key),
                        None => view.logs.values().any(|log| log.contains_key(key)),
                    };
                    if !there {
                        missing.push(format!("{region}: {}", log_tier(region, origin)));
                    }
                }
                let wins = reference.winners.get(&key.0).is_some_and(|(_, winner)| winner == key);
                if view.read(Tier::Stored) && wins && !view.stored.contains_key(&key.0) {
                    missing.push(format!("{region}: stored"));
                }
                if view.read(Tier::Handled) && !view.handled.contains(key) {
                    missing.push(format!("{region}: handled"));
                }
            }
            missing
        };
        let acknowledged = self.claims.of.iter().filter(|(_, claim)| claim.state == State::Acknowledged).map(|(key, _)| *key);
        let lost: HashMap<Key, Vec<String>> =
            acknowledged.map(|key| (key, missing(&key))).filter(|(_, missing)| !missing.is_empty()).collect();
        self.verdict.lost = lost.len() as u64;
        for key in self.sorted(lost.keys().copied()) {
            let mut places = lost[&key].clone();
            places.dedup();
            self.example("lost", &key, format!("acknowledged, missing at {}", places.join(", ")));
        }
    }

    fn counted_twice(&mut self, reference: &Reference) {
        let mut extra: HashMap<Key, u64> = HashMap::new();
        let mut beyond: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for view in self.views.iter().filter(|view| view.read(Tier::Stored)) {
            for rows in view.stored.values().filter(|rows| rows.len() > 1) {
                let count = extra.entry(rows[0].0).or_default();
                *count = (*count).max(rows.len() as u64 - 1);
            }
            for usage in &view.audit.usage {
                let rows = view.stored.iter().filter(|(name, _)| self.names[**name as usize].tenant == usage.tenant);
                let rows: u64 = rows.map(|(_, rows)| rows.len() as u64).sum();
                let right = reference.usage.get(&usage.tenant).map_or(0, |(_, count)| *count);
                let surplus = usage.count.saturating_sub(rows.max(right));
                let over = beyond.entry(usage.tenant.clone()).or_default();
                if surplus > over.0 {
                    *over = (surplus, format!("{} counts {}, {rows} rows are stored, {right} are right", view.region(), usage.count));
                }
            }
        }
        self.verdict.counted_twice = extra.values().sum::<u64>() + beyond.values().map(|(count, _)| count).sum::<u64>();
        for key in self.sorted(extra.keys().copied()) {
            self.example("counted_twice", &key, format!("{} rows too many where sums are made", extra[&key]));
        }
        for (tenant, (_, what)) in beyond.into_iter().filter(|(_, (count, _))| *count > 0) {
            let examples = self.verdict.examples.entry("counted_twice".into()).or_default();
            examples.push(Example { tenant, what, ..Example::default() });
        }
    }

    fn phantom(&mut self) {
        let seen = self.views.iter().flat_map(|view| {
            let logs = view.logs.values().flat_map(|log| log.keys());
            let stored = view.stored.values().flatten().map(|(key, _)| key);
            logs.chain(stored).chain(&view.handled)
        });
        let phantoms: HashSet<Key> = seen.filter(|key| !self.claims.allowed(key)).copied().collect();
        self.verdict.phantom = phantoms.len() as u64;
        for key in self.sorted(phantoms) {
            let known = self.claims.of.contains_key(&key);
            self.example(
                "phantom",
                &key,
                if known { "refused or not sent, yet there".into() } else { "never posted by this run, yet there".into() },
            );
        }
    }

    fn unresolved(&mut self) {
        let unknown: Vec<Key> = self.claims.of.iter().filter(|(_, claim)| claim.state == State::Unknown).map(|(key, _)| *key).collect();
        self.verdict.unresolved = unknown.len() as u64;
        for key in self.sorted(unknown) {
            self.example("unresolved", &key, "no answer to the end".into());
        }
    }

    fn conflicts(&mut self, reference: &Reference) {
        let mut payloads: HashMap<u32, u32> = HashMap::new();
        reference.present.iter().for_each(|key| *payloads.entry(key.0).or_default() += 1);
        let both: Vec<Key> = reference.present.iter().filter(|key| payloads[&key.0] > 1).copied().collect();
        self.verdict.conflicts = payloads.values().filter(|count| **count > 1).count() as u64;
        for key in self.sorted(both) {
            let winner = reference.winners[&key.0].1 == key;
            self.example(
                "conflicts",
                &key,
                if winner { "two payloads; this one counts".into() } else { "two payloads; this one does not count".into() },
            );
        }
    }

    fn wrong_answers(&mut self) {
        for record in &self.history.records {
            let Some(attempt) = record.decided_by() else { continue };
            let refused = attempt.status.is_some_and(|status| (400..500).contains(&status) && status != 429);
            let what = match (record.kind.as_str(), record.outcome) {
                ("invalid", Outcome::Ok) => format!("{} was accepted", record.detail),
                ("conflict", Outcome::Ok) if !record.was_unknown() => "another payload was accepted, after the first".into(),
                ("post" | "repeat", Outcome::Fail) if refused => {
                    format!("a valid request was refused: {} {}", attempt.status.unwrap_or_default(), attempt.note)
                }
                _ => continue,
            };
            self.verdict.wrong_answers += 1;
            let examples = self.verdict.examples.entry("wrong_answers".into()).or_default();
            if examples.len() < EXAMPLES_MAX {
                let id = record.events.first().map(|event| event.id.clone()).unwrap_or_default();
                let (tenant, source) = (record.tenant.clone(), self.history.head.source.clone());
                examples.push(Example { tenant, source, id, what, seen: vec![attempt.region.clone()], not_seen: Vec::new() });
            }
        }
    }

    fn duplicated_in_log(&mut self) {
        let mut records: HashMap<Key, u64> = HashMap::new();
        for view in &self.views {
            let own = view.logs.iter().filter(|(origin, _)| **origin == view.region()).flat_map(|(_, log)| log);
            own.for_each(|(key, count)| *records.entry(*key).or_default() += u64::from(*count));
        }
        let repeated: u64 = self.views.iter().flat_map(|view| &view.audit.logs).map(|log| log.repeated_positions.len() as u64).sum();
        self.verdict.duplicated_in_log = records.values().map(|count| count - 1).sum::<u64>() + repeated;
        for key in self.sorted(records.iter().filter(|(_, count)| **count > 1).map(|(key, _)| *key)) {
            self.example("duplicated_in_log", &key, format!("{} records in own logs", records[&key]));
        }
    }

    fn divergent(&mut self, reference: &Reference) {
        let acknowledged: HashSet<u128> =
            self.claims.of.values().flat_map(|claim| claim.acks.iter().filter_map(|(_, commit)| *commit)).collect();
        let mut lines = Vec::new();
        for view in &self.views {
            if view.read(Tier::Log) {
                lines.extend(self.history.head.regions.iter().map(|origin| self.log_line(view, origin, &acknowledged)));
            }
            if view.read(Tier::Stored) {
                lines.push(stored_line(view, reference));
            }
            if view.read(Tier::Usage) {
                lines.push(usage_line(view, reference));
            }
            if view.read(Tier::Handled) {
                lines.push(handled_line(view, reference));
            }
        }
        self.verdict.divergent = lines.iter().filter(|line| !line.differs.is_empty()).count() as u64;
        let examples = lines
            .iter()
            .filter(|line| !line.differs.is_empty())
            .map(|line| Example { what: format!("{}: {}: {}", line.region, line.tier, line.differs.join("; ")), ..Example::default() });
        let examples: Vec<Example> = examples.take(EXAMPLES_MAX).collect();
        if !examples.is_empty() {
            self.verdict.examples.insert("divergent".into(), examples);
        }
        self.verdict.tiers = lines;
    }

    fn log_line(&self, view: &View<'_>, origin: &str, acknowledged: &HashSet<u128>) -> TierLine {
        let region = view.region();
        let owner = self.views.iter().find(|view| view.region() == origin && view.read(Tier::Log));
        let mut line = TierLine { region: region.into(), tier: log_tier(region, origin), ..TierLine::default() };
        let restarted = self.history.head.restarted.iter().any(|name| name == region);
        let mut there = BTreeSet::new();
        for log in view.audit.logs.iter().filter(|log| log.origin == origin) {
            let place = format!("g{} partition {}", log.generation, log.partition);
            there.insert((log.generation, log.partition));
            line.differs.extend(log.faults.iter().map(|fault| format!("{place}: {fault}")));
            if !restarted && !log.repeated_positions.is_empty() {
                line.differs.push(format!("{place}: {} positions stand there twice, without a restart", log.repeated_positions.len()));
            }
            let late = log.late.iter().filter(|commit| acknowledged.contains(commit)).count();
            if late > 0 {
                line.differs.push(format!("{place}: {late} acknowledged events came after a watermark that covers them"));
            }
            let mine = view.positions(log);
            line.events += mine.len() as u64;
            let own = owner.and_then(|owner| {
                let same = |own: &&crate::audit::LogAudit| {
                    (own.generation, own.partition, own.origin.as_str()) == (log.generation, log.partition, origin)
                };
                Some(owner.positions(owner.audit.logs.iter().find(same)?))
            });
            let Some(own) = own else { continue };
            line.expected += own.len() as u64;
            let lacking = own.iter().filter(|(offset, event)| mine.get(offset) != Some(event)).count();
            let added = mine.iter().filter(|(offset, _)| !own.contains_key(offset)).count();
            if lacking + added > 0 {
                line.differs.push(format!("{place}: {lacking} positions of the origin's log are missing or other, {added} are not in it"));
            }
        }
        for log in owner.iter().flat_map(|owner| &owner.audit.logs).filter(|log| log.origin == origin && !log.records.is_empty()) {
            if !there.contains(&(log.generation, log.partition)) {
                line.expected += log.records.len() as u64;
                line.differs.push(format!("g{} partition {} is not there", log.generation, log.partition));
            }
        }
        let acked_here = self.claims.of.values().flat_map(|claim| &claim.acks).filter(|(by, _)| by == origin);
        let missing = acked_here.filter_map(|(_, commit)| *commit).filter(|commit| !view.commits.contains_key(commit)).count();
        if missing > 0 {
            line.differs.push(format!("{missing} acknowledged commits are missing"));
        }
        line
    }
}

fn stored_line(view: &View<'_>, reference: &Reference) -> TierLine {
    let missing = reference.winners.keys().filter(|name| !view.stored.contains_key(name)).count();
    let other = |name: &u32| {
        let rows = view.stored.get(name)?;
        let (commit, key) = reference.winners.get(name)?;
        Some(!rows.iter().any(|(row, row_commit)| row == key && (*commit == u128::MAX || row_commit == commit)))
    };
    let other = reference.winners.keys().filter(|name| other(name) == Some(true)).count();
    let added = view.stored.keys().filter(|name| !reference.winners.contains_key(name)).count();
    let rows: u64 = view.stored.values().map(|rows| rows.len() as u64).sum();
    let mut line = TierLine { region: view.region().into(), tier: "stored".into(), ..TierLine::default() };
    (line.events, line.expected) = (rows, reference.winners.len() as u64);
    let repeated = rows - view.stored.len() as u64;
    for (count, what) in [(missing, "missing"), (other, "with another payload or commit id"), (added, "that must not be there")] {
        if count > 0 {
            line.differs.push(format!("{count} identities {what}"));
        }
    }
    if repeated > 0 {
        line.differs.push(format!("{repeated} rows beyond one an identity"));
    }
    line
}

fn usage_line(view: &View<'_>, reference: &Reference) -> TierLine {
    let answers: BTreeMap<&str, (Decimal, u64)> =
        view.audit.usage.iter().map(|usage| (usage.tenant.as_str(), (usage.sum, usage.count))).collect();
    let tenants: BTreeSet<&str> = answers.keys().copied().chain(reference.usage.keys().map(String::as_str)).collect();
    let mut line = TierLine { region: view.region().into(), tier: "usage".into(), ..TierLine::default() };
    for tenant in tenants {
        let answer = answers.get(tenant).copied().unwrap_or_default();
        let expected = reference.usage.get(tenant).copied().unwrap_or_default();
        if answer != expected {
            let ((sum, count), (right, right_count)) = (answer, expected);
            line.differs.push(format!("{tenant}: sum {sum} of {count} events, must be {right} of {right_count}"));
        }
    }
    line.events = answers.values().map(|(_, count)| count).sum();
    line.expected = reference.usage.values().map(|(_, count)| count).sum();
    line.sum = Some(answers.values().map(|(sum, _)| *sum).sum::<Decimal>().to_string());
    line
}

fn handled_line(view: &View<'_>, reference: &Reference) -> TierLine {
    let missing = reference.present.iter().filter(|key| !view.handled.contains(key)).count();
    let added = view.handled.iter().filter(|key| !reference.present.contains(key)).count();
    let mut line = TierLine { region: view.region().into(), tier: "handled".into(), ..TierLine::default() };
    (line.events, line.expected) = (view.handled.len() as u64, reference.present.len() as u64);
    for (count, what) in [(missing, "missing"), (added, "that must not be there")] {
        if count > 0 {
            line.differs.push(format!("{count} events {what}"));
        }
    }
    line
}
