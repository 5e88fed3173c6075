//! The options of `softhca sm`, and the manager's choices from them. Principal type: [`Sm`].

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use sm::{Config, Settings};

use crate::failure::Failure;
use crate::manager_options::ManagerOptions;

/// The text after the options.
pub(crate) const EXAMPLES: &str = "\
Examples:
  softhca agent --topology subnet.topo
  softhca sm --node H1
      Brings the subnet up, and serves it until ^C.
  softhca sm --node H1 --once
      One sweep, for a script.
  softhca sm --node H2 --priority 5
      A second manager: of several, the one with the highest priority is master.
  softhca sm --node H1 --routing up-down --root 0x2c9000000001
  softhca sm --node H1 --partitions partitions.conf --lids lids.txt
  softhca sm --node H1 --qos qos.conf
      Service levels and virtual lanes. The file has lines like these:
      qos_sl2vl 0,1,2,3,4,5,6,7,0,1,2,3,4,5,6,7
      qos_vlarb_low 0:64,1:128

It needs no root: the agent's own user may run it. See docs/subnets.md.";

#[derive(Debug, Args)]
pub(crate) struct Sm {
    /// Run on this node of the agent's topology (softhca agent --topology)
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Port of the device
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) port: u8,
    #[command(flatten)]
    manager: ManagerOptions,
    /// Keep the LIDs of ports in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) lids: Option<PathBuf>,
    /// End when the subnet is up: with 0, or with 1 if there were errors
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON: one object per line (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

impl Sm {
    /// The manager's choices.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let settings = self.manager.over(&Settings::default());
        let config = settings.config(Config::default(), |path| fs::read_to_string(path));
        config.map_err(|error| Failure::of_options(error.to_string()))
    }

    /// The LIDs of an earlier run, if there was one.
    pub(crate) fn lid_map(&self) -> Result<sm::lids::LidMap, Failure> {
        match self.lids.as_deref() {
            Some(path) if path.exists() => sm::lids::parse(&text(path)?).map_err(|error| of_file(path, &error)),
            _ => Ok(sm::lids::LidMap::new()),
        }
    }
}

fn text(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| of_file(path, &error))
}

fn of_file(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::of_options(format!("{}: {error}", path.display()))
}
