//! Rooms whose agent has a topology (`softhca agent --topology`), and programs on its nodes. Adds
//! to [`Room`].

use std::process::Command;

use crate::wait;
use crate::{HANG, Room};

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

    /// Waits until there is a path from one node to another, or none.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_for_path(&self, from: &str, to: &str, exists: bool) -> Result<(), String> {
        let words = ["subnet", "path", from, to];
        let changed = || (self.finish(self.softhca(&words)).ok()?.succeeded() == exists).then_some(());
        wait::until(HANG, "the path", changed)
    }
}
