//! The database's keyspace and tables.

use crate::files;
use adapters::scylla::ClusterView;
use anyhow::{Context, Result, ensure};
use kit::{Effect, backoff::Backoff};
use std::time::Duration;
use tokio::time::Instant;

const CLUSTER_PATIENCE: Duration = Duration::from_secs(90);

/// Everything the job does to the outside world.
#[derive(Clone)]
pub struct Effects {
    /// Who is connected, and whether all agree on the schema.
    pub view_cluster: Effect<(), ClusterView>,
    /// Carries out one statement and waits until all agree.
    pub execute_ddl: Effect<String, ()>,
}

/// Applies every file in order, and gives the number of statements.
///
/// # Errors
/// When not all regions are connected and agree within 90 s; when a statement fails: names its file.
pub async fn apply(Effects { view_cluster, execute_ddl }: &Effects, regions: &[String]) -> Result<usize> {
    let mut count = 0;
    for (name, text) in files::CQL {
        for statement in files::statements(text) {
            // A node that misses a change and then hears of the next one stays broken: never on to the next before all agree.
            await_cluster(view_cluster).await?;
            let statement = statement.replace("${replication}", &files::replication(regions));
            execute_ddl(statement).await.with_context(|| (*name).to_owned())?;
            count += 1;
        }
    }
    Ok(count)
}

async fn await_cluster(view_cluster: &Effect<(), ClusterView>) -> Result<()> {
    let (started, mut backoff) = (Instant::now(), Backoff::new(Duration::from_millis(50), Duration::from_secs(1)));
    loop {
        let view = view_cluster(()).await;
        if view.as_ref().is_ok_and(|view| view.complete) {
            return Ok(());
        }
        ensure!(started.elapsed() < CLUSTER_PATIENCE, "not all regions are connected and agree on the schema: {view:?}");
        backoff.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::{effect, fail_first, recorded};

    fn view(complete: bool) -> Effect<(), ClusterView> {
        effect(move |()| async move { Ok(ClusterView { complete, ..ClusterView::default() }) })
    }

    #[tokio::test(start_paused = true)]
    async fn statements_are_applied_in_order_with_the_regions_put_in() {
        let (execute_ddl, statements) = recorded(effect(|_: String| async { Ok(()) }));
        let effects = Effects { view_cluster: fail_first(2, view(true)), execute_ddl };
        let count = apply(&effects, &["fra".into(), "sin".into()]).await.unwrap();
        let statements = statements.lock().unwrap();
        assert_eq!(count, statements.len());
        assert!(statements[0].contains("KEYSPACE") && statements[0].contains("'fra': 1, 'sin': 1}"), "{}", statements[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_applied_while_a_region_is_missing() {
        let effects = Effects { view_cluster: view(false), execute_ddl: kit::unused("execute_ddl") };
        let error = apply(&effects, &["fra".into()]).await.unwrap_err().to_string();
        assert!(error.contains("not all regions"), "{error}");
    }
}
