//! Run folders: written whole, beside their place, then moved there.

use super::{html, json::Run, markdown};
use crate::{audit::RegionAudit, history::History, latency::Latency};
use anyhow::{Context, Result};
use hdrhistogram::{
    Histogram,
    serialization::{V2DeflateSerializer, interval_log::IntervalLogWriterBuilder},
};
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// What of a run is kept.
pub struct Parts<'a> {
    /// `run.json` and what is drawn from it.
    pub run: &'a Run,
    /// `history.ndjson`.
    pub history: &'a History,
    /// `audit/REGION.audit`.
    pub audits: &'a [RegionAudit],
    /// `hops/*.hgrm` and `latency.hlog`.
    pub latency: &'a Latency,
}

/// Writes a run to `runs/ID` and points `runs/latest` at it. Nothing half-written is ever under its name.
///
/// # Errors
/// When the folder cannot be written.
pub fn whole(runs: &Path, parts: &Parts<'_>) -> Result<PathBuf> {
    let id = &parts.run.id;
    fs::create_dir_all(runs).with_context(|| runs.display().to_string())?;
    let partial = runs.join(format!(".{id}.partial"));
    let written = fill(&partial, parts);
    if written.is_err() {
        let _ = fs::remove_dir_all(&partial);
    }
    written?;
    let place = runs.join(id);
    fs::rename(&partial, &place).with_context(|| place.display().to_string())?;
    let link = runs.join(".latest.partial");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(id, &link)?;
    fs::rename(&link, runs.join("latest")).context("runs/latest")?;
    Ok(place)
}

fn fill(folder: &Path, parts: &Parts<'_>) -> Result<()> {
    fs::create_dir_all(folder)?;
    parts.history.write(&folder.join("history.ndjson"))?;
    kept(folder, parts.audits)?;
    histograms(folder, parts.latency)?;
    drawn(folder, parts.run)
}

/// `audit/REGION.audit` of each region.
///
/// # Errors
/// When one cannot be written.
pub fn kept(folder: &Path, audits: &[RegionAudit]) -> Result<()> {
    let folder = folder.join("audit");
    fs::create_dir_all(&folder)?;
    audits.iter().try_for_each(|audit| audit.write(&folder.join(format!("{}.audit", audit.region))))
}

/// `run.json`, `report.html` and `summary.md`, each replaced as a whole.
///
/// # Errors
/// When one cannot be written.
pub fn drawn(folder: &Path, run: &Run) -> Result<()> {
    let mut json = serde_json::to_vec_pretty(run).context("run.json")?;
    json.push(b'\n');
    replace(&folder.join("run.json"), &json)?;
    replace(&folder.join("report.html"), html::render(run).as_bytes())?;
    replace(&folder.join("summary.md"), markdown::render(run).as_bytes())
}

fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, bytes).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, path).with_context(|| path.display().to_string())
}

/// Reads `run.json` of a run's folder.
///
/// # Errors
/// When it is not one of this version.
pub fn read_run(folder: &Path) -> Result<Run> {
    let path = folder.join("run.json");
    let run: Run = serde_json::from_slice(&fs::read(&path).with_context(|| path.display().to_string())?)
        .with_context(|| format!("{} is not of this version", path.display()))?;
    anyhow::ensure!(run.schema == super::json::SCHEMA, "{} has the format {:?}", path.display(), run.schema);
    Ok(run)
}

/// Reads all audits of a run's folder.
///
/// # Errors
/// When one is damaged.
pub fn read_audits(folder: &Path) -> Result<Vec<RegionAudit>> {
    let folder = folder.join("audit");
    let mut paths: Vec<PathBuf> =
        fs::read_dir(&folder).with_context(|| folder.display().to_string())?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "audit"));
    paths.sort();
    paths.iter().map(|path| RegionAudit::read(path)).collect()
}

/// Each hop of each pair: as text for plotters (`.hgrm`, milliseconds), and all of them, lossless, in one log that merges (`latency.hlog`).
fn histograms(folder: &Path, latency: &Latency) -> Result<()> {
    let hops = folder.join("hops");
    fs::create_dir_all(&hops)?;
    let mut log = BufWriter::new(File::create(folder.join("latency.hlog"))?);
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new().add_comment("microseconds").begin_log_with(&mut log, &mut serializer)?;
    let mut keep = |name: String, histogram: &Histogram<u64>| -> Result<()> {
        fs::write(hops.join(format!("{name}.hgrm")), percentiles(histogram)?)?;
        let tag = hdrhistogram::serialization::interval_log::Tag::new(&name);
        writer.write_histogram(histogram, Duration::ZERO, Duration::ZERO, tag).ok().context("latency.hlog")
    };
    for ((origin, destination), hops) in &latency.pairs {
        for (hop, times) in hops {
            keep(format!("{origin}-{destination}-{}", hop.name()), times.corrected.histogram())?;
            keep(format!("{origin}-{destination}-{}-uncorrected", hop.name()), times.uncorrected.histogram())?;
            keep(format!("{origin}-{destination}-{}-step", hop.name()), times.step.histogram())?;
        }
    }
    keep("send-error".into(), latency.send_error.histogram())?;
    log.flush().context("latency.hlog")
}

/// The percentile format of HdrHistogram's own tools.
fn percentiles(histogram: &Histogram<u64>) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
    let mut total = 0;
    for value in histogram.iter_quantiles(5) {
        total += value.count_since_last_iteration();
        let (at, quantile) = (value.value_iterated_to() as f64 / 1e3, value.quantile_iterated_to());
        if quantile < 1.0 {
            writeln!(out, "{at:12.3} {quantile:14.12} {total:10} {:14.2}", 1.0 / (1.0 - quantile))?;
        } else {
            writeln!(out, "{at:12.3} {quantile:14.12} {total:10}")?;
        }
    }
    let (mean, deviation) = (histogram.mean() / 1e3, histogram.stdev() / 1e3);
    writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
    writeln!(out, "#[Max     = {:12.3}, Total count    = {:12}]", histogram.max() as f64 / 1e3, histogram.len())?;
    writeln!(out, "#[Buckets = {:12}, SubBuckets     = {:12}]", histogram.buckets(), 2048)?;
    Ok(out)
}
