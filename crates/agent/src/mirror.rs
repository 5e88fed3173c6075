//! The mirror in the run directory: `/sys/class/infiniband`, `/sys/class/infiniband_verbs`,
//! `/sys/class/infiniband_mad` ([`mads`]), the connection manager's entries beside them, and
//! `/dev/infiniband`.
//!
//! Some programs and scripts read these files and do not ask the agent. They find the text that the
//! kernel would show. The path redirector (`capi/preload`) shows the mirror to programs under the
//! official names. The agent writes the mirror and never reads it. It replaces a file as a whole,
//! so that a reader sees either the old fact or the new one. [`counters`] are written when somebody
//! asks for them. The principal type is [`Mirror`].

pub(crate) mod counters;
mod facts;
mod mads;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::Ipv6Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use abi::device::{link_layer, port_state};
use abi::ucma::{ABI_VERSION, NODE};

use crate::addresses::interface_name;
use crate::device::{Device, FIRMWARE};
use crate::devices::{Devices, Version};
use crate::gids::GidEntry;
use crate::rnic::NODE_TYPE;
use crate::rundir::{RunDir, SYS, node};
use counters::PortCounters;
use engine::rundir::at;

/// The ABI version of `/dev/infiniband/uverbsN`, as in the kernel's class attribute.
const UVERBS_ABI: &str = "6";
/// The device number that the connection manager's node would have in the kernel: `misc`, and a
/// free minor number.
const MANAGER_NODE: &str = "10:120";
/// The major number of the kernel's uverbs nodes, and the minor number of the first node.
const FIRST_NODE: (u32, u32) = (231, 192);

/// The target of the mirrored nodes. Programs that only look find a character device that everybody
/// may open.
const NODE_LOOK: &str = "/dev/null";

/// Everybody who reaches the mirror may read files and enter folders. Nobody writes.
const FILE_MODE: u32 = 0o444;
const FOLDER_MODE: u32 = 0o755;

/// The tree in a run directory: `class` as in `/sys`, and next to it the entries of `/dev`.
#[derive(Debug)]
pub(crate) struct Mirror {
    root: PathBuf,
    /// Shows this device only, by index.
    only: Option<usize>,
    /// What the files show, by the index of the device.
    shown: HashMap<usize, ShownFiles>,
    /// The devices of which the files tell; see [`Devices::population`].
    population: u64,
}

/// What the files of a device show.
#[derive(Debug)]
struct ShownFiles {
    /// See [`Devices::version`].
    version: Version,
    /// The hash of the line of each of [`facts::files`].
    hashes: Vec<u64>,
}

impl Mirror {
    /// Writes all files about `devices`.
    pub(crate) fn new(run_dir: &RunDir, devices: &Devices) -> io::Result<Self> {
        Self::at(run_dir.file(SYS), devices, None)
    }

    /// Writes all files about `devices`, or about the one that has the index `only`, at `root`.
    pub(crate) fn at(root: PathBuf, devices: &Devices, only: Option<usize>) -> io::Result<Self> {
        let mut mirror = Self { root, only, shown: HashMap::new(), population: u64::MAX };
        mirror.folder(Path::new("class/infiniband"))?;
        mirror.folder(Path::new("dev/infiniband"))?;
        mirror.write(Path::new("class/infiniband_verbs/abi_version"), UVERBS_ABI)?;
        mirror.write(Path::new("class/misc/rdma_cm/abi_version"), &ABI_VERSION.to_string())?;
        mirror.write(Path::new("class/misc/rdma_cm/dev"), MANAGER_NODE)?;
        mirror.write(Path::new("class/infiniband_ucma/abi_version"), &ABI_VERSION.to_string())?;
        mirror.mad_class()?;
        mirror.link(&Path::new("dev/infiniband").join(NODE), NODE_LOOK)?;
        mirror.update(devices)?;
        Ok(mirror)
    }

    /// Updates what changes: devices, port states, rates, GID tables and P_Key tables. Looks only at
    /// devices that have changed since the last call.
    pub(crate) fn update(&mut self, devices: &Devices) -> io::Result<()> {
        if self.population != devices.population() {
            self.forget_others(devices)?;
            self.population = devices.population();
        }
        match self.only {
            Some(index) => devices.get(index).map_or(Ok(()), |device| self.update_device(devices, device)),
            None => devices.iter().try_for_each(|device| self.update_device(devices, device)),
        }
    }

    fn update_device(&mut self, devices: &Devices, device: &Device) -> io::Result<()> {
        let version = devices.version(device.index);
        if self.shown.get(&device.index).is_some_and(|shown| shown.version == version) {
            return Ok(());
        }
        // If a file cannot be written, the next call writes all files again.
        let before = self.shown.remove(&device.index).filter(|shown| shown.version.came == version.came);
        let home = home(device);
        let is_new = !self.root.join(&home).is_dir();
        if before.is_none() {
            self.constants(device)?;
            self.mad_nodes(devices, device)?;
        }
        self.interfaces(device)?;
        let files = facts::files(device);
        let hashes: Vec<u64> = files.iter().map(|(_, text)| hash(text)).collect();
        let known = before.map(|before| before.hashes).filter(|known| known.len() == hashes.len());
        for (place, (path, text)) in files.iter().enumerate() {
            if known.as_ref().is_some_and(|known| known[place] == hashes[place]) {
                continue;
            }
            match text {
                Some(text) => self.write(&home.join(path), text)?,
                None if is_new => {}
                None => drop(fs::remove_file(self.root.join(&home).join(path))),
            }
        }
        self.shown.insert(device.index, ShownFiles { version, hashes });
        Ok(())
    }

    /// The devices that this mirror shows.
    fn shown<'a>(&self, devices: &'a Devices) -> impl Iterator<Item = &'a Device> {
        let only = self.only;
        devices.iter().filter(move |device| only.is_none_or(|index| device.index == index))
    }

    /// Removes what tells of devices that do not exist any more.
    fn forget_others(&self, devices: &Devices) -> io::Result<()> {
        let nodes: BTreeSet<String> = self.shown(devices).map(|device| node(device.index)).collect();
        let mads = mads::names(devices, self.shown(devices));
        for (folder, names) in [
            ("dev/infiniband", &nodes.union(&mads).cloned().collect()),
            (mads::CLASS, &mads),
            ("class/infiniband_verbs", &nodes),
            ("class/infiniband", &self.shown(devices).map(|device| device.name.clone()).collect()),
        ] {
            for present in fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten() {
                let name = present.file_name();
                let name = name.to_string_lossy();
                let is_other = name != NODE && name != "abi_version" && !names.contains(&*name);
                if is_other {
                    let path = present.path();
                    let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                    removed.map_err(at("remove", &path))?;
                }
            }
        }
        Ok(())
    }

    fn constants(&self, device: &Device) -> io::Result<()> {
        let home = home(device);
        let [major, minor, micro] = FIRMWARE;
        let firmware = format!("{major}.{minor}.{micro}");
        let (guid, system) = (device.node_guid.to_string(), device.system_guid.to_string());
        let part = format!("{:#06x}", device.part_id);
        for (name, text) in [
            ("node_type", if device.is_iwarp() { NODE_TYPE } else { "1: CA" }),
            ("node_guid", &guid),
            ("sys_image_guid", &system),
            ("fw_ver", &firmware),
            ("hw_rev", "1"),
            ("hca_type", "softhca"),
            ("board_id", "softhca"),
            ("node_desc", &device.name),
            ("device/vendor", &format!("{:#08x}", device.vendor_id)),
            ("device/device", &part),
            ("device/numa_node", "-1"),
        ] {
            self.write(&home.join(name), text)?;
        }
        if let Some((list, mask)) = processors() {
            self.write(&home.join("device/local_cpulist"), &list)?;
            self.write(&home.join("device/local_cpus"), &mask)?;
        }
        for number in 1..=device.ports.len() as u32 {
            let at = home.join(format!("ports/{number}"));
            self.show_counters(device, number as u8, &PortCounters::zeros(!device.is_iwarp()))?;
            let facts = device.port_attributes(number).unwrap_or_default();
            self.write(&at.join("link_layer"), link_layer_text(facts.link_layer))?;
        }
        self.node(device)
    }

    /// Writes the entries about the device's node, and the node itself.
    fn node(&self, device: &Device) -> io::Result<()> {
        let (major, first) = FIRST_NODE;
        let (name, home) = (node(device.index), home(device));
        let verbs = Path::new("class/infiniband_verbs").join(&name);
        self.write(&verbs.join("abi_version"), "1")?;
        self.write(&verbs.join("ibdev"), &device.name)?;
        self.write(&verbs.join("dev"), &format!("{major}:{}", first + device.index as u32))?;
        self.link(&verbs.join("device"), &format!("../../infiniband/{}/device", device.name))?;
        self.link(&home.join("device/infiniband").join(&device.name), &format!("../../../{}", device.name))?;
        let up = "../../../../infiniband_verbs";
        self.link(&home.join("device/infiniband_verbs").join(&name), &format!("{up}/{name}"))?;
        self.link(&Path::new("dev/infiniband").join(&name), NODE_LOOK)
    }

    /// The interfaces of a port's addresses. Loopback is included only if there is no other.
    fn interfaces(&self, device: &Device) -> io::Result<()> {
        let entries = device.ports.iter().flat_map(|port| port.gids.iter().map(|(_, entry)| entry));
        let (local, outward): (Vec<_>, Vec<_>) =
            entries.partition(|entry| entry.ip().is_loopback() || entry.ifindex == 0);
        let name = |entry: &GidEntry| interface_name(entry.ifindex);
        let mut names: BTreeSet<String> = outward.iter().filter_map(name).filter(|name| name != "lo").collect();
        if names.is_empty() {
            names = local.iter().filter_map(name).collect();
        }
        let folder = home(device).join("device/net");
        for present in fs::read_dir(self.root.join(&folder)).into_iter().flatten().flatten() {
            if !present.file_name().to_str().is_some_and(|present| names.contains(present)) {
                fs::remove_file(present.path()).map_err(at("remove", &present.path()))?;
            }
        }
        if names.is_empty() {
            // As in the kernel: without an interface there is no folder.
            let _ = fs::remove_dir(self.root.join(&folder));
            return Ok(());
        }
        self.folder(&folder)?;
        names.iter().try_for_each(|name| self.link(&folder.join(name), &format!("/sys/class/net/{name}")))
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        let path = self.root.join(path);
        let text = format!("{text}\n");
        if fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
            return Ok(());
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)
            .and_then(|()| fs::set_permissions(&fresh, Permissions::from_mode(FILE_MODE)))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(at("write", &path))
    }

    fn link(&self, path: &Path, target: &str) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            self.folder(parent)?;
        }
        let place = self.root.join(path);
        match symlink(target, &place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(at("create", &place)(error)),
            _ => Ok(()),
        }
    }

    /// Creates a folder and its parents, with the same rights under every umask.
    fn folder(&self, path: &Path) -> io::Result<()> {
        let place = self.root.join(path);
        if place.is_dir() {
            return Ok(());
        }
        match path.parent() {
            Some(parent) => {
                self.folder(parent)?;
                fs::create_dir(&place)
            }
            None => fs::create_dir_all(&place),
        }
        .and_then(|()| open_up(&place))
        .map_err(at("create", &place))
    }
}

fn open_up(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))
}

/// The processors of this machine, as sysfs shows them for a device: as a list, and as a mask in
/// words of 32 bits.
fn processors() -> Option<(String, String)> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online").ok()?.trim().to_owned();
    let mask = mask_of(&list)?;
    Some((list, mask))
}

/// For example, `0-2,5` becomes `00000027`.
fn mask_of(list: &str) -> Option<String> {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            if words.len() <= number / 32 {
                words.resize(number / 32 + 1, 0);
            }
            words[number / 32] |= 1 << (number % 32);
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    Some(words.join(","))
}

fn hash(text: &Option<String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn home(device: &Device) -> PathBuf {
    Path::new("class/infiniband").join(&device.name)
}

/// A GID in the kernel's eight groups of four digits.
pub(crate) fn gid_text(gid: [u8; 16]) -> String {
    let groups = Ipv6Addr::from(gid).segments().map(|group| format!("{group:04x}"));
    groups.join(":")
}

/// A link layer in the kernel's words.
pub(crate) fn link_layer_text(layer: u8) -> &'static str {
    if layer == link_layer::INFINIBAND { "InfiniBand" } else { "Ethernet" }
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

/// A physical state in the kernel's words.
fn physical_text(state: u8) -> &'static str {
    match state {
        1 => "1: Sleep",
        2 => "2: Polling",
        3 => "3: Disabled",
        4 => "4: PortConfigurationTraining",
        5 => "5: LinkUp",
        6 => "6: LinkErrorRecovery",
        7 => "7: Phy Test",
        _ => "0: <unknown>",
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
        let mut devices = Devices::from_iter([Device::new(0, &DeviceConfig::default(), "test")]);
        let mut mirror = Mirror::new(&run_dir, &devices).expect("written");
        let read = |name: &str| fs::read_to_string(run_dir.file(SYS).join("class").join(name)).expect(name);
        assert_eq!(read("infiniband/softhca0/ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "softhca0\n");
        assert_eq!(read("misc/rdma_cm/abi_version"), "4\n");
        assert!(read("infiniband/softhca0/ports/1/gids/0").starts_with("fe80:0000:0000:0000:"));
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), zero);
        let address = HostAddress { ip: [127, 0, 0, 1].into(), ifindex: 1, mtu: 65536, prefix: 8 };
        devices[0].ports[0].gids.follow(&[address], true, 1);
        mirror.update(&devices).expect("updated");
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(read("infiniband/softhca0/ports/1/gid_attrs/types/1"), "RoCE v2\n");
        let carriers = || -> Vec<_> {
            let folder = run_dir.file(SYS).join("class/infiniband/softhca0/device/net");
            fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
        };
        assert_eq!(carriers(), interface_name(1).into_iter().map(std::ffi::OsString::from).collect::<Vec<_>>());
        devices[0].ports[0].gids.follow(&[], true, 0);
        mirror.update(&devices).expect("updated");
        assert_eq!(read("infiniband/softhca0/ports/1/gids/1"), zero);
        assert!(carriers().is_empty());
        let folder = run_dir.file(SYS).join("class/infiniband/softhca0/device/net");
        assert!(!folder.exists(), "programs take an empty folder for an interface without a name");
    }

    #[test]
    fn an_update_writes_only_what_has_changed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        let device = |index, name: &str| {
            Device::new(index, &DeviceConfig { name: name.into(), ..DeviceConfig::default() }, "test")
        };
        let mut devices = Devices::from_iter([device(0, "one"), device(1, "two")]);
        let mut mirror = Mirror::new(&run_dir, &devices).expect("written");
        let file = |name: &str| run_dir.file(SYS).join("class/infiniband").join(name);
        // A file that is gone shows whether an update has written it.
        let [state, rate, other] = ["one/ports/1/state", "one/ports/1/rate", "two/ports/1/state"].map(file);
        for path in [&state, &rate, &other] {
            fs::remove_file(path).expect("it was there");
        }
        devices[0].ports[0].state = port_state::DOWN;
        mirror.update(&devices).expect("updated");
        assert_eq!(fs::read_to_string(&state).expect("written"), "1: DOWN\n");
        assert!(!rate.exists() && !other.exists());
        // A device in the place of another one is written whole.
        devices.remove(1);
        devices.put(device(1, "two"));
        mirror.update(&devices).expect("updated");
        assert!(!rate.exists() && other.exists());
    }

    #[test]
    fn nodes_links_and_rights() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let run_dir = RunDir::prepare(&scratch.path().join("run"), false).expect("ready");
        Mirror::new(&run_dir, &Devices::from_iter([Device::new(0, &DeviceConfig::default(), "test")]))
            .expect("written");
        let sys = run_dir.file(SYS);
        for (link, same) in [
            ("class/infiniband_verbs/uverbs0/device/vendor", "class/infiniband/softhca0/device/vendor"),
            ("class/infiniband/softhca0/device/infiniband/softhca0/node_type", "class/infiniband/softhca0/node_type"),
            ("class/infiniband/softhca0/device/infiniband_verbs/uverbs0/dev", "class/infiniband_verbs/uverbs0/dev"),
        ] {
            let real = |path: &str| sys.join(path).canonicalize().expect(path);
            assert_eq!(real(link), real(same));
        }
        assert_eq!(fs::read_link(sys.join("dev/infiniband/uverbs0")).expect("a link"), Path::new("/dev/null"));
        let mode = |path: &str| fs::metadata(sys.join(path)).expect(path).permissions().mode() & 0o777;
        assert_eq!(mode("class/infiniband/softhca0/ports/1/state"), FILE_MODE);
        assert_eq!((mode("class/infiniband/softhca0/ports/1"), mode("dev/infiniband")), (FOLDER_MODE, FOLDER_MODE));
    }

    #[test]
    fn processors_as_a_mask() {
        for (list, mask) in
            [("0", "00000001"), ("0-2,5", "00000027"), ("0-63", "ffffffff,ffffffff"), ("32", "00000001,00000000")]
        {
            assert_eq!(mask_of(list).as_deref(), Some(mask), "{list}");
        }
        assert_eq!(mask_of("all"), None);
    }
}
