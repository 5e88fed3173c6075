//! The options of `softhca sm`, and the manager's choices from them. Principal type: [`Sm`].

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use sm::Config;
use sm::config::{Engine, Routing};
use sm::partitions::Partitions;

use crate::failure::Failure;

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
    /// The manager with the highest priority is the master
    #[arg(long, value_name = "0..15", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// Adapters and routers have 2^N LIDs
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    lmc: u8,
    /// How routes are chosen
    #[arg(long, value_name = "ENGINE", default_value = "min-hop")]
    routing: Choice,
    /// Node GUIDs of the roots, for up-down and fat-tree [default: found]
    #[arg(long, value_name = "GUID", num_args = 1.., value_parser = guid)]
    root: Vec<u64>,
    /// Partitions, in the form of opensm's partitions.conf
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Service levels and virtual lanes: qos_max_vls, qos_high_limit, qos_sl2vl,
    /// qos_vlarb_high and qos_vlarb_low, in the form of opensm's options
    #[arg(long, value_name = "FILE")]
    qos: Option<PathBuf>,
    /// Packet life time in path records: 4.096 us x 2^N
    #[arg(long, value_name = "N", default_value_t = 18, value_parser = clap::value_parser!(u8).range(0..=31))]
    packet_life: u8,
    /// Subnet timeout of ports, the least time between their traps: 4.096 us x 2^N
    #[arg(long, value_name = "N", default_value_t = 18, value_parser = clap::value_parser!(u8).range(0..=31))]
    subnet_timeout: u8,
    /// Keep the LIDs of ports in this file
    #[arg(long, value_name = "FILE")]
    pub(crate) lids: Option<PathBuf>,
    /// Time between sweeps
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    sweep: u32,
    /// On standby: time between polls of the master. After 4 without an answer, it takes over
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    poll: u32,
    /// End when the subnet is up: with 0, or with 1 if there were errors
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON: one object per line (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Choice {
    /// Shortest paths, balanced
    MinHop,
    /// Up to a root and down again: no deadlock
    UpDown,
    /// Up-down in a fat tree, spread in order
    FatTree,
    /// In the order of the ports, for meshes
    DimensionOrder,
}

impl Sm {
    /// The manager's choices.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let engine = match self.routing {
            Choice::MinHop => Engine::MinHop,
            Choice::UpDown => Engine::UpDown,
            Choice::FatTree => Engine::FatTree,
            Choice::DimensionOrder => Engine::DimensionOrder,
        };
        let mut config = Config {
            priority: self.priority,
            lmc: self.lmc,
            packet_life: self.packet_life,
            subnet_timeout: self.subnet_timeout,
            routing: Routing { engine, roots: self.root.clone() },
            ..Config::default()
        };
        config.timing.sweep_interval = Duration::from_secs(self.sweep.into());
        config.timing.poll_interval = Duration::from_secs(self.poll.into());
        if let Some(path) = &self.partitions {
            config.partitions = Partitions::parse(&text(path)?).map_err(|error| of_file(path, &error))?;
        }
        if let Some(path) = &self.qos {
            let settings = sm::qos::parse(&text(path)?).map_err(|error| of_file(path, &error))?;
            (config.qos, config.most_vls) = (Some(settings.qos), settings.most_vls);
        }
        Ok(config)
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

fn guid(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(hex, 16).map_err(|_| "a GUID has up to 16 hex digits, as 0x2c9000000001".to_owned())
}
