//! Just enough of the CQL binary protocol (version 4) to see whether a cluster is one: no driver, since these questions go to one node each.

use super::probe;
use crate::world::World;
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Consistency levels, as the protocol numbers them.
pub const ONE: u16 = 1;
pub const ALL: u16 = 5;
pub const LOCAL_QUORUM: u16 = 6;

const STARTUP: u8 = 1;
const OPTIONS: u8 = 5;
const SUPPORTED: u8 = 6;
const QUERY: u8 = 7;
const READY: u8 = 2;
const ERROR: u8 = 0;
const RESULT_ROWS: u32 = 2;

/// One row: the bytes of each column, `None` for null.
pub type Row = Vec<Option<Vec<u8>>>;

/// A connection to the node of one region.
pub struct Cql(TcpStream);

/// Whether the node answers OPTIONS.
///
/// # Errors
/// When it does not.
pub fn answers(world: &World, region: &str) -> Result<()> {
    let mut cql = Cql(probe::connect(world, region, 9042)?);
    let (opcode, _) = cql.call(OPTIONS, &[])?;
    ensure!(opcode == SUPPORTED, "OPTIONS was answered with {opcode}");
    Ok(())
}

impl Cql {
    /// Connects from inside the region.
    ///
    /// # Errors
    /// When the node does not take the connection.
    pub fn connect(world: &World, region: &str) -> Result<Self> {
        let mut cql = Self(probe::connect(world, region, 9042)?);
        // A map of one pair: CQL_VERSION, 3.0.0.
        let (opcode, _) = cql.call(STARTUP, b"\0\x01\0\x0bCQL_VERSION\0\x053.0.0")?;
        ensure!(opcode == READY, "STARTUP was answered with {opcode}");
        Ok(cql)
    }

    /// How long the next answers may take.
    ///
    /// # Errors
    /// When the socket refuses.
    pub fn patience(&self, patience: Duration) -> Result<()> {
        self.0.set_read_timeout(Some(patience)).context("set a time limit")
    }

    /// Runs a statement without parameters.
    ///
    /// # Errors
    /// The node's own error text.
    pub fn query(&mut self, statement: &str, consistency: u16) -> Result<Vec<Row>> {
        let mut body = (statement.len() as u32).to_be_bytes().to_vec();
        body.extend_from_slice(statement.as_bytes());
        body.extend_from_slice(&consistency.to_be_bytes());
        body.push(0);
        let (opcode, answer) = self.call(QUERY, &body)?;
        let mut answer = Reader(&answer);
        if opcode == ERROR {
            let code = answer.u32()?;
            bail!("{code:#x} {}", String::from_utf8_lossy(answer.short_bytes()?));
        }
        if answer.u32()? == RESULT_ROWS { answer.rows() } else { Ok(Vec::new()) }
    }

    fn call(&mut self, opcode: u8, body: &[u8]) -> Result<(u8, Vec<u8>)> {
        let mut frame = vec![4, 0, 0, 0, opcode];
        frame.extend_from_slice(&(body.len() as u32).to_be_bytes());
        frame.extend_from_slice(body);
        self.0.write_all(&frame)?;
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let size = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) as usize;
        ensure!(size < 64 << 20, "an answer of {size} bytes");
        let mut answer = vec![0; size];
        self.0.read_exact(&mut answer)?;
        Ok((head[4], answer))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).context("half an answer")?;
        self.0 = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.take(2)?.try_into()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn short_bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }

    fn bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let length = self.u32()? as i32;
        usize::try_from(length).ok().map(|length| self.take(length).map(<[u8]>::to_vec)).transpose()
    }

    /// The rows of a result whose columns are of simple types: their type is one number.
    fn rows(&mut self) -> Result<Vec<Row>> {
        let (flags, columns) = (self.u32()?, self.u32()?);
        if flags & 2 != 0 {
            self.bytes()?;
        }
        let one_table = flags & 1 != 0;
        if one_table {
            self.short_bytes()?;
            self.short_bytes()?;
        }
        for _ in 0..columns {
            let names = if one_table { 1 } else { 3 };
            for _ in 0..names {
                self.short_bytes()?;
            }
            let kind = self.u16()?;
            ensure!(kind < 0x20, "a column of the composite type {kind:#x}");
        }
        let rows = self.u32()?;
        (0..rows).map(|_| (0..columns).map(|_| self.bytes()).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_nulls() {
        let mut answer = Vec::new();
        answer.extend_from_slice(&1_u32.to_be_bytes());
        answer.extend_from_slice(&2_u32.to_be_bytes());
        for name in ["system", "local", "a"] {
            answer.extend_from_slice(&(name.len() as u16).to_be_bytes());
            answer.extend_from_slice(name.as_bytes());
            if name == "a" {
                answer.extend_from_slice(&0xd_u16.to_be_bytes());
            }
        }
        answer.extend_from_slice(b"\0\x01b\0\x0c");
        answer.extend_from_slice(&1_u32.to_be_bytes());
        answer.extend_from_slice(b"\0\0\0\x02hi\xff\xff\xff\xff");
        let rows = Reader(&answer).rows().unwrap();
        assert_eq!(rows, [[Some(b"hi".to_vec()), None]]);
        assert!(Reader(&answer[..answer.len() - 1]).rows().is_err());
    }
}
