//! What a run leaves behind: `run.json`, `report.html`, `summary.md`, histograms; and what it prints.

mod charts;
pub mod html;
pub mod json;
pub mod markdown;
mod svg;
mod tables;
pub mod terminal;
pub mod write;
