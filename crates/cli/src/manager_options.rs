//! The settings of a subnet manager as options: of `softhca sm`, and of `softhca agent` for the
//! manager of its topology. Principal type: [`ManagerOptions`].

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sm::Settings;
use sm::config::Engine;
use sm::settings::guid;

use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Subnet manager")]
pub(crate) struct ManagerOptions {
    /// The manager with the highest priority is the master [default: 0]
    #[arg(long, value_name = "0..15")]
    priority: Option<u8>,
    /// Adapters and routers have 2^N LIDs [default: 0]
    #[arg(long, value_name = "N")]
    lmc: Option<u8>,
    /// How routes are chosen: min-hop: shortest paths, balanced; up-down: up to a root and down
    /// again, no deadlock; fat-tree: up-down in a fat tree, spread in order; dimension-order: in
    /// the order of the ports, for meshes [default: min-hop]
    #[arg(long, value_name = "ENGINE", value_parser = engine())]
    routing: Option<Engine>,
    /// Node GUIDs of the roots, for up-down and fat-tree [default: found]
    #[arg(long = "root", value_name = "GUID", num_args = 1.., value_parser = guid)]
    roots: Vec<u64>,
    /// Partitions, in the form of opensm's partitions.conf
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Service levels and virtual lanes: qos_max_vls, qos_high_limit, qos_sl2vl,
    /// qos_vlarb_high and qos_vlarb_low, in the form of opensm's options
    #[arg(long, value_name = "FILE")]
    qos: Option<PathBuf>,
    /// Keep the LIDs of ports in this file
    #[arg(long, value_name = "FILE")]
    lids: Option<PathBuf>,
    /// Packet life time in path records: 4.096 us x 2^N [default: 18]
    #[arg(long, value_name = "N")]
    packet_life: Option<u8>,
    /// Subnet timeout of ports, the least time between their traps: 4.096 us x 2^N [default: 18]
    #[arg(long, value_name = "N")]
    subnet_timeout: Option<u8>,
    /// Time between sweeps [default: 10]
    #[arg(long, value_name = "SECONDS")]
    sweep: Option<u32>,
    /// On standby: time between polls of the master, before this manager takes over [default: 2;
    /// that of the agent: 1]
    #[arg(long, value_name = "SECONDS")]
    poll: Option<u32>,
}

impl ManagerOptions {
    /// The settings of the options, and of `others` where there is no option.
    pub(crate) fn over(&self, others: &Settings) -> Settings {
        let file = |own: &Option<PathBuf>, other: &Option<PathBuf>| own.as_ref().or(other.as_ref()).cloned();
        Settings {
            priority: self.priority.unwrap_or(others.priority),
            lmc: self.lmc.unwrap_or(others.lmc),
            routing: self.routing.unwrap_or(others.routing),
            roots: if self.roots.is_empty() { &others.roots } else { &self.roots }.clone(),
            partitions: file(&self.partitions, &others.partitions),
            qos: file(&self.qos, &others.qos),
            lids: file(&self.lids, &others.lids),
            packet_life: self.packet_life.unwrap_or(others.packet_life),
            subnet_timeout: self.subnet_timeout.unwrap_or(others.subnet_timeout),
            sweep: self.sweep.unwrap_or(others.sweep),
            poll: self.poll.or(others.poll),
        }
    }

    /// The options as words, for a process in another folder.
    pub(crate) fn words(&self) -> Result<Vec<String>, Failure> {
        let mut words = Vec::new();
        let numbers = [
            ("priority", self.priority.map(u32::from)),
            ("lmc", self.lmc.map(u32::from)),
            ("packet-life", self.packet_life.map(u32::from)),
            ("subnet-timeout", self.subnet_timeout.map(u32::from)),
            ("sweep", self.sweep),
            ("poll", self.poll),
        ];
        words.extend(numbers.iter().filter_map(|(name, number)| Some(format!("--{name}={}", (*number)?))));
        words.extend(self.routing.map(|engine| format!("--routing={engine}")));
        words.extend(self.roots.iter().map(|root| format!("--root={root:#x}")));
        for (name, path) in [("partitions", &self.partitions), ("qos", &self.qos)] {
            if let Some(path) = path {
                words.push(format!("--{name}={}", absolute(path)?.display()));
            }
        }
        if let Some(path) = &self.lids {
            // The manager makes it.
            let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
            words.push(format!("--lids={}", path.display()));
        }
        Ok(words)
    }
}

/// The absolute path of a file that exists.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()).into())
}

fn engine() -> impl TypedValueParser<Value = Engine> {
    PossibleValuesParser::new(Engine::ALL.map(Engine::name)).try_map(|name| name.parse::<Engine>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        manager: ManagerOptions,
    }

    fn parsed(words: &[&str]) -> ManagerOptions {
        Command::try_parse_from([&["test"], words].concat()).expect("good").manager
    }

    #[test]
    fn options_come_before_the_settings_of_the_file() {
        let file = Settings { priority: 3, lmc: 1, qos: Some("/q".into()), ..Settings::default() };
        assert_eq!(parsed(&[]).over(&file), file);
        let settings = parsed(&["--lmc", "2", "--routing", "fat-tree", "--root", "0x7", "8"]).over(&file);
        let wanted = Settings { lmc: 2, routing: Engine::FatTree, roots: vec![7, 8], ..file };
        assert_eq!(settings, wanted);
    }

    #[test]
    fn the_process_in_the_background_gets_each_option() {
        let folder = std::env::temp_dir().canonicalize().expect("a folder");
        let path = folder.to_str().expect("text");
        let new = format!("{path}/lids-that-nobody-has-kept");
        let numbers = ["--priority=1", "--lmc=2", "--packet-life=3", "--subnet-timeout=4", "--sweep=5", "--poll=6"];
        let words = [
            &numbers[..],
            &["--routing=up-down", "--root=7", "--partitions", path, "--qos", path],
            &["--lids", &new][..],
        ]
        .concat();
        let options = parsed(&words);
        let passed = options.words().expect("the folder exists");
        let passed: Vec<&str> = passed.iter().map(String::as_str).collect();
        let usual = Settings::default();
        assert_eq!(parsed(&passed).over(&usual), options.over(&usual));
        assert_ne!(options.over(&usual), usual);
    }
}
