//! The command `loadtest`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(loadtest::commands::run());
            // Whatever still waits (a pool, a request) does not hold up the end.
            runtime.shutdown_background();
            code
        }
        Err(error) => {
            eprintln!("loadtest: {error}");
            ExitCode::from(2)
        }
    }
}
