//! `softhca port`: shows a port, or changes it while programs run, as a subnet manager does.
//!
//! The agent checks the values and raises the events. The principal type is [`PortCommand`].

use clap::Args;
use serde_json::{Map, Value, json};

use crate::admin::Connection;
use crate::devices;
use crate::failure::Failure;
use crate::place::Host;

/// The examples below the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  softhca port                              Port 1 of the first device.
  softhca port softhca1/2                   Port 2 of softhca1.
  softhca port --lid 8 --lmc 2              LIDs 8 to 11: IBV_EVENT_LID_CHANGE.
  softhca port --sm-lid 1                   IBV_EVENT_SM_CHANGE.
  softhca port --pkeys 0xffff,0x8001        IBV_EVENT_PKEY_CHANGE.
  softhca port --subnet-prefix fec0:0:0:1   IBV_EVENT_GID_CHANGE.
  softhca port --reregister                 IBV_EVENT_CLIENT_REREGISTER.
  softhca port --state down                 IBV_EVENT_PORT_ERR.
  softhca port --rate '4X HDR' --mtu 2048

LIDs and the values of the subnet manager need InfiniBand ports:
`softhca agent --link-layer infiniband`. The changes last as long as the agent;
docs/configuration.md says how to configure them.";

#[derive(Debug, Args)]
pub(crate) struct PortCommand {
    /// DEVICE or DEVICE/PORT [default: port 1 of the first device]
    #[arg(value_name = "DEVICE/PORT")]
    port: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// `active` or `down`; a port that is down stays down when its interfaces change
    #[arg(long, value_parser = ["active", "down"])]
    state: Option<String>,
    /// The base LID
    #[arg(long, value_name = "LID", value_parser = number)]
    lid: Option<u16>,
    /// The port has 2^LMC LIDs
    #[arg(long)]
    lmc: Option<u8>,
    /// The LID of the subnet manager
    #[arg(long, value_name = "LID", value_parser = number)]
    sm_lid: Option<u16>,
    /// The service level of datagrams to the subnet manager
    #[arg(long, value_name = "SL")]
    sm_sl: Option<u8>,
    /// The longest time to any port of the subnet: 4.096 us * 2^CODE
    #[arg(long, value_name = "CODE")]
    subnet_timeout: Option<u8>,
    /// What the subnet manager did of what the port asked for when it started: 4 bits
    #[arg(long, value_name = "BITS")]
    init_type_reply: Option<u8>,
    /// The upper half of GID index 0, 16 hex digits or four groups
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    subnet_prefix: Option<String>,
    /// The P_Keys, from index 0, separated by commas
    #[arg(long, value_name = "P_KEY", value_delimiter = ',', value_parser = number)]
    pkeys: Option<Vec<u16>>,
    /// Width and speed of the link, such as '4X EDR'
    #[arg(long)]
    rate: Option<String>,
    /// The largest active MTU in bytes
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// Ask programs to register again with subnet administration
    #[arg(long)]
    reregister: bool,
}

/// A number, decimal or hex.
pub(crate) fn number(text: &str) -> Result<u16, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a number from 0 to 65535, such as 17 or 0x8001".to_owned())
}

/// A prefix, whose groups may be short, as the agent parses it.
fn prefix(text: &str) -> Result<String, String> {
    let groups: Vec<&str> = text.split(':').collect();
    let is_hex = |group: &&str| !group.is_empty() && group.len() <= 4 && group.chars().all(|c| c.is_ascii_hexdigit());
    match groups[..] {
        [whole] => Ok(whole.to_owned()),
        [a, b, c, d] if groups.iter().all(is_hex) => Ok(format!("{a:0>4}:{b:0>4}:{c:0>4}:{d:0>4}")),
        _ => Err("write four groups of hex digits, such as fe80:0:0:0".to_owned()),
    }
}

impl PortCommand {
    /// The values that are given, as the agent's configuration names them.
    fn given(&self) -> Map<String, Value> {
        let subnet = json!({
            "lid": self.lid,
            "lmc": self.lmc,
            "sm_lid": self.sm_lid,
            "sm_sl": self.sm_sl,
            "timeout": self.subnet_timeout,
            "init_type_reply": self.init_type_reply,
        });
        let subnet = set(subnet);
        set(json!({
            "state": self.state,
            "subnet": (!subnet.is_empty()).then_some(subnet),
            "subnet_prefix": self.subnet_prefix,
            "pkeys": self.pkeys,
            "rate": self.rate,
            "mtu": self.mtu,
            "reregister": self.reregister.then_some(true),
        }))
    }

    /// The names of the device and the port.
    fn place(&self) -> Result<(Option<&str>, u32), String> {
        let Some(place) = self.port.as_deref() else { return Ok((None, 1)) };
        let Some((device, port)) = place.split_once('/') else { return Ok((Some(place), 1)) };
        let port = port.parse().map_err(|_| format!("{place:?} is not a port; write DEVICE/PORT, as softhca0/1"))?;
        Ok((Some(device), port))
    }
}

/// The members that are not null.
fn set(values: Value) -> Map<String, Value> {
    let Value::Object(values) = values else { return Map::new() };
    values.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Shows the port, or changes it first.
pub(crate) fn run(port: &PortCommand, host: &Host) -> Result<String, Failure> {
    let (device, number) = port.place()?;
    let change = port.given();
    let question = json!({"request": "port", "device": device, "port": number, "set": change});
    let mut answer = Connection::expect(&host.run_dir())?.ask_for(&question)?;
    if port.json {
        devices::name_flags(&mut answer["port"]);
        return Ok(crate::json::object(answer)?);
    }
    let names: Vec<&str> = answer["events"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut text = format!("{}/{number}\n", answer["device"].as_str().unwrap_or_default());
    text += &devices::port_in_words(&answer["port"], true, 4);
    if !change.is_empty() {
        let events = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        text += &format!("events: {events}\n");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_numbers_are_parsed_as_people_write_them() {
        assert_eq!(prefix("fec0:0:0:1"), Ok("fec0:0000:0000:0001".into()));
        assert_eq!(prefix("0xfe80000000000000"), Ok("0xfe80000000000000".into()));
        assert!(prefix("fe80::1").is_err() && prefix("1:2:3").is_err());
        assert_eq!((number("0x8001"), number("17")), (Ok(0x8001), Ok(17)));
        assert!(number("-1").is_err() && number("65536").is_err());
    }
}
