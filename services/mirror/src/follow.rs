//! The sender: serves this region's own log to whoever follows it.

use crate::{
    Effects, Limits, LocalTail, Opened, Shipment,
    wire::{
        self,
        v1::{
            FollowRequest, Frame,
            mirror_server::{Mirror, MirrorServer},
        },
    },
};
use anyhow::{Context, Result, anyhow};
use futures::{Stream, StreamExt, future::Either, stream, stream::BoxStream};
use kit::shutdown::CancellationToken;
use socket2::SockRef;
use std::{sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};
use tonic::{Request, Response, Status, transport::Server};

/// Serves `Follow` on `listener` until asked to stop.
///
/// # Errors
/// When the server fails.
pub async fn serve(
    effects: Effects,
    limits: Arc<Limits>,
    region: String,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<()> {
    let sender = Sender::new(effects, Arc::clone(&limits), region, shutdown.clone());
    let server = Server::builder()
        .http2_keepalive_interval(Some(limits.silence_max))
        .http2_keepalive_timeout(Some(limits.silence_max))
        .add_service(MirrorServer::new(sender))
        .serve_with_incoming_shutdown(connections(listener, limits.tcp_user_timeout), shutdown.clone().cancelled_owned());
    server.await.context("serve the own log")
}

fn connections(listener: TcpListener, user_timeout: Duration) -> impl Stream<Item = std::io::Result<TcpStream>> {
    stream::unfold(listener, move |listener| async move {
        let accepted = listener.accept().await.and_then(|(connection, _)| {
            connection.set_nodelay(true)?;
            // A dead receiver is noticed although a stream that only sends hears nothing of it.
            SockRef::from(&connection).set_tcp_user_timeout(Some(user_timeout))?;
            Ok(connection)
        });
        Some((accepted, listener))
    })
}

/// Answers `Follow`.
pub struct Sender {
    effects: Effects,
    limits: Arc<Limits>,
    region: String,
    streams: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Sender {
    /// A sender of `region`'s own log; its streams end when asked to stop.
    pub fn new(effects: Effects, limits: Arc<Limits>, region: String, shutdown: CancellationToken) -> Self {
        let streams = Arc::new(Semaphore::new(limits.streams_max));
        Self { effects, limits, region, streams, shutdown }
    }
}

#[tonic::async_trait]
impl Mirror for Sender {
    type FollowStream = BoxStream<'static, Result<Frame, Status>>;

    async fn follow(&self, request: Request<FollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let request = request.into_inner();
        let peer = request.region.clone();
        let places = wire::places_of(request, &self.region)?;
        let permit = Arc::clone(&self.streams).try_acquire_owned();
        let permit = permit.map_err(|_| Status::resource_exhausted(format!("{} streams are served already", self.limits.streams_max)))?;
        tracing::info!(peer, partitions = places.len(), "follows the own log");
        let tail = match (self.effects.read_local_log)(places).await {
            Ok(Opened::Tail(tail)) => tail,
            Ok(Opened::OutOfRange { place, low, high }) => {
                let status = wire::out_of_range_status(&place, low, high);
                tracing::warn!(peer, "{}", status.message());
                return Err(status);
            }
            Err(error) => return Err(Status::unavailable(format!("the own log: {error:#}"))),
        };
        let (to, mut from) = mpsc::channel(self.limits.frames_waiting_max);
        let pump = Pump { effects: self.effects.clone(), limits: Arc::clone(&self.limits), peer, tail, to, _permit: permit };
        tokio::spawn(self.shutdown.clone().run_until_cancelled_owned(pump.run()));
        Ok(Response::new(stream::poll_fn(move |context| from.poll_recv(context)).boxed()))
    }
}

/// One stream's work.
struct Pump {
    effects: Effects,
    limits: Arc<Limits>,
    peer: String,
    tail: LocalTail,
    to: mpsc::Sender<Result<Frame, Status>>,
    _permit: OwnedSemaphorePermit,
}

impl Pump {
    async fn run(self) {
        // The peer that goes away ends the wait for its next frame too.
        let gone = self.to.clone();
        let ended = match futures::future::select(std::pin::pin!(self.send_all()), std::pin::pin!(gone.closed())).await {
            Either::Left((ended, _)) => ended,
            Either::Right(_) => Err(anyhow!("the peer is gone")),
        };
        if let Err(error) = ended {
            tracing::info!(peer = self.peer, error = format!("{error:#}"), "a stream of the own log ended");
            // For a peer that still listens: it asks again from where it stands.
            _ = self.to.try_send(Err(Status::unavailable(format!("the own log: {error:#}"))));
        }
    }

    async fn send_all(&self) -> Result<()> {
        let Effects { send_frames, host_time, .. } = &self.effects;
        let sent_records = metrics::counter!("meridian_mirror_sent_records_total", "peer" => self.peer.clone());
        loop {
            let read = tokio::time::timeout(self.limits.heartbeat, (self.tail)(())).await;
            let mut frames = read.unwrap_or_else(|_| Ok(Vec::new())).context("read the own log")?;
            if frames.is_empty() {
                frames.push(Frame::default());
            }
            let sent_us = host_time(()).await?.0;
            let records = frames.iter_mut().fold(0, |records, frame| {
                frame.sent_us = sent_us;
                records + frame.records.len() as u64
            });
            send_frames(Shipment { to: self.to.clone(), frames }).await?;
            sent_records.increment(records);
        }
    }
}
