//! `softhca devices`: shows the devices and ports of the agent in the words of ibv_devinfo.
//!
//! The agent answers with everything. Without `-v` this module shows only the important members.
//! The principal function is [`run`].

use abi::device::cap;
use serde_json::Value;

use crate::failure::Failure;
use crate::place::Host;
use crate::{json, start};

/// The members of a device that are shown without `-v`.
const DEVICE: &[&str] =
    &["transport", "fw_ver", "node_guid", "sys_image_guid", "vendor_id", "vendor_part_id", "hw_ver", "phys_port_cnt"];

/// The members of a port that are shown without `-v`.
const PORT: &[&str] = &["state", "max_mtu", "active_mtu", "sm_lid", "lid", "lmc", "link_layer"];

/// Members that are bits or identifiers, which are shown in hex.
const HEX: &[&str] = &["vendor_id", "hw_ver", "device_cap_flags", "port_cap_flags", "page_size_cap"];

/// Lists the devices. If no agent runs, one is started, as for a program.
pub(crate) fn run(host: &Host, json: bool, verbose: bool) -> Result<String, Failure> {
    let answer = start::ensure(host, &host.run_dir(), start::Wanted::default())?.ask("devices")?;
    let devices = &answer["devices"];
    if json {
        return Ok(json::document("devices", readable(devices.clone()))?);
    }
    Ok(devices.as_array().into_iter().flatten().map(|device| one(device, verbose)).collect::<Vec<_>>().join("\n"))
}

/// The bits of `port_cap_flags` that ports set: PortInfo:CapabilityMask of the IBA, with
/// rdma-core's names.
const PORT_FLAGS: [(u64, &str); 10] = [
    (1 << 1, "sm"),
    (1 << 3, "trap-sup"),
    (1 << 5, "auto-migr-sup"),
    (1 << 6, "sl-map-sup"),
    (1 << 11, "sys-image-guid-sup"),
    (1 << 14, "extended-speeds-sup"),
    (1 << 16, "cm-sup"),
    (1 << 22, "cap-mask-notice-sup"),
    (1 << 25, "client-reg-sup"),
    (1 << 26, "ip-based-gids"),
];

/// Replaces bits by lists of names.
fn readable(mut devices: Value) -> Value {
    let kebab = |name: &str| name.to_lowercase().replace('_', "-");
    for device in devices.as_array_mut().into_iter().flatten() {
        if let Some(bits) = device["device_cap_flags"].as_u64() {
            device["device_cap_flags"] = json::flags(bits, |bit| cap::name(bit).map(kebab));
        }
        for port in device["ports"].as_array_mut().into_iter().flatten() {
            name_flags(port);
        }
    }
    devices
}

/// Replaces the capability bits of a port by a list of names.
pub(crate) fn name_flags(port: &mut Value) {
    if let Some(bits) = port["port_cap_flags"].as_u64() {
        let name = |bit| PORT_FLAGS.iter().find(|(known, _)| *known == bit).map(|(_, name)| (*name).to_owned());
        port["port_cap_flags"] = json::flags(bits, name);
    }
}

fn one(device: &Value, verbose: bool) -> String {
    let mut text = format!("hca_id: {}\n", plain("name", &device["name"]));
    text += &members(device, DEVICE, verbose, 4);
    for port in device["ports"].as_array().into_iter().flatten() {
        text += &format!("    port: {}\n", port["port"]);
        text += &port_in_words(port, verbose, 8);
        for gid in port["gids"].as_array().into_iter().flatten() {
            let index = gid["index"].as_u64().unwrap_or(0);
            // An address without the wire gets a line also without `-v`.
            if verbose || index == 0 || gid["why"].is_string() {
                text += &format!("        {:<28}{}\n", format!("GID[{index:3}]:"), gid_line(gid));
            }
        }
        for address in port["addresses"].as_array().into_iter().flatten() {
            text += &format!("        {:<28}{}{}\n", "address:", plain("", &address["address"]), interface(address));
        }
    }
    text
}

/// The interface of an address or GID, behind it.
fn interface(of: &Value) -> String {
    of["interface"].as_str().filter(|name| !name.is_empty()).map_or_else(String::new, |name| format!(", {name}"))
}

/// What a port is, without its GIDs.
pub(crate) fn port_in_words(port: &Value, verbose: bool, indent: usize) -> String {
    let sentence = port["lids"].as_str().map(|sentence| format!("{:indent$}{sentence}\n", ""));
    members(port, PORT, verbose, indent) + &sentence.unwrap_or_default()
}

/// The members in `first`, in this order; with `verbose` all other members follow.
fn members(of: &Value, first: &[&str], verbose: bool, indent: usize) -> String {
    let Some(all) = of.as_object() else { return String::new() };
    let width = 36 - indent;
    let line =
        |name: &str, value: &Value| format!("{:indent$}{:<width$}{}\n", "", format!("{name}:"), plain(name, value));
    let mut text: String = first.iter().filter_map(|name| Some(line(name, all.get(*name)?))).collect();
    let rest = all.iter().filter(|(name, value)| {
        verbose
            && !first.contains(&name.as_str())
            && !matches!(name.as_str(), "name" | "port" | "lids")
            && !value.is_array()
    });
    for (name, value) in rest {
        text += &line(name, value);
    }
    text
}

fn gid_line(gid: &Value) -> String {
    let wire = match (gid["index"].as_u64(), gid["why"].as_str()) {
        // Index 0 is not an address of the host, so it never has the wire.
        (Some(1..), Some(why)) => format!(", no wire: {why}"),
        _ => String::new(),
    };
    format!("{}, {}{}{wire}", plain("gid", &gid["gid"]), plain("type", &gid["type"]), interface(gid))
}

fn plain(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if HEX.contains(&name) => {
            number.as_u64().map_or_else(|| number.to_string(), |number| format!("{number:#x}"))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::one;
    use serde_json::json;

    #[test]
    fn capabilities_are_lists_of_names() {
        let devices = json!([{"device_cap_flags": 0x8000_0011_u32, "ports": [{"port_cap_flags": 1 << 16 | 1 << 4}]}]);
        let shown = super::readable(devices);
        assert_eq!(shown[0]["device_cap_flags"], json!(["resize-max-wr", "auto-path-mig", "0x80000000"]));
        assert_eq!(shown[0]["ports"][0]["port_cap_flags"], json!(["0x10", "cm-sup"]));
    }

    #[test]
    fn a_device_in_words() {
        let device = json!({
            "name": "softhca0", "fw_ver": "0.1.0", "vendor_id": 255, "max_qp": 10,
            "ports": [{"port": 1, "state": "PORT_ACTIVE (4)", "link_layer": "Ethernet",
                       "gids": [{"index": 0, "gid": "fe80::1", "type": "RoCE v2", "interface": "", "why": "no address"},
                                {"index": 1, "gid": "::1", "type": "RoCE v2", "interface": "lo"},
                                {"index": 2, "gid": "::2", "type": "RoCE v2", "interface": "lo", "why": "taken"}]}],
        });
        let short = one(&device, false);
        assert!(
            short.starts_with("hca_id: softhca0\n") && short.contains("0xff") && short.contains("PORT_ACTIVE"),
            "{short}"
        );
        assert!(!short.contains("max_qp") && !short.contains("GID[  1]"), "{short}");
        assert!(short.contains("::2, RoCE v2, lo, no wire: taken") && !short.contains("no address"), "{short}");
        let rnic = one(
            &json!({"name": "iw0", "ports": [{"port": 1, "gids": [{"index": 0, "gid": "5254::", "type": "MAC",
            "interface": "eth1", "why": null}], "addresses": [{"address": "192.0.2.1", "interface": "eth1"}]}]}),
            false,
        );
        assert!(rnic.contains("5254::, MAC, eth1\n") && rnic.contains("192.0.2.1, eth1\n"), "{rnic}");
        let long = one(&device, true);
        assert!(long.contains("max_qp") && long.contains("::1, RoCE v2, lo"), "{long}");
    }
}
