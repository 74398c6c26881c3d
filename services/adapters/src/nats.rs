//! Hints over NATS: "something new is there". They carry no data, may be lost, and are covered by the receiver's tick.
//!
//! **A subject never holds a name as it was given: tenants are encoded.** Nothing here queues without bound: what
//! cannot be sent at once is dropped, and what was received and not yet asked for is merged.

use anyhow::{Context, Result, anyhow, bail, ensure};
use async_nats::{Client, ConnectOptions, Event, connection::State};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use futures::StreamExt;
use meridian_proto::{PARTITIONS, Signal};
use prost::Message;
use rand::RngExt;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// How long a hint may wait to be handed to the connection before it is dropped.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// Messages that a subscription holds before the driver drops; our own task empties it at once.
const SUBSCRIPTION_CAPACITY: usize = 1024;
/// Commands that the connection holds before senders wait.
const CLIENT_CAPACITY: usize = 1024;
/// At most one line of log about the connection in this time.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// Where NATS is, and for which region hints are sent.
#[derive(Clone, Debug)]
pub struct NatsConfig {
    /// `nats://host:port` of a server of this region.
    pub url: String,
    /// Region of the process: the one that it sends hints about.
    pub region: String,
    /// Name under which the server shows this client.
    pub client_id: String,
}

/// A connection that restores itself, with its subscriptions, for ever.
#[derive(Debug)]
pub struct Nats {
    client: Client,
    region: String,
}

/// A hint for one tenant.
#[derive(Clone, Debug)]
pub struct SendSignal {
    /// Whom it concerns.
    pub tenant: String,
    /// What is sent.
    pub signal: Signal,
}

/// Whose signals to listen for.
#[derive(Clone, Debug)]
pub struct SignalsOf {
    /// Region whose feed sends them.
    pub region: String,
    /// The tenant.
    pub tenant: String,
}

/// Subject of a tenant's signals: `signal.<region>.<base64url of the tenant>`.
pub fn signal_subject(region: &str, tenant: &str) -> String {
    format!("signal.{region}.{}", BASE64_URL_SAFE_NO_PAD.encode(tenant))
}

/// Subject of the change hints of one partition: `changes.<region>.<partition>`.
pub fn change_subject(region: &str, partition: u16) -> String {
    format!("changes.{region}.{partition}")
}

fn check_region(region: &str) -> Result<()> {
    let plain = !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    ensure!(plain, "{region:?} is not the name of a region");
    Ok(())
}

impl Nats {
    /// Connects, and returns when the server answers, however long that takes.
    ///
    /// # Errors
    /// When the configuration is wrong (region name, URL).
    pub async fn connect(config: &NatsConfig) -> Result<Arc<Self>> {
        let nats = Self::start(config).await?;
        nats.connected().await;
        Ok(nats)
    }

    /// Begins to connect and returns at once: for whoever can do without hints meanwhile.
    ///
    /// # Errors
    /// When the configuration is wrong (region name, URL).
    pub async fn start(config: &NatsConfig) -> Result<Arc<Self>> {
        check_region(&config.region)?;
        let log = Arc::new(EventLog::default());
        let options = ConnectOptions::new()
            .name(&config.client_id)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .ping_interval(Duration::from_secs(2))
            .connection_timeout(Duration::from_secs(2))
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            .client_capacity(CLIENT_CAPACITY)
            .ignore_discovered_servers()
            .reconnect_delay_callback(|attempts| {
                let step = Duration::from_millis(50 << attempts.min(4));
                step.mul_f64(rand::rng().random_range(0.5..=1.0))
            })
            .event_callback(move |event| {
                log.tell(&event);
                async {}
            });
        let client = options.connect(config.url.as_str()).await.with_context(|| format!("NATS at {}", config.url))?;
        Ok(Arc::new(Self { client, region: config.region.clone() }))
    }

    /// Whether the connection stands now, as far as the driver knows.
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Waits until the connection stands: the driver's own connect returns before that.
    pub async fn connected(&self) {
        loop {
            let flushed = self.is_connected() && matches!(timeout(Duration::from_secs(1), self.client.flush()).await, Ok(Ok(())));
            if flushed {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Hands a message to the connection, or drops it: hints are never stored for later.
    async fn send(&self, subject: String, payload: Bytes) -> Result<()> {
        if !self.is_connected() {
            bail!("NATS is not connected");
        }
        timeout(SEND_TIMEOUT, self.client.publish(subject, payload)).await.map_err(|_| anyhow!("NATS takes nothing"))??;
        Ok(())
    }

    async fn listen<T: Send + 'static>(
        &self,
        subject: String,
        mut merge: impl FnMut(&mut Option<T>, &async_nats::Message) + Send + 'static,
    ) -> Result<Merged<T>> {
        let mut subscriber = self.client.subscribe(subject).await?;
        let shared = Arc::new(Shared { value: Mutex::new(None), changed: Notify::new() });
        let writer = Arc::clone(&shared);
        let reader = tokio::spawn(async move {
            while let Some(message) = subscriber.next().await {
                if let Ok(mut value) = writer.value.lock() {
                    merge(&mut value, &message);
                }
                writer.changed.notify_one();
            }
        });
        // The subscription stands at the server only after a round trip; without a connection it is set at the next one.
        timeout(Duration::from_secs(1), self.client.flush()).await.ok();
        Ok(Merged { shared, reader })
    }
}

/// Sends one signal. Not sent is an error, and no harm: the receiver's tick covers it.
///
/// # Errors
/// When the server is not connected or takes nothing for 100 ms.
pub async fn send_signal(nats: Arc<Nats>, input: SendSignal) -> Result<()> {
    let subject = signal_subject(&nats.region, &input.tenant);
    nats.send(subject, input.signal.encode_to_vec().into()).await
}

/// Tells the relay of this region that a partition of the change log has a new row.
///
/// # Errors
/// As [`send_signal`].
pub async fn send_change_hint(nats: Arc<Nats>, partition: u16) -> Result<()> {
    nats.send(change_subject(&nats.region, partition), Bytes::new()).await
}

/// Listens for the signals of one tenant. Signals that arrive between two calls of [`Signals::next`] count as one.
///
/// # Errors
/// When the region's name is not one.
pub async fn subscribe_signals(nats: Arc<Nats>, of: SignalsOf) -> Result<Signals> {
    check_region(&of.region)?;
    let merge = |value: &mut Option<Signal>, message: &async_nats::Message| {
        // Whatever came is a hint: text that is not a signal wakes as well.
        let signal = Signal::decode(message.payload.clone()).unwrap_or_default();
        value.get_or_insert(signal);
    };
    Ok(Signals(nats.listen(signal_subject(&of.region, &of.tenant), merge).await?))
}

/// Listens for the change hints of one region.
///
/// # Errors
/// When the region's name is not one.
pub async fn subscribe_change_hints(nats: Arc<Nats>, region: String) -> Result<ChangeHints> {
    check_region(&region)?;
    let merge = |value: &mut Option<BTreeSet<u16>>, message: &async_nats::Message| {
        let partition = message.subject.rsplit('.').next().and_then(|text| text.parse::<u16>().ok());
        value.get_or_insert_default().extend(partition.filter(|partition| *partition < PARTITIONS));
    };
    Ok(ChangeHints(nats.listen(format!("changes.{region}.*"), merge).await?))
}

/// Waits for hints and gives the partitions named since the last call. For one caller at a time.
///
/// # Errors
/// None: hints that are lost are covered by the tick of whoever waits.
pub async fn await_change_hint(hints: Arc<tokio::sync::Mutex<ChangeHints>>, (): ()) -> Result<BTreeSet<u16>> {
    Ok(hints.lock().await.next().await)
}

/// Signals of one tenant, merged while nobody asks.
#[derive(Debug)]
pub struct Signals(Merged<Signal>);

impl Signals {
    /// Waits for the next signal; of several that came meanwhile, gives the oldest. May be dropped at any await.
    pub async fn next(&mut self) -> Signal {
        self.0.take().await
    }
}

/// Change hints of one region, merged while nobody asks.
#[derive(Debug)]
pub struct ChangeHints(Merged<BTreeSet<u16>>);

impl ChangeHints {
    /// Waits for hints and gives the partitions named since the last call. May be dropped at any await.
    pub async fn next(&mut self) -> BTreeSet<u16> {
        self.0.take().await
    }
}

#[derive(Debug)]
struct Shared<T> {
    value: Mutex<Option<T>>,
    changed: Notify,
}

/// What a subscription brought and nobody took yet: one value, however much came.
#[derive(Debug)]
struct Merged<T> {
    shared: Arc<Shared<T>>,
    reader: JoinHandle<()>,
}

impl<T> Merged<T> {
    async fn take(&mut self) -> T {
        loop {
            if let Some(value) = self.shared.value.lock().ok().and_then(|mut value| value.take()) {
                return value;
            }
            self.shared.changed.notified().await;
        }
    }
}

impl<T> Drop for Merged<T> {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Tells about the connection, at most one line in [`LOG_PERIOD`]; the driver makes an event of every vain try.
#[derive(Default)]
struct EventLog(Mutex<Option<(Instant, u64)>>);

impl EventLog {
    fn tell(&self, event: &Event) {
        metrics::counter!("meridian_nats_events_total", "event" => kind_of(event)).increment(1);
        let Ok(mut last) = self.0.lock() else { return };
        match &mut *last {
            Some((told, withheld)) if told.elapsed() < LOG_PERIOD => *withheld += 1,
            last => {
                let withheld = last.map_or(0, |(_, withheld)| withheld);
                tracing::info!(%event, withheld, "NATS");
                *last = Some((Instant::now(), 0));
            }
        }
    }
}

fn kind_of(event: &Event) -> &'static str {
    match event {
        Event::Connected => "connected",
        Event::Disconnected => "disconnected",
        Event::SlowConsumer(_) => "slow_consumer",
        Event::ServerError(_) => "server_error",
        Event::ClientError(_) => "client_error",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_stand_raw_in_a_subject() {
        for tenant in ["acme", "a.b", "*", ">", "x y", "\r\n", "ügy"] {
            let subject = signal_subject("fra", tenant);
            let token = subject.strip_prefix("signal.fra.").unwrap();
            assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{subject}");
            assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(token).unwrap(), tenant.as_bytes());
        }
        for region in ["", "fra.iad", "*", ">", "FRA"] {
            assert!(check_region(region).is_err(), "{region}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn log_lines_about_the_connection_are_rate_limited() {
        let log = EventLog::default();
        for _ in 0..1000 {
            log.tell(&Event::Disconnected);
        }
        assert_eq!(log.0.lock().unwrap().unwrap().1, 999);
        tokio::time::advance(LOG_PERIOD).await;
        log.tell(&Event::Connected);
        assert_eq!(log.0.lock().unwrap().unwrap().1, 0);
    }

    #[tokio::test]
    async fn what_nobody_took_is_one_value() {
        let shared = Arc::new(Shared { value: Mutex::new(Some(7)), changed: Notify::new() });
        let mut merged = Merged { shared: Arc::clone(&shared), reader: tokio::spawn(async {}) };
        shared.changed.notify_one();
        assert_eq!(merged.take().await, 7);
        assert!(timeout(Duration::from_millis(20), merged.take()).await.is_err());
    }
}
