//! The nodes of a topology as hosts: `nodes/NAME` in the run directory looks like the run directory
//! of an agent that has only the device of this node. Its sockets are links to those of the agent,
//! but for that of the connection manager: a program that connects there has the node's addresses.
//! The principal type is [`NodeViews`].

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use abi::interfaces;
use engine::rundir::at;

use crate::device::Device;
use crate::devices::Devices;
use crate::mirror::Mirror;
use crate::mirror::counters::PortCounters;
use crate::rundir::{ADMIN, NODES, PID, RunDir, SYS, node};

/// The files that every node has.
const SHARED: [&str; 4] = [abi::netlink::NODE, abi::umad::NODE, ADMIN, PID];

/// The folders of all nodes that have a device.
#[derive(Debug, Default)]
pub(crate) struct NodeViews(Vec<Mirror>);

impl NodeViews {
    /// Makes a folder for each device.
    pub(crate) fn new(run_dir: &RunDir, devices: &Devices) -> io::Result<Self> {
        let everybody = run_dir.is_for_everybody();
        let nodes = run_dir.file(NODES);
        folder(&nodes, everybody)?;
        let views = devices.iter().map(|device| {
            let home = nodes.join(&device.name);
            folder(&home, everybody)?;
            let socket = node(device.index);
            for name in SHARED.into_iter().chain([socket.as_str()]) {
                let place = home.join(name);
                symlink(Path::new("../..").join(name), &place).map_err(at("create", &place))?;
            }
            let place = home.join(interfaces::FILE);
            fs::write(&place, interfaces_of(device)).map_err(at("write", &place))?;
            Mirror::at(home.join(SYS), devices, Some(device.index))
        });
        views.collect::<io::Result<_>>().map(Self)
    }

    /// The sockets of the connection manager, each with the index of its device. There are none
    /// without a topology.
    pub(crate) fn managers(&self, devices: &Devices) -> Vec<(usize, String)> {
        let name = |device: &Device| (device.index, format!("{NODES}/{}/{}", device.name, abi::ucma::NODE));
        if self.0.is_empty() { Vec::new() } else { devices.iter().map(name).collect() }
    }

    /// Shows the counters of a port.
    pub(crate) fn show_counters(&self, device: &Device, port: u8, counters: &PortCounters) -> io::Result<()> {
        self.0.iter().try_for_each(|mirror| mirror.show_counters(device, port, counters))
    }

    /// Updates what the folders show.
    pub(crate) fn update(&mut self, devices: &Devices) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|mirror| mirror.update(devices))
    }
}

/// Each port with an address has an IPoIB interface.
fn interfaces_of(device: &Device) -> String {
    let names: Vec<String> = (0..device.ports.len()).map(|index| format!("ib{index}")).collect();
    let addresses = names.iter().zip(&device.ports).filter_map(|(name, port)| Some((name.as_str(), port.address?)));
    interfaces::emit(addresses)
}

fn folder(path: &Path, everybody: bool) -> io::Result<()> {
    let mode = if everybody { 0o755 } else { 0o700 };
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(at("create", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;

    #[test]
    fn each_node_shows_its_own_device() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        let device =
            |index, name: &str| Device::new(index, &DeviceConfig { name: name.into(), ..DeviceConfig::default() }, "t");
        let devices = Devices::from_iter([device(0, "H1"), device(1, "H2")]);
        let mut views = NodeViews::new(&run_dir, &devices).expect("made");
        views.update(&devices).expect("written");
        let names = |folder: &str| {
            let mut names: Vec<String> = fs::read_dir(run_dir.file(folder))
                .expect(folder)
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("nodes"), ["H1", "H2"]);
        assert_eq!(names("nodes/H2"), ["admin", "agent.pid", "interfaces", "rdma_netlink", "sys", "umad", "uverbs1"]);
        assert_eq!(views.managers(&devices)[1], (1, "nodes/H2/rdma_cm".to_owned()));
        assert_eq!(names("nodes/H2/sys/class/infiniband"), ["H2"]);
        assert_eq!(views.managers(&devices)[1], (1, "nodes/H2/rdma_cm".to_owned()));
        assert_eq!(names("nodes/H2/sys/class/infiniband_mad"), ["abi_version", "umad1"]);
        assert_eq!(names("nodes/H1/sys/dev/infiniband"), ["rdma_cm", "umad0", "uverbs0"]);
        drop(run_dir);
        assert!(!scratch.path().join("run/nodes").exists());
    }
}
