//! `cargo xtask simulate`: sweeps seeds of the simulation, or tells one of them aloud.
//!
//! What is simulated is crates/fabric/tests/simulated; this only builds and starts it. docs/simulation.md says more.

use std::process::Command;

use clap::Args;

use crate::workspace::Workspace;

/// Which seeds.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many seeds
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this one, with everything that happens
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
}

/// Runs them; a seed that does not end as it must is an error.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Without optimisation for release: what is only asserted there counts, too.
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
