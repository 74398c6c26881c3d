//! Asking an engine over its own protocol whether it is ready, with a deadline.

use crate::world::World;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// How long one question may take.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long an engine may take until it answers: far longer than on a quiet machine, since a loaded one is five times slower.
pub const START_LIMIT: Duration = Duration::from_secs(150);

/// Repeats `attempt` every `pause` until it gives a value; ends early when `alive` says that there is nothing to wait for.
///
/// # Errors
/// The last attempt's, after `limit`; that of `alive`.
pub fn until<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    alive: impl Fn() -> Result<()>,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if started.elapsed() > limit => {
                return Err(error).with_context(|| format!("{what}: not within {} s", limit.as_secs()));
            }
            Err(_) => alive()?,
        }
        thread::sleep(pause);
    }
}

/// An error with the log's last lines when the process has ended.
///
/// # Errors
/// When it has.
pub fn alive(world: &World, region: &str, name: &str) -> Result<()> {
    let Some(status) = world.exited(region, name) else { return Ok(()) };
    let log = world.log_path(region, name);
    let text = std::fs::read(&log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(15)..].join("\n    ");
    Err(anyhow!("{name} of {region} ended ({status:?}); its log {} ends with\n    {last}", log.display()))
}

/// The address of a port of a region.
///
/// # Errors
/// When the world has no such region.
pub fn address(world: &World, region: &str, port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::from((world.region(region)?.address, port)))
}

/// A connection made inside the region to a port of its own.
///
/// # Errors
/// When nobody listens there in time.
pub fn connect(world: &World, region: &str, port: u16) -> Result<TcpStream> {
    let stream = world.connect(region, address(world, region, port)?, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The body of a page that a region serves, when its status is 200.
///
/// # Errors
/// The status and the body otherwise.
pub fn http_get(world: &World, region: &str, port: u16, path: &str) -> Result<String> {
    let mut stream = connect(world, region, port)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", address(world, region, port)?)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
    let status = head.split(' ').nth(1).unwrap_or("no status");
    ensure!(status == "200", "{path} answers {status}: {}", body.trim());
    Ok(body.to_owned())
}

/// Asks the broker for its metadata: it is ready when it names a controller and itself.
///
/// The request is Metadata v1 of Kafka's protocol (<https://kafka.apache.org/protocol#The_Messages_Metadata>), for no topic.
///
/// # Errors
/// When it does not.
pub fn kafka_metadata(world: &World, region: &str) -> Result<()> {
    let mut stream = connect(world, region, 9092)?;
    let mut request = Vec::from([0, 3, 0, 1, 0, 0, 0, 1]);
    request.extend_from_slice(&6_u16.to_be_bytes());
    request.extend_from_slice(b"native");
    request.extend_from_slice(&0_u32.to_be_bytes());
    stream.write_all(&(request.len() as u32).to_be_bytes())?;
    stream.write_all(&request)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let size = u32::from_be_bytes(size) as usize;
    ensure!((12..1 << 20).contains(&size), "an answer of {size} bytes");
    let mut answer = vec![0; size];
    stream.read_exact(&mut answer)?;
    // Correlation id, then brokers (id, host, port, rack), then the controller's id.
    let mut rest = &answer[4..];
    let brokers = take_i32(&mut rest)?;
    for _ in 0..brokers {
        take_i32(&mut rest)?;
        take_text(&mut rest)?;
        take_i32(&mut rest)?;
        take_text(&mut rest)?;
    }
    let controller = take_i32(&mut rest)?;
    ensure!(brokers > 0 && controller >= 0, "{brokers} brokers, controller {controller}");
    Ok(())
}

fn take_i32(rest: &mut &[u8]) -> Result<i32> {
    let (value, after) = rest.split_first_chunk().context("half an answer")?;
    *rest = after;
    Ok(i32::from_be_bytes(*value))
}

fn take_text(rest: &mut &[u8]) -> Result<()> {
    let (length, after) = rest.split_first_chunk().context("half an answer")?;
    let length = usize::try_from(i16::from_be_bytes(*length)).unwrap_or(0);
    let Some(after) = after.get(length..) else { bail!("half an answer") };
    *rest = after;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_a_value_the_limit_or_a_death() {
        let fine = || Ok(());
        let mut tries = 0;
        let counted = until("it", Duration::from_secs(5), Duration::ZERO, fine, || {
            tries += 1;
            ensure!(tries == 3, "not yet");
            Ok(tries)
        });
        assert_eq!(counted.unwrap(), 3);
        let late = until::<()>("it", Duration::ZERO, Duration::ZERO, fine, || bail!("still closed")).unwrap_err();
        assert_eq!(format!("{late:#}"), "it: not within 0 s: still closed");
        let dead = until::<()>("it", Duration::from_secs(5), Duration::ZERO, || bail!("it ended"), || bail!("closed")).unwrap_err();
        assert_eq!(dead.to_string(), "it ended");
    }
}
