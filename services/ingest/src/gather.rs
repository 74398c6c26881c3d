//! From parts of requests to rows of the change log (rule R5): while a row of a lane is being written, what arrives is
//! gathered into the next one. A lane is a partition at one level of acknowledgement, so that a write that waits for other
//! regions never delays one that does not.

use crate::{CommitIds, Effects, Limits, post::Charge};
use adapters::scylla::{Ack, CommitRow};
use bytes::{BufMut, Bytes, BytesMut};
use kit::seldom::Seldom;
use meridian_proto::{CommitId, Event, PARTITIONS};
use prost::Message;
use std::{collections::VecDeque, sync::Arc};
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

/// Events of one request in one partition: they go into one row together.
pub(crate) struct Part {
    events: Vec<Event>,
    bytes: usize,
    /// The first event's commit id, or nothing: not known whether the row is there. Closed when nobody waits any more.
    answer: oneshot::Sender<Option<CommitId>>,
    /// The request's share of memory, held until the part is forgotten.
    _charge: Arc<Charge>,
}

/// What rows are made with.
pub(crate) struct Writer {
    pub effects: Effects,
    pub limits: Limits,
    pub ids: CommitIds,
    pub generation: u32,
    pub hints: Arc<Semaphore>,
    pub seldom: Seldom,
}

/// The lanes' entries.
pub(crate) struct Lanes(Vec<[mpsc::UnboundedSender<Part>; 2]>);

impl Lanes {
    /// Starts the lanes; each ends when the entries are dropped. What stands in them is bounded by the requests' memory.
    pub fn start(writer: &Arc<Writer>) -> Self {
        let lane = |partition: u16, ack: Ack| {
            let (entry, parts) = mpsc::unbounded_channel();
            tokio::spawn(run_lane(Arc::clone(writer), partition, ack, parts));
            entry
        };
        Self((0..PARTITIONS).map(|partition| [Ack::Local, Ack::Global].map(|ack| lane(partition, ack))).collect())
    }

    /// Enters events of one request, in rows that they share with others. Each receiver answers for its number of events,
    /// in order.
    pub fn enter(
        &self,
        (partition, ack): (u16, Ack),
        events: Vec<Event>,
        charge: &Arc<Charge>,
        limits: &Limits,
    ) -> Vec<(usize, oneshot::Receiver<Option<CommitId>>)> {
        let entry = &self.0[usize::from(partition)][usize::from(ack == Ack::Global)];
        let enter = |(events, bytes): (Vec<Event>, usize)| {
            let (answer, receiver) = oneshot::channel();
            let count = events.len();
            // A lane that is gone drops the part, and with it the answer: unknown.
            let _ = entry.send(Part { events, bytes, answer, _charge: Arc::clone(charge) });
            (count, receiver)
        };
        split(events, limits).into_iter().map(enter).collect()
    }
}

/// Bytes of an event within a row; its commit id must have its length already.
fn framed_len(event: &Event) -> usize {
    let len = event.encoded_len();
    1 + prost::length_delimiter_len(len) + len
}

/// Cuts events into parts that fit into a row; a single event that does not has a part of its own.
fn split(events: Vec<Event>, limits: &Limits) -> Vec<(Vec<Event>, usize)> {
    let mut parts: Vec<(Vec<Event>, usize)> = Vec::new();
    for event in events {
        let len = framed_len(&event);
        match parts.last_mut() {
            Some((part, bytes)) if *bytes + len <= limits.row_bytes_max && part.len() < limits.row_events_max => {
                part.push(event);
                *bytes += len;
            }
            _ => parts.push((vec![event], len)),
        }
    }
    parts
}

async fn run_lane(writer: Arc<Writer>, partition: u16, ack: Ack, mut entry: mpsc::UnboundedReceiver<Part>) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let Some(part) = entry.recv().await else { return };
            waiting.push_back(part);
        }
        while let Ok(part) = entry.try_recv() {
            waiting.push_back(part);
        }
        let mut row = take_row(&mut waiting, &writer.limits);
        if row.is_empty() {
            continue;
        }
        let written = write_row(&writer, partition, ack, &mut row).await;
        let mut index = 0;
        for part in row {
            let id = written.map(|row| row.at_index(index));
            index += part.events.len() as u16;
            let _ = part.answer.send(id);
        }
    }
}

/// Takes the parts of the next row; forgets those that nobody waits for, of which nothing was written.
fn take_row(waiting: &mut VecDeque<Part>, limits: &Limits) -> Vec<Part> {
    let (mut row, mut bytes, mut events) = (Vec::new(), 0, 0);
    while let Some(part) = waiting.pop_front() {
        if part.answer.is_closed() {
            continue;
        }
        let fits = bytes + part.bytes <= limits.row_bytes_max && events + part.events.len() <= limits.row_events_max;
        if !fits && !row.is_empty() {
            waiting.push_front(part);
            break;
        }
        bytes += part.bytes;
        events += part.events.len();
        row.push(part);
    }
    row
}

/// Writes one row until it is acknowledged inside the fence, under a new commit id each time, while anybody waits for it.
/// `None`: not known whether a row with these events is there.
async fn write_row(writer: &Writer, partition: u16, ack: Ack, parts: &mut [Part]) -> Option<CommitId> {
    let Effects { commit_event, region_time, .. } = &writer.effects;
    loop {
        let row = writer.ids.next(region_time(()).await.ok()?);
        let change = encode_row(parts, row);
        let input = CommitRow { generation: writer.generation, partition, row, change, ack };
        // An answer later than the fence counts as none: its row may lie in time that was sealed before it was there.
        match timeout(writer.limits.fence, commit_event(input)).await {
            Ok(Err(error)) => {
                if let Some(withheld) = writer.seldom.due() {
                    tracing::warn!(error = format!("{error:#}"), partition, withheld, "a row's outcome is unknown");
                }
                return None;
            }
            Ok(Ok(())) if region_time(()).await.ok()?.since(row.time()) <= writer.limits.fence.as_micros() as u64 => {
                hint(writer, partition);
                return Some(row);
            }
            Ok(Ok(())) | Err(_) => {
                metrics::counter!("meridian_ingest_late_rows_total").increment(1);
                if let Some(withheld) = writer.seldom.due() {
                    tracing::warn!(partition, %row, withheld, "acknowledged too late");
                }
            }
        }
        if parts.iter().all(|part| part.answer.is_closed()) {
            return None;
        }
    }
}

fn hint(writer: &Writer, partition: u16) {
    let Ok(permit) = Arc::clone(&writer.hints).try_acquire_owned() else { return };
    let sent = (writer.effects.hint_change)(partition);
    let patience = writer.limits.hint_timeout;
    tokio::spawn(async move {
        if let Ok(Err(error)) = timeout(patience, sent).await {
            tracing::debug!(error = format!("{error:#}"), partition, "hint lost");
        }
        drop(permit);
    });
}

/// A `meridian.event.v1.Change` with the parts' events, event k under commit id row + k.
fn encode_row(parts: &mut [Part], row: CommitId) -> Bytes {
    let mut bytes = BytesMut::with_capacity(parts.iter().map(|part| part.bytes).sum());
    let events = parts.iter_mut().flat_map(|part| &mut part.events);
    for (index, event) in events.enumerate() {
        event.commit_id = Bytes::copy_from_slice(&row.at_index(index as u16).to_bytes());
        // Field 1, wire type 2: Protocol Buffers encoding, "Message structure".
        bytes.put_u8(1 << 3 | 2);
        // A BytesMut grows, so neither can fail.
        let _ = prost::encode_length_delimiter(event.encoded_len(), &mut bytes);
        let _ = event.encode(&mut bytes);
    }
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_proto::{Change, CommitTime, Incarnation};

    fn event(id: &str, data_bytes: usize) -> Event {
        let (commit_id, data) = (Bytes::from_static(&[0; 16]), vec![b'x'; data_bytes].into());
        Event { id: id.into(), commit_id, data, ..Event::default() }
    }

    fn part(events: Vec<Event>) -> (Part, oneshot::Receiver<Option<CommitId>>) {
        let (answer, receiver) = oneshot::channel();
        let bytes = events.iter().map(framed_len).sum();
        (Part { events, bytes, answer, _charge: Charge::none() }, receiver)
    }

    #[test]
    fn a_row_is_a_change_with_ids_that_count_up() {
        let mut parts = [part(vec![event("a", 10), event("b", 300)]).0, part(vec![event("c", 0)]).0];
        let row = CommitId::of_row(CommitTime(77), Incarnation::from_random(5));
        let bytes = encode_row(&mut parts, row);
        assert_eq!(bytes.len(), parts.iter().map(|part| part.bytes).sum::<usize>());
        let change = Change::decode(bytes).unwrap();
        let events: Vec<Event> = change.events.into_iter().map(|bytes| Event::decode(bytes).unwrap()).collect();
        assert_eq!(events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        for (index, event) in events.iter().enumerate() {
            assert_eq!(CommitId::from_bytes(&event.commit_id), Some(row.at_index(index as u16)));
        }
    }

    #[test]
    fn parts_are_cut_at_the_bounds_of_a_row() {
        let limits = Limits { row_bytes_max: 1000, row_events_max: 3, ..Limits::default() };
        let lens = |sizes: &[usize]| -> Vec<usize> {
            split(sizes.iter().map(|size| event("x", *size)).collect(), &limits).iter().map(|(part, _)| part.len()).collect()
        };
        assert_eq!(lens(&[1, 1, 1, 1]), [3, 1]);
        assert_eq!(lens(&[600, 600, 100]), [1, 2]);
        assert_eq!(lens(&[2000, 1]), [1, 1]);
        assert!(lens(&[]).is_empty());
    }

    #[test]
    fn a_row_takes_what_fits_and_leaves_out_what_nobody_waits_for() {
        let limits = Limits { row_bytes_max: 1000, row_events_max: 3, ..Limits::default() };
        let (parts, mut receivers): (Vec<_>, Vec<_>) =
            [5000, 10, 10, 10, 10, 10].map(|size| part(vec![event("x", size)])).into_iter().unzip();
        let mut waiting = VecDeque::from(parts);
        drop(receivers.remove(2));
        assert_eq!([1, 3, 1, 0].map(|_| take_row(&mut waiting, &limits).len()), [1, 3, 1, 0]);
    }
}
