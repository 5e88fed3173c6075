//! `/sys/class/infiniband_mad` in the mirror, and the nodes of management datagrams: `umadN` for
//! each port, and `issmN` for each InfiniBand port. Adds to [`Mirror`].

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use abi::umad::ABI_VERSION;

use super::{Mirror, NODE_LOOK, home};
use crate::device::Device;
use crate::devices::Devices;
use crate::rundir::{manager_node, umad_node};

/// The folder of the class.
pub(super) const CLASS: &str = "class/infiniband_mad";
/// The major number of the kernel's nodes, and the minor number of the first node of each kind.
const MAJOR: u32 = 231;
const FIRST_UMAD: u32 = 0;
const FIRST_MANAGER: u32 = 64;

/// A port's node: its name, and its minor number.
type DeviceNode = (String, u32);

/// The nodes of a port.
fn nodes(devices: &Devices, device: &Device, port: u32) -> impl Iterator<Item = DeviceNode> {
    let number = devices.mad_number(device.index, port);
    let infiniband = device.port(port).is_ok_and(|port| port.is_infiniband());
    let umad = number.map(|number| (umad_node(number), FIRST_UMAD + number));
    let manager = number.filter(|_| infiniband).map(|number| (manager_node(number), FIRST_MANAGER + number));
    umad.into_iter().chain(manager)
}

/// The names of the nodes of all ports of the `shown` devices.
pub(super) fn names<'a>(devices: &Devices, shown: impl Iterator<Item = &'a Device>) -> BTreeSet<String> {
    let ports = shown.flat_map(|device| (1..=device.ports.len() as u32).map(move |port| (device, port)));
    ports.flat_map(|(device, port)| nodes(devices, device, port)).map(|(name, _)| name).collect()
}

impl Mirror {
    /// Writes what the class has without devices.
    pub(super) fn mad_class(&self) -> io::Result<()> {
        self.write(&Path::new(CLASS).join("abi_version"), &ABI_VERSION.to_string())
    }

    /// Writes the entries about the nodes of a device's ports, and the nodes.
    pub(super) fn mad_nodes(&self, devices: &Devices, device: &Device) -> io::Result<()> {
        for port in 1..=device.ports.len() as u32 {
            for (name, minor) in nodes(devices, device, port) {
                let entry = Path::new(CLASS).join(&name);
                self.write(&entry.join("ibdev"), &device.name)?;
                self.write(&entry.join("port"), &port.to_string())?;
                self.write(&entry.join("dev"), &format!("{MAJOR}:{minor}"))?;
                self.link(&entry.join("device"), &format!("../../infiniband/{}/device", device.name))?;
                let up = "../../../../infiniband_mad";
                self.link(&home(device).join("device/infiniband_mad").join(&name), &format!("{up}/{name}"))?;
                self.link(&Path::new("dev/infiniband").join(&name), NODE_LOOK)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::config::{DeviceConfig, LinkLayer, PortConfig};
    use crate::rundir::{RunDir, SYS};

    fn device(index: usize, name: &str, layers: &[LinkLayer]) -> Device {
        let port = |layer: &LinkLayer| PortConfig { link_layer: *layer, ..PortConfig::default() };
        let ports = layers.iter().map(port).collect();
        Device::new(index, &DeviceConfig { name: name.into(), ports, ..DeviceConfig::default() }, "test")
    }

    fn listed(folder: PathBuf) -> Vec<String> {
        let names = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn each_port_has_its_nodes() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        let both = [LinkLayer::Infiniband, LinkLayer::Ethernet];
        let mut devices = Devices::from_iter([device(0, "eth", &both[1..]), device(1, "both", &both)]);
        let mut mirror = Mirror::new(&run_dir, &devices).expect("written");
        let sys = run_dir.file(SYS);
        let read = |name: &str| fs::read_to_string(sys.join(CLASS).join(name)).expect(name);
        assert_eq!(read("abi_version"), "5\n");
        assert_eq!(listed(sys.join(CLASS)), ["abi_version", "issm1", "umad0", "umad1", "umad2"]);
        assert_eq!(
            (read("umad2/ibdev"), read("umad2/port"), read("umad2/dev")),
            ("both\n".into(), "2\n".into(), "231:2\n".into())
        );
        assert_eq!(
            (read("issm1/ibdev"), read("issm1/port"), read("issm1/dev")),
            ("both\n".into(), "1\n".into(), "231:65\n".into())
        );
        let nodes = ["issm1", "rdma_cm", "umad0", "umad1", "umad2", "uverbs0", "uverbs1"];
        assert_eq!(listed(sys.join("dev/infiniband")), nodes);
        assert_eq!(listed(sys.join("class/infiniband/both/device/infiniband_mad")), ["issm1", "umad1", "umad2"]);
        for link in ["umad0/device", "issm1/device"] {
            assert!(sys.join(CLASS).join(link).join("vendor").is_file(), "{link}");
        }

        devices.remove(0);
        mirror.update(&devices).expect("updated");
        assert_eq!(listed(sys.join(CLASS)), ["abi_version", "issm1", "umad1", "umad2"]);
        devices.put(device(0, "new", &both));
        mirror.update(&devices).expect("updated");
        assert_eq!(listed(sys.join(CLASS)), ["abi_version", "issm0", "issm1", "umad0", "umad1", "umad2", "umad3"]);
        assert_eq!(
            (read("umad0/ibdev"), read("umad3/ibdev"), read("umad3/port")),
            ("new\n".into(), "new\n".into(), "2\n".into())
        );
    }

    /// `libibumad` reads these files, and fails without one of them.
    #[test]
    fn what_libibumad_reads_is_there() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        let devices = Devices::from_iter([device(0, "ib", &[LinkLayer::Infiniband])]);
        Mirror::new(&run_dir, &devices).expect("written");
        let home = run_dir.file(SYS).join("class/infiniband/ib");
        for name in ["node_type", "node_guid", "sys_image_guid", "fw_ver", "hw_rev", "hca_type"] {
            assert!(home.join(name).is_file(), "{name}");
        }
        for name in
            ["state", "lid", "lid_mask_count", "sm_lid", "sm_sl", "phys_state", "rate", "cap_mask", "link_layer"]
        {
            assert!(home.join("ports/1").join(name).is_file(), "{name}");
        }
        assert!(home.join("ports/1/gids/0").is_file() && home.join("ports/1/pkeys/0").is_file());
    }
}
