//! Generates the mirror's wire types and gRPC service from the .proto file with protox: no protoc needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::compile(["mirror/v1/mirror.proto"], ["../../proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure().compile_fds_with_config(descriptors, config)?;
    println!("cargo::rerun-if-changed=../../proto/mirror");
    Ok(())
}
