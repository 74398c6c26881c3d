//! Ports of regions on the host's 127.0.0.1: one thread carries them all.

use super::World;
use anyhow::{Context, Result, anyhow};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Connections at once, over all exposed ports; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 1024;
/// How long a region may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A port to expose.
struct Order {
    region: String,
    to: SocketAddr,
    host_port: u16,
    done: oneshot::Sender<Result<SocketAddr>>,
}

/// Carries connections from the host into the regions, until it is dropped.
pub struct Exposer {
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Exposer {
    /// Starts the thread that carries.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(world: &Arc<World>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (orders, mut queue) = mpsc::unbounded_channel::<Order>();
        let world = Arc::downgrade(world);
        let thread = std::thread::Builder::new().name("expose".into()).spawn(move || {
            runtime.block_on(async {
                let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
                while let Some(Order { region, to, host_port, done }) = queue.recv().await {
                    let answer = listen(host_port).await.and_then(|listener| Ok((listener.local_addr()?, listener)));
                    let address = answer.map(|(address, listener)| {
                        tokio::spawn(accept(listener, Arc::clone(&room), Weak::clone(&world), region, to));
                        address
                    });
                    let _ = done.send(address);
                }
            });
        })?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    /// Makes `to`, as seen from inside `region`, reachable on the host's 127.0.0.1, at `host_port` if that is free.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn expose(&self, region: &str, to: SocketAddr, host_port: u16) -> Result<SocketAddr> {
        let (done, answer) = oneshot::channel();
        let gone = || anyhow!("the world is closing");
        let order = Order { region: region.into(), to, host_port, done };
        self.orders.as_ref().ok_or_else(gone)?.send(order).map_err(|_| gone())?;
        answer.blocking_recv().map_err(|_| gone())?
    }
}

impl Drop for Exposer {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn listen(port: u16) -> Result<TcpListener> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no free port on 127.0.0.1"),
    }
}

async fn accept(listener: TcpListener, room: Arc<Semaphore>, world: Weak<World>, region: String, to: SocketAddr) {
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let (world, region) = (Weak::clone(&world), region.clone());
                tokio::spawn(async move {
                    // A refused connection is closed without a word, as the region's own refusal would be.
                    let _ = carry(client, &world, &region, to).await;
                    drop(place);
                });
            }
            // Too many open files: the next try needs some to be closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn carry(mut client: TcpStream, world: &Weak<World>, region: &str, to: SocketAddr) -> Result<()> {
    let (socket, mut lives) = {
        let world = world.upgrade().context("the world is gone")?;
        (world.socket(region)?, world.lives(region)?)
    };
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    client.set_nodelay(true)?;
    let socket = TcpSocket::from_std_stream(socket.into());
    let mut server = tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(to)).await??;
    lives.mark_unchanged();
    tokio::select! {
        ended = tokio::io::copy_bidirectional(&mut client, &mut server) => drop(ended),
        // The region came back with another kernel, which does not know this connection.
        _ = lives.changed() => {}
    }
    Ok(())
}
