//! `softhca subnet`: shows the switches of an agent's topology, finds paths, and cuts and mends
//! cables.
//!
//! The agent has the model; this module prints its answers. [`picture`] draws them. The principal
//! type is [`Subnet`].

mod picture;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::Connection;
use crate::doctor::addresses;
use crate::failure::Failure;
use crate::place::Host;
use crate::table;

/// The examples below the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  softhca agent --topology subnet.topo
  softhca subnet                        Nodes, links and LIDs.
  softhca subnet --counters             Also port counters other than zero.
  softhca subnet --svg subnet.svg       A picture.
  softhca subnet path H1 H2             The switches between two adapters, by
                                        their tables, or where packets end.
  softhca subnet path H1[2] S3 --sl 5
  softhca subnet cut S1[3]              The cable at port 3 of S1.
  softhca subnet mend S1[3]
  softhca subnet remove S2              Cut all cables of a node; see restore.

docs/subnets.md describes topology files and subnet managers.";

#[derive(Debug, Args)]
pub(crate) struct Subnet {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// Show the port counters that are not zero
    #[arg(long)]
    counters: bool,
    /// Write a picture to a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the path between two ports
    Path {
        /// The sender: NODE or NODE[PORT]
        from: String,
        /// The receiver: NODE or NODE[PORT]
        to: String,
        /// The service level
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..16))]
        sl: u8,
    },
    /// Cut the cable at a port: NODE[PORT]
    Cut {
        /// The port at one end
        #[arg(value_name = "NODE[PORT]")]
        port: String,
    },
    /// Mend the cable at a port
    Mend {
        /// The port at one end
        #[arg(value_name = "NODE[PORT]")]
        port: String,
    },
    /// Cut all cables of a node
    Remove {
        /// The node's name
        node: String,
    },
    /// Mend all cables of a node
    Restore {
        /// The node's name
        node: String,
    },
}

/// Carries out the command.
pub(crate) fn run(subnet: &Subnet, host: &Host) -> Result<String, Failure> {
    let mut question = json!({ "request": "subnet" });
    match &subnet.action {
        None => {}
        Some(Action::Path { from, to, sl }) => {
            question = json!({ "request": "subnet", "do": "path", "from": from, "to": to, "sl": sl });
        }
        Some(
            Action::Cut { port: at }
            | Action::Mend { port: at }
            | Action::Remove { node: at }
            | Action::Restore { node: at },
        ) => {
            question["do"] = subnet.action.as_ref().map_or("", Action::name).into();
            question["at"] = at.as_str().into();
        }
    }
    let answer = Connection::expect(&host.run_dir())?.ask_for(&question)?;
    if let Some(file) = &subnet.svg {
        std::fs::write(file, picture::svg(&answer["subnet"]))
            .map_err(|error| format!("{}: {error}", file.display()))?;
    }
    if subnet.json {
        return Ok(crate::json::object(answer)?);
    }
    match &subnet.action {
        None if subnet.svg.is_some() => Ok(String::new()),
        None => Ok(in_words(&answer["subnet"], subnet.counters) + &conflicts_in_words(&answer["conflicts"])),
        Some(Action::Path { .. }) => match why_not(&answer) {
            Some(why) => Err(Failure { output: switches_in_words(&answer), ..Failure::from(why) }),
            None => Ok(path_in_words(&answer)),
        },
        Some(_) => Ok(String::new()),
    }
}

impl Action {
    const fn name(&self) -> &'static str {
        match self {
            Self::Path { .. } => "path",
            Self::Cut { .. } => "cut",
            Self::Mend { .. } => "mend",
            Self::Remove { .. } => "remove",
            Self::Restore { .. } => "restore",
        }
    }
}

/// The elements of a list.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// One line per link end, below a line per node.
fn in_words(nodes: &Value, counters: bool) -> String {
    let mut rows = Vec::new();
    for node in list(nodes) {
        let lids = list(&node["ports"]).filter_map(|port| port["lid"].as_u64());
        let lids: Vec<String> = lids.map(|lid| lid.to_string()).collect();
        let manager = list(&node["ports"]).any(|port| port["manager"] == true);
        let manager = if manager { "subnet manager" } else { "" };
        rows.push([text(&node["name"]), text(&node["kind"]), &lids.join(","), "", manager].map(str::to_owned).to_vec());
        for port in list(&node["ports"]) {
            if let Some(peer) = port["peer"].as_str() {
                let state = if port["cut"] == true { "cut" } else { text(&port["state"]) };
                let name = format!("  [{}]", port["port"]);
                rows.push(vec![
                    name,
                    format!("-> {peer}"),
                    String::new(),
                    state.to_owned(),
                    text(&port["rate"]).to_owned(),
                    text(&port["address"]).to_owned(),
                ]);
            }
            for (name, count) in port["counters"].as_object().into_iter().flatten().filter(|_| counters) {
                rows.push(vec![String::new(), format!("   {name} {count}")]);
            }
        }
    }
    table::columns(&["NODE", "KIND, PEER", "LID", "STATE", "RATE", "ADDRESS"], &rows)
}

/// The addresses that several ports name.
fn conflicts_in_words(conflicts: &Value) -> String {
    let lines: String = list(conflicts).map(|conflict| format!("\n{}", addresses::in_words(conflict))).collect();
    let hint = "\nPrograms here reach the first port by it. Give each adapter an address of its own in the files.\n";
    if lines.is_empty() { lines } else { lines + hint }
}

/// A path: its switches, or those that packets pass, and where and why they end.
pub(crate) fn path_in_words(path: &Value) -> String {
    let end = match why_not(path) {
        Some(why) => format!("  {why}\n"),
        None => format!("{}, MTU {}, {} ns on the cables\n", text(&path["rate"]), path["mtu"], path["delay_ns"]),
    };
    switches_in_words(path) + &end
}

fn switches_in_words(path: &Value) -> String {
    let to = path["to"].as_str().unwrap_or("?");
    let mut told = format!("{} -> {to}, LID {}, SL {}\n", text(&path["from"]), path["lid"], path["sl"]);
    if path["vl"].is_number() {
        told += &format!("  leaves on VL {}\n", path["vl"]);
    }
    for hop in list(&path["hops"]).chain(list(&path["passed"])) {
        let (node, ingress, egress, vl) = (text(&hop["node"]), &hop["in"], &hop["out"], &hop["vl"]);
        told += &format!("  {node}: in by port {ingress}, out by port {egress}, VL {vl}\n");
    }
    told
}

/// Why there is no path.
fn why_not(path: &Value) -> Option<String> {
    let why = path["why"].as_str()?;
    let place = path["ends_at"].as_str().map(|place| format!("packets end at {place}: ")).unwrap_or_default();
    Some(format!("{place}{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn nodes() -> Value {
        json!([
            {"name": "S1", "kind": "switch", "ports": [
                {"port": 0, "lid": 2, "counters": {}},
                {"port": 1, "peer": "H1[1]", "state": "ACTIVE", "rate": "100 Gb/sec (4X EDR)", "counters": {"xmit_packets": 7}},
                {"port": 2, "peer": "H<2>[1]", "state": "DOWN", "rate": "10 Gb/sec (4X SDR)", "cut": true, "counters": {}}]},
            {"name": "H1", "kind": "hca", "ports": [
                {"port": 1, "peer": "S1[1]", "lid": 1, "manager": true, "state": "ACTIVE", "counters": {},
                 "address": "127.1.0.1"}]},
            {"name": "H<2>", "kind": "hca", "ports": [
                {"port": 1, "peer": "S1[2]", "lid": 0, "state": "DOWN", "cut": true, "counters": {}}]},
        ])
    }

    #[test]
    fn a_subnet_is_a_table_of_links() {
        let told = in_words(&nodes(), true);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["S1", "switch", "2"]);
        assert!(lines[2].starts_with("  [1]  -> H1[1]") && lines[2].ends_with("ACTIVE  100 Gb/sec (4X EDR)"), "{told}");
        assert!(lines[3].ends_with("xmit_packets 7") && lines[4].contains("cut"), "{told}");
        assert!(lines[6].ends_with("127.1.0.1"), "{told}");
        assert!(lines[5].ends_with("subnet manager"), "{told}");
        assert!(!in_words(&nodes(), false).contains("xmit"), "{told}");
    }

    #[test]
    fn an_address_of_two_ports_is_told_below_the_table() {
        let conflict = json!([{"ip": "127.1.0.1", "port": "H1[1]", "other": "LID 4 of the agent at 10.9.0.2"}]);
        let told = conflicts_in_words(&conflict);
        assert!(
            told.contains("IP address 127.1.0.1 belongs to H1[1], and LID 4 of the agent at 10.9.0.2 names"),
            "{told}"
        );
        let gid = conflicts_in_words(&json!([{"gid": "fe80::1", "port": "a", "other": "b"}]));
        assert!(gid.starts_with("\nGID fe80::1 belongs to a, and b names it too\n"), "{gid}");
        assert_eq!(conflicts_in_words(&json!([])), "");
    }

    #[test]
    fn a_path_that_ends_names_the_place_and_the_cause() {
        let path = json!({"from": "H1[1]", "to": "H2[1]", "lid": 5, "sl": 0, "ends_at": "S1[2]", "why": "no route"});
        assert_eq!(why_not(&path).as_deref(), Some("packets end at S1[2]: no route"));
        assert_eq!(path_in_words(&path), "H1[1] -> H2[1], LID 5, SL 0\n  packets end at S1[2]: no route\n");
    }
}
