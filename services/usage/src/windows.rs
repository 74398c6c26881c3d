//! Windows of time in a time zone. **The zone rules come from one crate, bundled, and their version stands in every answer.**

use jiff::{RoundMode, Span, Timestamp, ToSpan, Unit, ZonedDateTime, ZonedDateTimeRound, tz::TimeZone};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// At most this many windows in an answer.
pub const WINDOWS_MAX: usize = 1000;

/// How long a window is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// One window over everything.
    #[default]
    Total,
    /// From full hour to full hour of the zone's clock.
    Hour,
    /// From the first instant of a day to that of the next: 23 or 25 hours where the zone says so.
    Day,
    /// From Monday to Monday (ISO 8601).
    Week,
    /// From the first of a month to the first of the next.
    Month,
}

/// Why there are no such windows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// The time zone is not known.
    #[error("{0:?} is not the name of an IANA time zone")]
    Zone(String),
    /// `to` is not after `from`.
    #[error("must lie after from")]
    Empty,
    /// There would be too many.
    #[error("would give more than {WINDOWS_MAX} windows: ask for less time or longer windows")]
    TooMany,
    /// Outside of what the calendar can do.
    #[error("lies outside of the calendar")]
    Calendar,
}

/// A time zone by its IANA name.
///
/// # Errors
/// When there is none.
pub fn zone(name: &str) -> Result<TimeZone, WindowError> {
    TimeZone::get(name).map_err(|_| WindowError::Zone(name.into()))
}

/// The edges of the windows that cover [`from`, `to`): the first is `from`, the last is `to`, and those between are where windows
/// begin by the zone's calendar. So the windows' sums add up to the total, and each instant lies in one window.
///
/// # Errors
/// See [`WindowError`].
pub fn edges(from: Timestamp, to: Timestamp, window: Window, zone: &TimeZone) -> Result<Vec<Timestamp>, WindowError> {
    if to <= from {
        return Err(WindowError::Empty);
    }
    let mut edges = vec![from];
    let Some((mut start, step)) = first(&from.to_zoned_datetime(zone.clone()), window)? else {
        return Ok(vec![from, to]);
    };
    loop {
        start = next(&start, step, window)?;
        let edge = start.timestamp();
        if edge >= to {
            break;
        }
        // The calendar may name the same instant twice where a zone jumps over a whole window.
        if edges.last().is_some_and(|last| edge > *last) {
            edges.push(edge);
        }
        if edges.len() > WINDOWS_MAX {
            return Err(WindowError::TooMany);
        }
    }
    edges.push(to);
    Ok(edges)
}

/// Where the window of `from` begins, and how far the next is.
fn first(from: &ZonedDateTime, window: Window) -> Result<Option<(ZonedDateTime, Span)>, WindowError> {
    let (start, step) = match window {
        Window::Total => return Ok(None),
        Window::Hour => return full_hour(from).map(|start| Some((start, 1.hour()))),
        Window::Day => (Ok(from.clone()), 1.day()),
        Window::Week => (from.checked_sub(i64::from(from.weekday().to_monday_zero_offset()).days()), 1.week()),
        Window::Month => (from.first_of_month(), 1.month()),
    };
    let start = start.and_then(|start| start.start_of_day()).map_err(|_| WindowError::Calendar)?;
    Ok(Some((start, step)))
}

fn full_hour(time: &ZonedDateTime) -> Result<ZonedDateTime, WindowError> {
    time.round(ZonedDateTimeRound::new().smallest(Unit::Hour).mode(RoundMode::Trunc)).map_err(|_| WindowError::Calendar)
}

fn next(start: &ZonedDateTime, step: Span, window: Window) -> Result<ZonedDateTime, WindowError> {
    let later = start.checked_add(step).map_err(|_| WindowError::Calendar)?;
    let aligned = match window {
        // Hours are elapsed time; where a zone moves by part of an hour, its full hours move too.
        Window::Hour => full_hour(&later)?,
        // Midnight does not exist on every day in every zone: the next day begins at its own first instant.
        _ => later.start_of_day().map_err(|_| WindowError::Calendar)?,
    };
    Ok(if aligned.timestamp() > start.timestamp() { aligned } else { later })
}
