//! Logs (JSON), metrics (Prometheus) and spans (OTLP, where the standard environment variables ask for it).

use crate::config;
use anyhow::{Context, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

/// Upper bounds of the buckets of every `*_seconds` histogram.
const SECONDS: [f64; 16] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];

/// Handle on what a process tells about itself. Dropping the last clone of [`Telemetry::guard`] flushes its spans.
#[derive(Clone)]
pub struct Telemetry {
    metrics: PrometheusHandle,
    spans: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// The metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.metrics.run_upkeep();
        self.metrics.render()
    }

    /// Sends what is left of the spans.
    pub fn flush(&self) {
        if let Some(spans) = &self.spans
            && let Err(error) = spans.shutdown()
        {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Starts telemetry for `service`: JSON logs on standard error at the level of `RUST_LOG` (default `info`), metrics,
/// and spans to `OTEL_EXPORTER_OTLP_ENDPOINT` where that is set.
///
/// # Errors
/// When telemetry was started before in this process, or the exporter's settings are wrong.
pub fn start(service: &'static str) -> Result<Telemetry> {
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?
        .install_recorder()
        .context("metrics recorder")?;
    let spans = span_exporter(service)?;
    let filter = config::variable("RUST_LOG").unwrap_or_else(|| "info".into());
    // This driver writes a line for every vain try and every dropped hint; the adapter tells the same, at a bounded rate.
    let quiet = if filter.contains("async_nats") { "" } else { ",async_nats=off" };
    let filter = EnvFilter::try_new(filter + quiet).context("RUST_LOG")?;
    let export = spans.as_ref().map(|spans| tracing_opentelemetry::layer().with_tracer(spans.tracer(service)));
    // Without an exporter nothing listens for spans, so they cost an atomic read.
    let log = tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).with_current_span(false).with_span_list(false);
    tracing_subscriber::registry().with(export).with(log.with_filter(filter)).try_init().context("logs")?;
    Ok(Telemetry { metrics, spans })
}

fn span_exporter(service: &'static str) -> Result<Option<SdkTracerProvider>> {
    let endpoints = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    if endpoints.iter().all(|name| config::variable(name).is_none()) {
        return Ok(None);
    }
    let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().build().context("OTLP exporter")?;
    let resource = Resource::builder().with_service_name(service).build();
    Ok(Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build()))
}
