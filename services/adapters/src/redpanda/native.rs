//! The calls of librdkafka that the safe crate makes only with an allocation per record: taking one from a queue,
//! walking its headers, and appending one with headers.
#![allow(unsafe_code)]

use rdkafka::{
    bindings::{self as sys, rd_kafka_vtype_t as Field},
    consumer::{BaseConsumer, Consumer},
    error::RDKafkaErrorCode,
};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    marker::PhantomData,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
    time::Duration,
};

/// Reference to the queue from which a consumer is fed. Has to be dropped before the consumer.
pub(super) struct ConsumerQueue(NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka's queues may be used from any thread; they carry a lock of their own.
unsafe impl Send for ConsumerQueue {}

impl ConsumerQueue {
    pub(super) fn of<C: rdkafka::consumer::ConsumerContext>(consumer: &BaseConsumer<C>) -> Option<Self> {
        // SAFETY: the client lives as long as `consumer`; the call gives a counted reference or null.
        NonNull::new(unsafe { sys::rd_kafka_queue_get_consumer(consumer.client().native_ptr()) }).map(Self)
    }

    /// What comes next, within `patience`.
    pub(super) fn poll(&self, patience: Duration) -> Polled<'_> {
        let patience_ms = c_int::try_from(patience.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the queue is a live reference; the call gives an event that is ours, or null.
        let Some(event) = NonNull::new(unsafe { sys::rd_kafka_queue_poll(self.0.as_ptr(), patience_ms) }) else {
            return Polled::Nothing;
        };
        let event = Event(event);
        // SAFETY: the event is live.
        match unsafe { sys::rd_kafka_event_type(event.0.as_ptr()) } {
            sys::RD_KAFKA_EVENT_FETCH => {
                // SAFETY: a fetch event holds one message, which lives as long as the event.
                let message = NonNull::new(unsafe { sys::rd_kafka_event_message_next(event.0.as_ptr()) }.cast_mut());
                message.map_or(Polled::Other, |message| Received::judged(event, message))
            }
            // SAFETY: the event is live.
            sys::RD_KAFKA_EVENT_ERROR => Polled::Failed(unsafe { sys::rd_kafka_event_error(event.0.as_ptr()) }.into()),
            sys::RD_KAFKA_EVENT_LOG => {
                event.log();
                Polled::Other
            }
            _ => Polled::Other,
        }
    }
}

impl Drop for ConsumerQueue {
    fn drop(&mut self) {
        // SAFETY: gives back the reference that `of` took.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

/// What a queue gave.
pub(super) enum Polled<'a> {
    Record(Received<'a>),
    Failed(RDKafkaErrorCode),
    /// Something that needs no answer.
    Other,
    Nothing,
}

struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    fn log(&self) {
        let (mut facility, mut text, mut level) = (ptr::null(), ptr::null(), 0);
        // SAFETY: the event is live; on success both texts live as long as it does.
        let found = unsafe { sys::rd_kafka_event_log(self.0.as_ptr(), &mut facility, &mut text, &mut level) } == 0;
        if found && !text.is_null() {
            // SAFETY: a C string of the live event.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            tracing::debug!(target: "librdkafka", level, "{}", text.trim());
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and nothing that it holds is used after.
        unsafe { sys::rd_kafka_event_destroy(self.0.as_ptr()) }
    }
}

/// A record in librdkafka's memory.
pub(super) struct Received<'a> {
    message: NonNull<sys::rd_kafka_message_t>,
    _event: Event,
    _queue: PhantomData<&'a ConsumerQueue>,
}

impl<'a> Received<'a> {
    /// A message may stand for an error.
    fn judged(event: Event, message: NonNull<sys::rd_kafka_message_t>) -> Polled<'a> {
        let received = Self { message, _event: event, _queue: PhantomData };
        let code: RDKafkaErrorCode = received.raw().err.into();
        if code == RDKafkaErrorCode::NoError { Polled::Record(received) } else { Polled::Failed(code) }
    }

    fn raw(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: the message lives as long as its event, which `self` owns.
        unsafe { self.message.as_ref() }
    }

    pub(super) fn topic(&self) -> &[u8] {
        // SAFETY: the topic's name is a C string that lives as long as the topic, which the message holds.
        unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(self.raw().rkt)) }.to_bytes()
    }

    pub(super) fn partition(&self) -> i32 {
        self.raw().partition
    }

    pub(super) fn offset(&self) -> u64 {
        u64::try_from(self.raw().offset).unwrap_or(0)
    }

    pub(super) fn timestamp_ms(&self) -> i64 {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is live.
        unsafe { sys::rd_kafka_message_timestamp(self.message.as_ptr(), &mut kind) }
    }

    pub(super) fn value(&self) -> &[u8] {
        let raw = self.raw();
        // SAFETY: payload and length belong to the live message.
        unsafe { bytes_of(raw.payload, raw.len) }
    }

    /// Calls `each` with name and value of every header, in order. A null value reads as empty.
    pub(super) fn headers<'s>(&'s self, mut each: impl FnMut(&'s [u8], &'s [u8])) {
        let mut headers = ptr::null_mut();
        // SAFETY: the message is live; the headers belong to it.
        let found: RDKafkaErrorCode = unsafe { sys::rd_kafka_message_headers(self.message.as_ptr(), &mut headers) }.into();
        if found != RDKafkaErrorCode::NoError {
            return;
        }
        for index in 0.. {
            let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
            // SAFETY: the headers are live; name and value live as long as they do.
            let code = unsafe { sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length) };
            if RDKafkaErrorCode::from(code) != RDKafkaErrorCode::NoError {
                return;
            }
            // SAFETY: as above; a header's name is a C string.
            unsafe { each(CStr::from_ptr(name).to_bytes(), bytes_of(value, length)) }
        }
    }
}

/// SAFETY of callers: `length` readable bytes at `start`, or null, for as long as `'a`.
unsafe fn bytes_of<'a>(start: *const c_void, length: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start.cast(), length) }
}

/// A record to append, with the two headers that our records have.
pub(super) struct Outgoing<'a> {
    pub(super) topic: &'a CStr,
    pub(super) partition: i32,
    pub(super) value: &'a [u8],
    /// Names and values; at most this many are needed.
    pub(super) headers: [Option<(&'a CStr, &'a [u8])>; 4],
}

/// Queues a record in `client`, copying its bytes. `opaque` is counted once more if the record was taken, and comes back
/// with its delivery report.
pub(super) fn produce<T: Send + Sync>(
    client: *mut sys::rd_kafka_t,
    record: &Outgoing<'_>,
    opaque: &Arc<T>,
) -> Result<(), RDKafkaErrorCode> {
    // SAFETY: all zeros is the field type END with an empty value.
    let mut fields: [sys::rd_kafka_vu_t; 9] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    let mut add = |field: Field, fill: &dyn Fn(&mut sys::rd_kafka_vu_s__bindgen_ty_1)| {
        fields[count].vtype = field;
        fill(&mut fields[count].u);
        count += 1;
    };
    let raw = Arc::into_raw(Arc::clone(opaque));
    let memory = |bytes: &[u8]| sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 { ptr: bytes.as_ptr().cast_mut().cast(), size: bytes.len() };
    add(Field::RD_KAFKA_VTYPE_TOPIC, &|value| value.cstr = record.topic.as_ptr());
    add(Field::RD_KAFKA_VTYPE_PARTITION, &|value| value.i32_ = record.partition);
    add(Field::RD_KAFKA_VTYPE_MSGFLAGS, &|value| value.i = sys::RD_KAFKA_MSG_F_COPY);
    add(Field::RD_KAFKA_VTYPE_VALUE, &|value| value.mem = memory(record.value));
    add(Field::RD_KAFKA_VTYPE_OPAQUE, &|value| value.ptr = raw.cast_mut().cast());
    for (name, bytes) in record.headers.iter().flatten() {
        let (name, bytes): (*const c_char, &[u8]) = (name.as_ptr(), bytes);
        let header = |value: &mut sys::rd_kafka_vu_s__bindgen_ty_1| {
            value.header = sys::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_2 { name, val: bytes.as_ptr().cast(), size: bytes.len() as isize };
        };
        add(Field::RD_KAFKA_VTYPE_HEADER, &header);
    }
    // SAFETY: the client is live (callers hold its producer); every field points to memory that outlives the call,
    // which copies value and headers.
    let error = unsafe { sys::rd_kafka_produceva(client, fields.as_ptr(), count) };
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the error is ours; the record was not taken, so the count that was added above is ours too.
    let code = unsafe {
        let code = sys::rd_kafka_error_code(error);
        sys::rd_kafka_error_destroy(error);
        drop(Arc::from_raw(raw));
        code
    };
    Err(code.into())
}
