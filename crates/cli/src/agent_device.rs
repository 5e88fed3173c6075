//! `softhca agent device`: adds devices to a running agent, and removes them. The principal type is
//! [`DeviceCommand`].

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::admin::Connection;
use crate::failure::Failure;
use crate::link_layer::LinkLayer;
use crate::place::Host;

/// The examples below the help of `add`.
const ADD: &str = "\
Examples:
  softhca agent device add softhca1
  softhca agent device add ib0 --link-layer infiniband
  softhca agent device add --config more.toml    All [[devices]] of the file.

Programs find the device the next time that they list devices.";

/// The notes below the help of `remove`.
const REMOVE: &str = "\
Programs that have the device open get IBV_EVENT_DEVICE_FATAL, and ids of
librdmacm get RDMA_CM_EVENT_DEVICE_REMOVAL. Connections through it end.
`softhca fault add remove` takes a device from some programs only.";

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Add devices to the running agent, or remove one
    #[command(subcommand)]
    Device(DeviceCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Add a device, or those of a file
    #[command(after_help = ADD)]
    Add(AddDevice),
    /// Remove a device, also from programs that have it open
    #[command(after_help = REMOVE)]
    Remove {
        /// The name of the device
        #[arg(value_name = "NAME")]
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct AddDevice {
    /// The name of a device with one port and default limits
    #[arg(value_name = "NAME", required_unless_present = "config", conflicts_with = "config")]
    name: Option<String>,
    /// A TOML file with [[devices]] and nothing else (docs/configuration.md)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Link layer of the port: ethernet (RoCE), or infiniband, with a LID
    #[arg(long, value_name = "LAYER", conflicts_with = "config")]
    link_layer: Option<LinkLayer>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl AddDevice {
    /// The devices as a configuration.
    fn configuration(&self) -> Result<String, Failure> {
        if let Some(path) = &self.config {
            return Ok(std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?);
        }
        let layer = self.link_layer.unwrap_or(LinkLayer::Ethernet).name().to_lowercase();
        let name = toml_text(self.name.as_deref().unwrap_or_default());
        Ok(format!("[[devices]]\nname = {name}\n[[devices.ports]]\nlink_layer = \"{layer}\"\n"))
    }
}

/// A text as TOML writes it. JSON's escapes are TOML's, too.
fn toml_text(text: &str) -> String {
    Value::from(text).to_string()
}

/// Adds or removes devices.
pub(crate) fn run(command: &DeviceCommand, host: &Host) -> Result<String, Failure> {
    let (question, json, done) = match command {
        DeviceCommand::Add(add) => (json!({"request": "device", "add": add.configuration()?}), add.json, "added"),
        DeviceCommand::Remove { name, json } => (json!({"request": "device", "remove": name}), *json, "removed"),
    };
    let answer = Connection::expect(&host.run_dir())?.ask_for(&question)?;
    if json {
        return Ok(crate::json::object(answer)?);
    }
    let names = answer[done].as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(names.map(|name| format!("{done}: {name}\n")).collect())
}
