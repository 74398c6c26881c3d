//! The command `native`.

use std::process::ExitCode;

fn main() -> ExitCode {
    native::cli::main()
}
