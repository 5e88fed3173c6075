//! Rooms whose agent has a topology (`softhca agent --topology`), and programs on its nodes. Adds
//! to [`Room`].

use std::process::Command;

use crate::wait;
use crate::{HANG, Program, Room};

impl Room {
    /// Starts an agent with the topology in `text`, and with these further options.
    ///
    /// # Errors
    /// The agent does not start.
    pub fn with_topology(self, text: &str, options: &[&str]) -> Result<Self, String> {
        let file = self.folder().join("subnet.topo");
        std::fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let file = file.display().to_string();
        self.with_agent(&[&["--topology", &file], options].concat())
    }

    /// A command on a node.
    #[must_use]
    pub fn on(&self, node: &str, words: &[&str]) -> Command {
        self.softhca(&[&["run", "--node", node, "--"], words].concat())
    }

    /// Runs opensm on a node until it has brought the subnet up. It continues to manage the subnet.
    /// Its log is `opensm-NODE.log` in the folder of the room's user.
    ///
    /// # Errors
    /// It does not start, or that takes too long.
    pub fn opensm(&self, node: &str, options: &[&str]) -> Result<Program, String> {
        let home = self.own_dir().display().to_string();
        let log = self.own_dir().join(format!("opensm-{node}.log"));
        let (cache, temporary) = (format!("OSM_CACHE_DIR={home}"), format!("OSM_TMP_DIR={home}"));
        let words = ["env", &cache, &temporary, "opensm", "-d", "2", "-f", &log.display().to_string()];
        let manager = self.start(self.on(node, &[&words[..], options].concat()))?;
        let is_up = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("SUBNET UP")).then_some(());
        wait::until(HANG, "opensm to bring the subnet up", is_up)?;
        Ok(manager)
    }

    /// Waits until there is a path from one node to another, or none.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_for_path(&self, from: &str, to: &str, exists: bool) -> Result<(), String> {
        let words = ["subnet", "path", from, to];
        let changed = || (self.finish(self.softhca(&words)).ok()?.succeeded() == exists).then_some(());
        wait::until(HANG, "the path", changed)
    }

    /// Waits until the ports of all adapters and routers are active.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_until_active(&self) -> Result<(), String> {
        let are_active = || {
            let subnet = self.json(&["subnet", "--json"]).ok()?;
            let nodes = subnet["subnet"].as_array()?.iter().filter(|node| node["kind"] != "switch");
            let mut ports = nodes.flat_map(|node| node["ports"].as_array()).flatten();
            ports.all(|port| port["state"] == "ACTIVE" && port["lid"] != 0).then_some(())
        };
        wait::until(HANG, "the adapters and routers to be active", are_active)
    }

    /// A row of subnets with a router between two neighbours. H1 is in the first, and H2 in the last
    /// one.
    #[must_use]
    pub fn row_of_routers(routers: usize) -> String {
        let switch = |number: usize| {
            let before = if number == 1 { "\"H1\"[1]".into() } else { format!("\"R{}\"[2]", number - 1) };
            let after = if number > routers { "\"H2\"[1]".into() } else { format!("\"R{number}\"[1]") };
            format!("Switch 4 \"S{number}\"\n[1] {before}\n[2] {after}\n\n")
        };
        let switches: String = (1..=routers + 1).map(switch).collect();
        let nodes: String = (1..=routers).map(|number| format!("Rt 2 \"R{number}\"\n\n")).collect();
        format!("{switches}{nodes}Hca 1 \"H1\"\n\nHca 1 \"H2\"\n")
    }
}
