//! The mirror of `/sys/class/infiniband` and `/sys/class/infiniband_verbs` in the run directory.
//!
//! Programs and scripts that read facts there instead of asking find them in the kernel's words. It is written, never read,
//! by the agent; a file is replaced as a whole, so that a reader sees the old fact or the new one. The principal type is
//! [`Mirror`].

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use abi::device::{mtu_bytes, port_state};

use crate::addresses::interface_name;
use crate::device::{Device, FIRMWARE, PKEYS, VENDOR_ID};
use crate::gids::GID_TABLE_LEN;
use crate::rundir::{RunDir, SYS, node};

/// The ABI version of `/dev/infiniband/uverbsN`, as the kernel's class attribute tells it.
const UVERBS_ABI: &str = "6";
/// The major number of the kernel's uverbs nodes, and the minor of the first.
const FIRST_NODE: (u32, u32) = (231, 192);

/// The tree in a run directory.
#[derive(Debug)]
pub(crate) struct Mirror {
    root: PathBuf,
}

impl Mirror {
    /// Writes everything about `devices`.
    pub(crate) fn new(run_dir: &RunDir, devices: &[Device]) -> io::Result<Self> {
        let mirror = Self { root: run_dir.file(SYS) };
        mirror.write(Path::new("class/infiniband_verbs/abi_version"), UVERBS_ABI)?;
        for device in devices {
            mirror.constants(device)?;
        }
        mirror.update(devices)?;
        Ok(mirror)
    }

    /// Brings what changes up to date: port states and GID tables.
    pub(crate) fn update(&self, devices: &[Device]) -> io::Result<()> {
        for device in devices {
            for (number, port) in (1..).zip(&device.ports) {
                let at = home(device).join(format!("ports/{number}"));
                self.write(&at.join("state"), state_text(port.state))?;
                let physical = if port.state == port_state::ACTIVE { "5: LinkUp" } else { "3: Disabled" };
                self.write(&at.join("phys_state"), physical)?;
                let mtu = mtu_bytes(port.active_mtu).unwrap_or_default();
                self.write(&at.join("active_mtu"), &mtu.to_string())?;
                for index in 0..GID_TABLE_LEN {
                    let entry = port.gids.entry(index as u32);
                    let gid = gid_text(entry.map(|entry| entry.gid).unwrap_or_default());
                    self.write(&at.join(format!("gids/{index}")), &gid)?;
                    let kind = at.join(format!("gid_attrs/types/{index}"));
                    let interface = at.join(format!("gid_attrs/ndevs/{index}"));
                    match entry {
                        Some(entry) => {
                            self.write(&kind, "RoCE v2")?;
                            self.write(&interface, &interface_name(entry.ifindex).unwrap_or_else(|| "lo".into()))?;
                        }
                        None => {
                            let _ = fs::remove_file(self.root.join(kind));
                            let _ = fs::remove_file(self.root.join(interface));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn constants(&self, device: &Device) -> io::Result<()> {
        let home = home(device);
        let [major, minor, micro] = FIRMWARE;
        let firmware = format!("{major}.{minor}.{micro}");
        let guid = device.node_guid.to_string();
        let part = format!("{:#06x}", device.part_id);
        for (name, text) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("fw_ver", &firmware),
            ("hw_rev", "1"),
            ("hca_type", "softhca"),
            ("board_id", "softhca"),
            ("node_desc", &device.name),
            ("device/vendor", &format!("{VENDOR_ID:#08x}")),
            ("device/device", &part),
            ("device/numa_node", "-1"),
        ] {
            self.write(&home.join(name), text)?;
        }
        for number in 1..=device.ports.len() as u32 {
            let at = home.join(format!("ports/{number}"));
            let facts = device.port_attributes(number).unwrap_or_default();
            for (name, text) in [
                ("rate", "100 Gb/sec (4X EDR)"),
                ("lid", "0x0"),
                ("lid_mask_count", "0"),
                ("sm_lid", "0x0"),
                ("sm_sl", "0"),
                ("link_layer", "Ethernet"),
                ("cap_mask", &format!("{:#010x}", facts.port_cap_flags)),
            ] {
                self.write(&at.join(name), text)?;
            }
            for (index, pkey) in PKEYS.iter().enumerate() {
                self.write(&at.join(format!("pkeys/{index}")), &format!("{pkey:#06x}"))?;
            }
        }
        let (major, first) = FIRST_NODE;
        let verbs = Path::new("class/infiniband_verbs").join(node(device.index));
        self.write(&verbs.join("abi_version"), "1")?;
        self.write(&verbs.join("ibdev"), &device.name)?;
        self.write(&verbs.join("dev"), &format!("{major}:{}", first + device.index as u32))?;
        self.write(&verbs.join("device/vendor"), &format!("{VENDOR_ID:#08x}"))?;
        self.write(&verbs.join("device/device"), &part)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let path = self.root.join(path);
        let text = format!("{text}\n");
        if fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &path)
    }
}

fn home(device: &Device) -> PathBuf {
    Path::new("class/infiniband").join(&device.name)
}

/// A GID in the kernel's eight groups of four digits.
pub(crate) fn gid_text(gid: [u8; 16]) -> String {
    let groups = Ipv6Addr::from(gid).segments().map(|group| format!("{group:04x}"));
    groups.join(":")
}

/// A port state in the kernel's words.
pub(crate) fn state_text(state: u8) -> &'static str {
    match state {
        port_state::DOWN => "1: DOWN",
        port_state::INIT => "2: INIT",
        port_state::ARMED => "3: ARMED",
        port_state::ACTIVE => "4: ACTIVE",
        port_state::ACTIVE_DEFER => "5: ACTIVE_DEFER",
        _ => "0: NOP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;
    use crate::gids::HostAddress;

    #[test]
    fn facts_are_where_the_kernel_would_have_them() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        let mut devices = [Device::new(0, &DeviceConfig::default(), "test")];
        let mirror = Mirror::new(&run_dir, &devices).expect("written");
        let read = |name: &str| fs::read_to_string(run_dir.file(SYS).join("class").join(name)).expect(name);
        assert_eq!(read("infiniband/softhca0/ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "softhca0\n");
        assert!(read("infiniband/softhca0/ports/1/gids/0").starts_with("fe80:0000:0000:0000:"));
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), zero);
        let address = HostAddress { ip: [127, 0, 0, 1].into(), ifindex: 1, mtu: 65536 };
        devices[0].ports[0].gids.follow(&[address], true, 1);
        mirror.update(&devices).expect("updated");
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(read("infiniband/softhca0/ports/1/gid_attrs/types/1"), "RoCE v2\n");
        devices[0].ports[0].gids.follow(&[], true, 1);
        mirror.update(&devices).expect("updated");
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), zero);
    }
}
