//! Windows over days on which clocks change. Number 55 of the catalogue of field reports.
#![allow(clippy::unwrap_used)]

use jiff::{Timestamp, ToSpan, civil::date};
use proptest::prelude::*;
use usage::{WINDOWS_MAX, Window, WindowError, edges, zone};

const ZONES: [&str; 6] =
    ["Europe/Budapest", "America/New_York", "Asia/Kolkata", "Pacific/Chatham", "Australia/Lord_Howe", "America/Santiago"];

fn hours(zone_name: &str, (year, month, day): (i16, i8, i8)) -> f64 {
    let zone = zone(zone_name).unwrap();
    let start_of =
        |days: i64| date(year, month, day).checked_add(days.days()).unwrap().to_zoned_datetime(zone.clone()).unwrap().timestamp();
    let found = edges(start_of(0), start_of(3), Window::Day, &zone).unwrap();
    assert_eq!(found.len(), 4, "{zone_name}: three days have three windows");
    (found[1].as_second() - found[0].as_second()) as f64 / 3600.0
}

#[test]
fn days_have_23_or_25_hours_where_the_zone_says_so() {
    for (zone, day, expected) in [
        ("Europe/Budapest", (2026, 3, 29), 23.0),
        ("Europe/Budapest", (2026, 10, 25), 25.0),
        ("Europe/Budapest", (2026, 6, 1), 24.0),
        ("America/New_York", (2026, 3, 8), 23.0),
        ("America/New_York", (2026, 11, 1), 25.0),
        ("Asia/Kolkata", (2026, 3, 29), 24.0),
        ("Pacific/Chatham", (2026, 4, 5), 25.0),
        ("Pacific/Chatham", (2026, 9, 27), 23.0),
        ("Australia/Lord_Howe", (2026, 4, 5), 24.5),
        // Midnight does not exist: the day begins at 01:00.
        ("America/Santiago", (2026, 9, 6), 23.0),
    ] {
        assert_eq!(hours(zone, day), expected, "{zone} {day:?}");
    }
}

#[test]
fn windows_begin_where_the_zones_calendar_says() {
    for (window, from, to, zone_name, expected) in [
        (Window::Total, "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "UTC", vec!["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
        (
            Window::Hour,
            "2026-01-01T00:10:00Z",
            "2026-01-01T02:00:00Z",
            "Asia/Kolkata",
            vec!["2026-01-01T00:10:00Z", "2026-01-01T00:30:00Z", "2026-01-01T01:30:00Z", "2026-01-01T02:00:00Z"],
        ),
        (
            Window::Week,
            "2026-01-01T00:00:00Z",
            "2026-01-13T00:00:00Z",
            "Europe/Budapest",
            vec!["2026-01-01T00:00:00Z", "2026-01-04T23:00:00Z", "2026-01-11T23:00:00Z", "2026-01-13T00:00:00Z"],
        ),
        (
            Window::Month,
            "2026-02-28T23:30:00Z",
            "2026-05-01T00:00:00Z",
            "Europe/Budapest",
            vec!["2026-02-28T23:30:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z", "2026-05-01T00:00:00Z"],
        ),
    ] {
        let found = edges(from.parse().unwrap(), to.parse().unwrap(), window, &zone(zone_name).unwrap()).unwrap();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{window:?} {zone_name}");
    }
}

#[test]
fn the_hour_that_comes_twice_has_two_windows() {
    let zone = zone("Europe/Budapest").unwrap();
    let found = edges("2026-10-24T22:00:00Z".parse().unwrap(), "2026-10-25T23:00:00Z".parse().unwrap(), Window::Hour, &zone).unwrap();
    assert_eq!(found.len(), 26, "25 hours");
    assert!(found.windows(2).all(|pair| pair[1].as_second() - pair[0].as_second() == 3600));
}

#[test]
fn what_cannot_be_is_refused() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let utc = zone("UTC").unwrap();
    let (from, to) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
    assert_eq!(edges(to, from, Window::Total, &utc), Err(WindowError::Empty));
    assert_eq!(edges(from, from, Window::Day, &utc), Err(WindowError::Empty));
    assert_eq!(edges(from, to, Window::Hour, &utc), Err(WindowError::TooMany));
    assert_eq!(edges(from, to, Window::Day, &utc).unwrap().len(), 366);
    assert_eq!(zone("Europe/Atlantis"), Err(WindowError::Zone("Europe/Atlantis".into())));
    assert!(edges(at("-009000-01-01T00:00:00Z"), at("9000-01-01T00:00:00Z"), Window::Month, &utc).is_err());
}

proptest! {
    /// Sum of windows = total, each instant in one window: edges begin with `from`, end with `to` and ascend strictly.
    #[test]
    fn windows_cover_the_time_asked_for_once(
        zone_name in proptest::sample::select(&ZONES[..]),
        window in proptest::sample::select(&[Window::Total, Window::Hour, Window::Day, Window::Week, Window::Month][..]),
        from_us in 1_767_225_600_000_000_i64..1_798_761_600_000_000,
        length_us in 1_i64..40 * 86_400_000_000,
    ) {
        let zone = zone(zone_name).unwrap();
        let (from, to) = (Timestamp::from_microsecond(from_us).unwrap(), Timestamp::from_microsecond(from_us + length_us).unwrap());
        let found = edges(from, to, window, &zone).unwrap();
        prop_assert_eq!((found[0], found[found.len() - 1]), (from, to));
        prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(found.len() <= WINDOWS_MAX + 1);
        // Asked for in two halves, the same edges come out, and the cut.
        let cut = Timestamp::from_microsecond(from_us + length_us / 2).unwrap();
        if cut > from {
            let mut halves = edges(from, cut, window, &zone).unwrap();
            halves.extend(edges(cut, to, window, &zone).unwrap());
            halves.dedup();
            let mut whole = found;
            if !whole.contains(&cut) {
                whole.push(cut);
                whole.sort();
            }
            prop_assert_eq!(halves, whole, "an instant's window does not depend on where the question begins");
        }
    }
}
