//! What the tests of the repository read it with. **Nothing here runs outside `cargo test`.**

mod journey;
mod source;
mod text;
mod workspace;

pub use journey::{Reference, Words, references};
pub use source::{Binding, bindings, effect_fields, long_functions, names};
pub use text::forbidden;
pub use workspace::{Crate, Workspace};
