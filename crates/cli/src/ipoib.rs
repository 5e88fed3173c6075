//! `softhca ipoib`: a network interface over InfiniBand or RoCE (IPoIB), for programs that know
//! nothing of RDMA.
//!
//! The crate `ipoib` decides what becomes of each packet. This module has the rest: the options,
//! the TUN device, its addresses and routes, the queue pair, and subnet administration. The
//! principal function is [`run`].

mod bridge;
mod connected;
mod connection;
mod groups;
mod link;
mod manager;
mod netlink;
mod options;
mod port;
mod umad;

use std::io::{self, Write};

use serde_json::json;
use tun::Tun;

use crate::failure::Failure;
use crate::place::{self, Host};
use crate::{signals, start};

use bridge::{Bridge, BridgeEnd};
use engine::reason::say;
pub(crate) use options::{EXAMPLES, Ipoib};
use port::PartitionPort;

/// Makes the interface, and carries its packets until a signal ends it.
pub(crate) fn run(options: &Ipoib, host: &Host) -> Result<String, Failure> {
    let stop = signals::stop()?;
    let run_dir = place::run_dir_of(host, options.node.as_deref())?;
    // The connection is kept until the end. While it exists, an agent does not exit as idle.
    let _agent = match options.node {
        Some(_) => None,
        None => Some(start::ensure(host, &run_dir, start::Wanted::default())?),
    };
    let mut port = PartitionPort::open(&run_dir, options, options.pkey)?;
    let tun = Tun::create(&options.interface).map_err(|error| no_interface(&options.interface, &error))?;
    let mut ips = options.ip.as_slice();
    loop {
        let managed = match port.manager(&run_dir)? {
            None => None,
            Some(mut manager) => {
                let group = manager.join_broadcast(port.partition().broadcast())?;
                port.limit(group.mtu);
                Some((manager, group))
            }
        };
        let mut bridge = Bridge::new(&tun, &options.interface, &port, managed)?;
        bridge.set_up(ips)?;
        tell_ready(options, &port, &bridge)?;
        if bridge.carry(&stop)? == BridgeEnd::Stopped {
            return Ok(String::new());
        }
        drop(bridge);
        say(format_args!("{} has another P_Key table: {} starts again", port.name, options.interface));
        if !port.wait_for_partition(&stop)? {
            return Ok(String::new());
        }
        port = PartitionPort::open(&run_dir, options, Some(port.pkey))?;
        // The interface has kept its addresses.
        ips = &[];
    }
}

/// Says that the interface is up, at once: a script waits for this line.
fn tell_ready(options: &Ipoib, port: &PartitionPort, bridge: &Bridge) -> io::Result<()> {
    let link = bridge.address();
    let line = if options.json {
        let ips: Vec<String> = options.ip.iter().map(ToString::to_string).collect();
        crate::json::line(json!({
            "interface": options.interface, "port": port.name, "pkey": port.pkey, "mtu": port.interface_mtu(),
            "link": link.to_string(), "addresses": ips, "managed": port.is_managed(),
        }))
    } else {
        let manager = if port.is_managed() { "with its subnet manager" } else { "without a subnet manager" };
        format!(
            "{} is up on {} {manager}: partition {:#06x}, MTU {}, link-layer address {link}",
            options.interface,
            port.name,
            port.pkey,
            port.interface_mtu()
        )
    };
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush())
}

fn no_interface(name: &str, error: &tun::Error) -> Failure {
    use rustix::io::Errno;
    let is = |error: &io::Error, errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    match error {
        tun::Error::Name => Failure::of_options(format!(
            "{name:?} is not a valid name of a network interface: at most {} characters, without spaces and '/'",
            tun::NAME_MAX
        )),
        tun::Error::File(error) if is(error, Errno::ACCESS) || is(error, Errno::PERM) => {
            format!("no right to open {}; run softhca ipoib as root", tun::FILE).into()
        }
        tun::Error::File(error) => {
            format!("cannot open {}: {error}; load the kernel module tun, or give the container this device", tun::FILE)
                .into()
        }
        tun::Error::Interface(error) if is(error, Errno::PERM) => format!(
            "no right to make the network interface {name}: run softhca ipoib as root, or in a network namespace of \
             your own (unshare -rn)"
        )
        .into(),
        tun::Error::Interface(error) if is(error, Errno::BUSY) || is(error, Errno::INVAL) => {
            format!("the network interface {name} exists already; choose another name with --interface").into()
        }
        tun::Error::Interface(error) => format!("cannot make the network interface {name}: {error}").into(),
    }
}
