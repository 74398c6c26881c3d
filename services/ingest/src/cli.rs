//! The command line.

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Takes CloudEvents over HTTP and commits them. Without a command: serves. Configured by MERIDIAN_<KEY> (see config.toml).
#[derive(Debug, Parser)]
#[command(version)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes tenants' keys.
    #[command(subcommand)]
    Keys(Keys),
}

#[derive(Debug, Subcommand)]
enum Keys {
    /// Makes what a development world needs, unless it is there: keys.toml, dev-keys.toml, cursor.key.
    Dev {
        /// Folder of the three files.
        #[arg(long)]
        dir: PathBuf,
        /// Number of tenants: tenant-01 and so on.
        #[arg(long, default_value_t = 20)]
        tenants: usize,
    },
    /// Draws a key, adds its hash to the file, and prints the key: it is kept nowhere else.
    Create {
        /// The file of hashes (keys.toml); services read it again by themselves.
        #[arg(long)]
        file: PathBuf,
        /// Whose key it is.
        #[arg(long)]
        tenant: String,
    },
}

impl Arguments {
    /// Carries out the command; says whether there was one.
    ///
    /// # Errors
    /// The command's own.
    pub fn carry_out(self) -> Result<bool> {
        match self.command {
            None => return Ok(false),
            Some(Command::Keys(Keys::Dev { dir, tenants })) => api::create_dev_secrets(&dir, tenants)?,
            Some(Command::Keys(Keys::Create { file, tenant })) => println!("{}", api::create_key(&file, &tenant)?),
        }
        Ok(true)
    }
}
