//! `cargo xtask simulate`: sweeps seeds of the simulation, or prints every step of one seed.
//!
//! The simulation itself is in crates/fabric/tests/simulated. This module builds and starts it.
//! docs/simulation.md says more.

use std::process::Command;

use clap::Args;

use crate::workspace::Workspace;

/// The seeds to run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this seed, with everything that happens
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

/// Runs the seeds. A failed seed is an error.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // A debug build, so that debug assertions count too.
    command.current_dir(workspace.root()).args(["run", "--quiet", "--package", "softhca-fabric"]);
    command.args(["--example", "simulate", "--"]);
    match options.seed {
        Some(seed) => command.arg("--seed").arg(seed.to_string()),
        None => command.args([options.from, options.seeds].map(|number| number.to_string())),
    };
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("not every seed ended as it must".into()),
        Err(error) => Err(format!("cargo: {error}")),
    }
}
