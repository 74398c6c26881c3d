//! Generates the Rust types from the .proto files with protox: no protoc needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["event/v1/event.proto", "signal/v1/signal.proto"];
    let descriptors = protox::compile(files, ["."])?;
    prost_build::Config::new().bytes(["."]).btree_map(["."]).compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=event");
    println!("cargo::rerun-if-changed=signal");
    Ok(())
}
