//! The port that an interface uses: its device, partition and MTU. Principal type:
//! [`PartitionPort`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use softhca::{Context, Device, PortInfo};

use super::connected;
use super::connection::Service;
use super::manager::{Asker, Manager};
use super::options::Ipoib;
use super::umad::File;
use crate::failure::Failure;

/// The MTU of an IPoIB link in most subnets: that of its broadcast group.
const USUAL: u32 = 2048;
/// The bytes of the encapsulation header.
const HEADER: u32 = ipoib::header::LEN as u32;
/// The scope of the groups: this subnet.
const SUBNET: u8 = 2;
/// The bits of a P_Key that name the partition.
const PARTITION: u16 = 0x7fff;
/// IPv6 needs links with at least this MTU.
pub(crate) const IPV6_LEAST: u32 = 1280;

/// A port in one of its partitions.
pub(crate) struct PartitionPort {
    pub(crate) context: Context,
    pub(crate) number: u8,
    /// DEVICE/PORT.
    pub(crate) name: String,
    pub(crate) info: PortInfo,
    pub(crate) pkey: u16,
    pub(crate) pkey_index: u16,
    pub(crate) gid_index: Option<u8>,
    device: String,
    pub(crate) connected: Option<Service>,
    mtu: u32,
    managed: bool,
}

impl PartitionPort {
    /// Opens the device, and finds the partition, which is the first one if there is no `pkey`.
    pub(crate) fn open(run_dir: &Path, options: &Ipoib, pkey: Option<u16>) -> Result<Self, Failure> {
        let (device, number) = choose(run_dir, options.device.as_deref())?;
        let name = format!("{}/{number}", device.name());
        let context = device.open()?;
        let info = context.port(number).map_err(|error| format!("{name}: {error}"))?;
        if !info.active {
            let why = if info.infiniband && info.sm_lid == 0 {
                "no subnet manager has brought it up yet; start one, for example opensm"
            } else {
                "it is down; see `softhca devices`"
            };
            return Err(format!("the port {name} is not active: {why}").into());
        }
        let (pkey_index, pkey) = partition(&context, number, &info, pkey, &name)?;
        let most = info.mtu.bytes() - HEADER;
        let mtu = options.mtu.unwrap_or(info.mtu.bytes().min(USUAL) - HEADER);
        if !(68..=most).contains(&mtu) {
            return Err(Failure::of_options(format!(
                "an MTU of {mtu}: it must be between 68 and {most}, because the active MTU of {name} is {}",
                info.mtu
            )));
        }
        // A port at which a manager runs has its own LID as that of the manager. So has a port
        // without one.
        let managed = info.infiniband && (info.runs_manager || (info.sm_lid != 0 && info.sm_lid != info.lid));
        let managed = managed && !options.no_manager;
        // A subnet manager knows the port by this GID.
        let gid_index = options.gid_index.or(managed.then_some(0));
        let device = device.name().to_owned();
        Ok(Self {
            context,
            device,
            number,
            name,
            info,
            pkey,
            pkey_index,
            gid_index,
            connected: options.connected,
            mtu,
            managed,
        })
    }

    /// Whether the P_Key is still at its place in the table.
    pub(crate) fn has_partition(&self) -> Result<bool, Failure> {
        Ok(self.context.pkey(self.number, self.pkey_index)? == self.pkey)
    }

    /// Waits until the table has the P_Key again, maybe at another place. Returns false if `stop`
    /// is readable before.
    pub(crate) fn wait_for_partition(&self, stop: &OwnedFd) -> Result<bool, Failure> {
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        loop {
            // The event that says so may have come already.
            let info = self.context.port(self.number)?;
            if info.active && partition(&self.context, self.number, &info, Some(self.pkey), &self.name).is_ok() {
                return Ok(true);
            }
            let mut fds = [input(stop.as_fd()), input(self.context.as_fd())];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("cannot wait: {error}").into()),
            }
            if !fds[0].revents().is_empty() {
                return Ok(false);
            }
            while self.context.poll_event()?.is_some() {}
        }
    }

    /// The partition, with the scope of its groups.
    pub(crate) fn partition(&self) -> ipoib::Partition {
        ipoib::Partition { pkey: self.pkey, scope: SUBNET }
    }

    /// The longest packet of a datagram.
    pub(crate) fn packet_mtu(&self) -> u32 {
        self.mtu
    }

    /// The MTU of the network interface.
    pub(crate) fn interface_mtu(&self) -> usize {
        if self.connected.is_some() { connected::MTU } else { self.mtu as usize }
    }

    /// The longest payload of a datagram.
    pub(crate) fn payload_max(&self) -> usize {
        (self.mtu + HEADER) as usize
    }

    /// The MTU of the link is that of its broadcast group.
    pub(crate) fn limit(&mut self, link_mtu: u32) {
        self.mtu = self.mtu.min(link_mtu - HEADER);
    }

    /// Whether subnet administration is asked for groups and paths.
    pub(crate) fn is_managed(&self) -> bool {
        self.managed
    }

    /// Connects to subnet administration, if the port has a manager.
    pub(crate) fn manager(&self, run_dir: &Path) -> Result<Option<Manager>, Failure> {
        if !self.managed {
            return Ok(None);
        }
        let file = File::open(run_dir, &self.device, self.number).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => format!(
                "no right to ask the subnet manager of {}: only root, the agent's user and `mad_users` of its \
                 configuration may; without the manager, see --no-manager",
                self.name
            ),
            _ => format!("cannot ask the subnet manager of {}: {error}", self.name),
        })?;
        let gid = self.context.gid(self.number, self.gid_index.unwrap_or(0).into())?.gid.0;
        Ok(Some(Manager::new(file, self.asker(gid, &self.info))))
    }

    fn asker(&self, gid: [u8; 16], info: &PortInfo) -> Asker {
        Asker { gid, pkey: self.pkey, sm_lid: info.sm_lid, sm_sl: info.sm_sl }
    }
}

/// The device and the port number of `--device`.
fn choose(run_dir: &Path, wanted: Option<&str>) -> Result<(Device, u8), Failure> {
    let devices = softhca::devices_in(run_dir);
    let (name, number) = match wanted.map(|wanted| wanted.split_once('/').unwrap_or((wanted, "1"))) {
        None => (None, 1),
        Some((name, number)) => {
            let parsed = number.parse().ok().filter(|number| *number > 0);
            let number = parsed.ok_or_else(|| Failure::of_options(format!("{number:?} is not a port number")))?;
            (Some(name), number)
        }
    };
    let found = devices.iter().find(|device| name.is_none_or(|name| device.name() == name));
    match found {
        Some(device) => Ok((device.clone(), number)),
        None => {
            let names: Vec<&str> = devices.iter().map(Device::name).collect();
            let name = name.unwrap_or("softhca0");
            Err(format!("unknown device {name}; the devices of {} are {names:?}", run_dir.display()).into())
        }
    }
}

/// The index and the value of the partition's P_Key.
fn partition(
    context: &Context,
    number: u8,
    info: &PortInfo,
    wanted: Option<u16>,
    name: &str,
) -> Result<(u16, u16), Failure> {
    let mut known = Vec::new();
    for index in 0..info.pkeys {
        let pkey = context.pkey(number, index)?;
        if pkey & PARTITION != 0 {
            known.push((index, pkey));
        }
    }
    let found = known.iter().find(|(_, pkey)| wanted.is_none_or(|wanted| wanted & PARTITION == pkey & PARTITION));
    found.copied().ok_or_else(|| {
        let known: Vec<String> = known.iter().map(|(_, pkey)| format!("{pkey:#06x}")).collect();
        let wanted = wanted.map_or_else(String::new, |wanted| format!(" {wanted:#06x}"));
        format!("the port {name} has no P_Key{wanted}; its partitions are {}", known.join(", ")).into()
    })
}
