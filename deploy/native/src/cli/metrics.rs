//! Reading the services' own numbers from their `/metrics` (the Prometheus text format).

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A status must not hang on a service that does.
const PATIENCE: Duration = Duration::from_millis(700);
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// One number with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// A label's value; empty when absent.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", |value| value)
    }
}

/// The samples of these names that a service shows; `None` when it does not answer.
pub fn read(address: SocketAddr, names: &[&str]) -> Option<Vec<Sample>> {
    let text = fetch(address).ok()?;
    let body = text.split_once("\r\n\r\n")?.1;
    text.starts_with("HTTP/1.1 200").then(|| body.lines().filter_map(parse).filter(|sample| names.contains(&&*sample.name)).collect())
}

fn fetch(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// One line of the text format; `None` for comments, and for values that no status needs (escaped labels).
fn parse(line: &str) -> Option<Sample> {
    let (series, value) = line.trim().rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let labels =
        labels.split(',').filter_map(|label| label.split_once('=')).map(|(key, value)| (key.trim().into(), value.trim_matches('"').into()));
    Some(Sample { name: name.into(), labels: labels.collect(), value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_text_format() {
        let sample = parse(r#"meridian_lag_seconds{origin="iad",hop="mirrored"} 0.125"#).unwrap();
        assert_eq!(
            (&*sample.name, sample.label("origin"), sample.label("hop"), sample.value),
            ("meridian_lag_seconds", "iad", "mirrored", 0.125)
        );
        assert_eq!(parse("meridian_dead_letters 3").unwrap().value, 3.0);
        assert_eq!(parse("# HELP meridian_dead_letters of all time"), None);
        assert_eq!(parse(""), None);
    }
}
