//! Charts as inline SVG. Colours are classes, so that the page's style decides them for light and dark.

use std::fmt::Write;

/// Text made safe for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Milliseconds with three figures at most, in the unit that fits.
pub fn time(ms: f64) -> String {
    match ms {
        _ if ms >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        _ if ms >= 1_000.0 => format!("{:.2} s", ms / 1e3),
        _ if ms >= 99.95 => format!("{ms:.0} ms"),
        _ if ms >= 1.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.2} ms"),
    }
}

/// One line of a chart. A missing second breaks it.
pub struct Line {
    /// Shown in the legend.
    pub name: String,
    /// Class of its colour, `c0` to `c7`.
    pub class: String,
    /// Dashed lines are secondary.
    pub dashed: bool,
    /// Second and value.
    pub points: Vec<(f64, f64)>,
}

/// A fault on the time axis.
#[derive(Clone)]
pub struct Mark {
    /// Seconds.
    pub at: f64,
    /// In words.
    pub text: String,
}

/// How values become heights.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// Even, from 0.
    Linear,
    /// By powers of ten; for times in milliseconds.
    Log,
}

const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 24.0;

/// Where things lie in a chart over time.
struct Frame {
    width: f64,
    height: f64,
    seconds: f64,
    scale: Scale,
    low: f64,
    high: f64,
}

impl Frame {
    fn over(width: f64, height: f64, seconds: f64, scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let greatest = values.clone().fold(0.0_f64, f64::max);
        let (low, high) = match scale {
            Scale::Linear => (0.0, nice(greatest.max(1e-9))),
            Scale::Log => {
                let least = values.filter(|value| *value > 0.0).fold(f64::MAX, f64::min).min(greatest.max(1e-3));
                let low = 10_f64.powf(least.max(1e-3).log10().floor());
                (low, 10_f64.powf(greatest.max(low * 1.01).log10().ceil()).max(low * 10.0))
            }
        };
        Self { width, height, seconds: seconds.max(1.0), scale, low, high }
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + second / self.seconds * (self.width - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).log10() / (self.high / self.low).log10(),
        };
        self.height - BOTTOM - share.clamp(0.0, 1.0) * (self.height - TOP - BOTTOM)
    }

    fn open(&self, label: &str) -> String {
        format!(r#"<svg viewBox="0 0 {} {}" role="img" aria-label="{}">"#, self.width, self.height, escape(label))
    }

    fn grid(&self, out: &mut String, unit: &dyn Fn(f64) -> String) {
        for value in self.ticks() {
            let y = self.y(value);
            let _ = write!(out, r#"<line class="grid" x1="{LEFT}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}"/>"#, self.width - RIGHT);
            let _ = write!(out, r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{}</text>"#, LEFT - 6.0, y + 3.5, unit(value));
        }
        let step = nice(self.seconds / (self.width / 70.0)).max(1.0);
        for second in (0..=(self.seconds / step) as u32).map(|k| f64::from(k) * step) {
            let (x, y) = (self.x(second), self.height - 8.0);
            let _ = write!(out, r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="middle">{second:.0} s</text>"#);
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                // The upper edge is 1, 2, 2.5 or 5 times a power of ten: these parts of it are round.
                let leading = self.high / 10_f64.powf(self.high.log10().floor());
                let parts = if (leading - 2.0).abs() < 0.1 { 4 } else { 5 };
                (0..=parts).map(|k| self.high * f64::from(k) / f64::from(parts)).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10().round() as i32;
                (0..=decades).map(|k| self.low * 10_f64.powi(k)).collect()
            }
        }
    }

    fn marks(&self, out: &mut String, marks: &[Mark]) {
        for mark in marks {
            let (x, bottom) = (self.x(mark.at), self.height - BOTTOM);
            let right_half = mark.at > self.seconds * 0.7;
            let (anchor, shift) = if right_half { ("end", -4.0) } else { ("start", 4.0) };
            let _ = write!(out, r#"<line class="mark" x1="{x:.1}" x2="{x:.1}" y1="4" y2="{bottom:.1}"/>"#);
            let _ =
                write!(out, r#"<text class="markText" x="{:.1}" y="11" text-anchor="{anchor}">{}</text>"#, x + shift, escape(&mark.text));
        }
    }
}

/// The least of 1, 2, 2.5, 5 times a power of ten that is not below `value`.
fn nice(value: f64) -> f64 {
    let base = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|factor| factor * base).find(|nice| *nice >= value * 0.999).unwrap_or(value)
}

/// Width and height of a chart: how large its text looks beside its page.
pub type Size = (f64, f64);

/// Half of the page.
pub const HALF: Size = (560.0, 210.0);
/// A third of the page.
pub const THIRD: Size = (390.0, 190.0);

/// Lines over the seconds of a run, with its faults.
pub fn lines(
    label: &str,
    (width, height): Size,
    seconds: f64,
    scale: Scale,
    unit: &dyn Fn(f64) -> String,
    lines: &[Line],
    marks: &[Mark],
) -> String {
    let values = lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
    let frame = Frame::over(width, height, seconds, scale, values);
    let mut out = frame.open(label);
    frame.grid(&mut out, unit);
    frame.marks(&mut out, marks);
    for line in lines {
        let mut path = String::new();
        let mut last = f64::MIN;
        for (second, value) in &line.points {
            // Values belong to the middle of their second.
            let command = if second - last > 1.5 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", frame.x(second + 0.5), frame.y(*value));
            last = *second;
        }
        let dash = if line.dashed { " dashed" } else { "" };
        let _ = write!(out, r#"<path class="line {}{dash}" d="{path}"><title>{}</title></path>"#, line.class, escape(&line.name));
    }
    out.push_str("</svg>");
    out
}

/// A second's stacked values, with the class of each.
pub struct Stack {
    /// Second.
    pub second: f64,
    /// From below.
    pub parts: Vec<(&'static str, f64)>,
}

/// Stacked bars over the seconds of a run, with its faults.
pub fn stacks(label: &str, (width, height): Size, seconds: f64, stacks: &[Stack], marks: &[Mark]) -> String {
    let values = stacks.iter().map(|stack| stack.parts.iter().map(|(_, value)| value).sum());
    let frame = Frame::over(width, height * 0.75, seconds, Scale::Linear, values);
    let mut out = frame.open(label);
    frame.grid(&mut out, &|value| format!("{value:.0}"));
    let width = (frame.x(1.0) - frame.x(0.0)).max(1.0) * 0.86;
    for stack in stacks {
        let mut below = 0.0;
        for (class, value) in stack.parts.iter().filter(|(_, value)| *value > 0.0) {
            let (top, bottom) = (frame.y(below + value), frame.y(below));
            below += value;
            let x = frame.x(stack.second);
            let _ = write!(out, r#"<rect class="{class}" x="{x:.1}" y="{top:.1}" width="{width:.1}" height="{:.1}">"#, bottom - top);
            let _ = write!(out, "<title>{:.0} s: {value:.0} {class}</title></rect>", stack.second);
        }
    }
    frame.marks(&mut out, marks);
    out.push_str("</svg>");
    out
}

/// One bar of a waterfall: from one place to the next.
pub struct Bar {
    /// Name of the place where it ends; also its class, `hop-NAME`.
    pub name: &'static str,
    /// Milliseconds from the intended time.
    pub from_ms: f64,
    /// Milliseconds from the intended time.
    pub to_ms: f64,
}

/// One row of a waterfall.
pub struct Row {
    /// In front of it.
    pub label: String,
    /// The way of an event, one after the other.
    pub bars: Vec<Bar>,
    /// Places beside the way, below it.
    pub beside: Vec<Bar>,
    /// One-way latency of the link, drawn under the copy's bar.
    pub link_ms: Option<f64>,
}

/// Waterfalls of several pairs on one time axis.
pub fn waterfall(rows: &[Row]) -> String {
    // The way itself decides the axis; what lies beside it may run out of the picture.
    let greatest = rows.iter().flat_map(|row| &row.bars).map(|bar| bar.to_ms).fold(1.0, f64::max) * 1.04;
    let (width, left, right, row_height) = (1160.0, 96.0, 64.0, 46.0);
    let height = rows.len() as f64 * row_height + 30.0;
    let x = |ms: f64| left + ms.min(greatest) / greatest * (width - left - right);
    let mut out = format!(r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="waterfall by pair of regions">"#);
    let step = nice(greatest / 10.0);
    for ms in (0..=(greatest / step) as u32).map(|k| f64::from(k) * step) {
        let (at, bottom) = (x(ms), height - 22.0);
        let _ = write!(out, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="0" y2="{bottom:.1}"/>"#);
        let _ = write!(out, r#"<text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{ms:.0} ms</text>"#, height - 6.0);
    }
    for (row, k) in rows.iter().zip(0_u32..) {
        let y = f64::from(k) * row_height + 8.0;
        let _ = write!(out, r#"<text class="pair" x="0" y="{:.1}">{}</text>"#, y + 14.0, escape(&row.label));
        for bar in &row.bars {
            out.push_str(&drawn(bar, x(bar.from_ms), x(bar.to_ms), y, 18.0));
        }
        if let Some(end) = row.bars.last() {
            let _ = write!(out, r#"<text class="value" x="{:.1}" y="{:.1}">{}</text>"#, x(end.to_ms) + 6.0, y + 14.0, time(end.to_ms));
        }
        for bar in &row.beside {
            let at = y + 20.0 + if bar.name == "stored" { 7.0 } else { 0.0 };
            out.push_str(&drawn(bar, x(bar.from_ms), x(bar.to_ms), at, 5.0));
            if bar.to_ms > greatest {
                let _ =
                    write!(out, r#"<text class="tick" x="{:.1}" y="{:.1}">→ {}</text>"#, width - right + 4.0, at + 6.0, time(bar.to_ms));
            }
        }
        if let (Some(link_ms), Some(copy)) = (row.link_ms, row.bars.iter().find(|bar| bar.name == "mirrored")) {
            let (from, to, at) = (x(copy.from_ms), x(copy.from_ms + link_ms), y - 3.0);
            let _ = write!(out, r#"<path class="link" d="M{from:.1} {at:.1}H{to:.1}"><title>one way {link_ms:.0} ms</title></path>"#);
        }
    }
    out.push_str("</svg>");
    out
}

fn drawn(bar: &Bar, from: f64, to: f64, y: f64, height: f64) -> String {
    let width = (to - from).max(1.5);
    let step = time(bar.to_ms - bar.from_ms);
    let title = format!("{}: {step}, {} after the intended time", bar.name, time(bar.to_ms));
    let rect = format!(
        r#"<rect class="hop-{}" x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height}" rx="2"><title>{title}</title></rect>"#,
        bar.name
    );
    let text = if width > 52.0 && height > 10.0 {
        format!(r#"<text class="inBar" x="{:.1}" y="{:.1}" text-anchor="middle">{step}</text>"#, from + width / 2.0, y + 13.0)
    } else {
        String::new()
    };
    rect + &text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, expected) in [(0.7, 1.0), (1.0, 1.0), (1.2, 2.0), (23.0, 25.0), (260.0, 500.0), (600.0, 1000.0)] {
            assert!((nice(value) - expected).abs() < 1e-9, "{value}: {}", nice(value));
        }
    }

    #[test]
    fn a_chart_without_values_is_a_chart() {
        let empty = lines("x", HALF, 0.0, Scale::Log, &|value| time(value), &[], &[]);
        assert!(empty.starts_with("<svg") && empty.ends_with("</svg>") && !empty.contains("NaN") && !empty.contains("inf"), "{empty}");
        assert!(!stacks("x", THIRD, 10.0, &[], &[]).contains("NaN") && !waterfall(&[]).contains("NaN"));
    }

    #[test]
    fn text_is_made_safe() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
        let mark = Mark { at: 1.0, text: "<script>".into() };
        assert!(!lines("x", HALF, 2.0, Scale::Linear, &|value| time(value), &[], &[mark]).contains("<script>"));
    }
}
