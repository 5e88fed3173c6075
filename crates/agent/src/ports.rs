//! What changes at a port by itself: it goes down and comes up with its interfaces (PORT_ERR and
//! PORT_ACTIVE), its rate follows its interface, and on iWARP the GID follows the interface's MAC
//! address. Changes that somebody asks for are in [`crate::port_change`].
//!
//! If a port has named interfaces, it goes down when none of them is running, and becomes active
//! when one is. A port without named interfaces stays active, even without any interface, because
//! programs of one host need none. As on an adapter, no packet passes a port that is down, not even
//! within the host. Adds to [`World`].

use abi::event::{AsyncRecord, kind};
use abi::private::{Push, push};

use crate::addresses::Link;
use crate::config::PortState;
use crate::rate::Rate;
use crate::rnic;
use crate::world::World;

impl World {
    /// Updates the ports from the state of their interfaces. Returns true if the state of a port
    /// has changed.
    pub fn follow_links(&mut self, links: &[Link]) -> bool {
        let mut wanted = Vec::new();
        for device in &self.devices {
            for (number, port) in (1..).zip(&device.ports) {
                if let Some(names) = port.interfaces.as_ref().filter(|names| !names.is_empty() && !port.stays_down) {
                    let runs = links.iter().any(|link| link.runs && names.contains(&link.name));
                    wanted.push((device.index, number, runs));
                }
            }
        }
        let changes = wanted.into_iter().map(|(device, number, up)| self.set_port(device, number, up));
        changes.fold(false, |any, changed| any | changed)
    }

    /// Updates the GIDs of iWARP ports from the MAC addresses of their interfaces. The contexts of a
    /// device whose GID has changed get GID_CHANGE, and the result is true.
    pub fn follow_macs(&mut self, links: &[Link]) -> bool {
        let mut changed = Vec::new();
        for device in self.devices.iter_mut().filter(|device| device.follows_mac) {
            let Some(port) = device.ports.first_mut() else { continue };
            let names = port.interfaces.as_deref().unwrap_or_default();
            let mac = links.iter().find(|link| names.contains(&link.name)).and_then(|link| link.mac);
            if mac.is_some_and(|mac| port.set_guid(rnic::guid_of(mac))) {
                changed.push(device.index);
            }
        }
        for device in &changed {
            tracing::info!(device = %self.devices[*device].name, "the MAC address has changed");
            self.show_port(*device);
            self.raise(*device, AsyncRecord { element: 1, event_type: kind::GID_CHANGE, reserved: 0 });
        }
        !changed.is_empty()
    }

    /// Updates the rates of Ethernet ports from the speed of their interfaces. Returns true if a
    /// rate has changed.
    pub fn follow_rates(&mut self, links: &[Link]) -> bool {
        let mut changed = false;
        for port in self.devices.iter_mut().flat_map(|device| &mut device.ports).filter(|port| !port.keeps_rate) {
            let carrier = port.carrier();
            let speed = links.iter().find(|link| Some(link.index) == carrier).map_or(0, |link| link.speed);
            let rate = Rate::of_ethernet(speed);
            changed |= std::mem::replace(&mut port.rate, rate) != rate;
        }
        changed
    }

    /// Takes a port down, or makes it active. If this changes the state, all contexts of the device
    /// get an event, and the result is true.
    pub fn set_port(&mut self, device: usize, number: u32, up: bool) -> bool {
        let (state, event_type) = match up {
            true => (PortState::Active, kind::PORT_ACTIVE),
            false => (PortState::Down, kind::PORT_ERR),
        };
        let (state, physical) = state.codes();
        let Some(port) = self
            .devices
            .get_mut(device)
            .and_then(|device| device.ports.get_mut(number.checked_sub(1)? as usize))
            .filter(|port| port.state != state)
        else {
            return false;
        };
        (port.state, port.physical_state) = (state, physical);
        tracing::info!(device = %self.devices[device].name, port = number, up, "a port has changed");
        self.wire.touch();
        self.show_port(device);
        self.raise(device, AsyncRecord { element: number.into(), event_type, reserved: 0 });
        true
    }

    /// Shows the changed ports of a device to all programs.
    pub(crate) fn show_port(&mut self, device: usize) {
        let wire = &self.wire;
        self.board.show_ports(&self.devices[device], |entry| wire.code(entry));
        // Paths of other devices may also start or end at this port.
        self.announce_ports();
    }

    /// Lets all engines look at their routes again.
    pub(crate) fn announce_ports(&mut self) {
        for engine in self.contexts.values_mut().filter_map(|context| context.engine.as_mut()) {
            engine.push(Push { kind: push::PORTS, ..Push::default() }, Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Guid};
    use crate::devices::DeviceNews;

    #[test]
    fn the_gid_of_iwarp_follows_the_mac_address_of_the_interface_unless_it_is_configured() {
        const DEVICES: &str = "[[devices]]\nname = \"iw0\"\ntransport = \"iwarp\"\n[[devices.ports]]\ninterfaces = [\"one\"]\n\
                               [[devices]]\nname = \"iw1\"\ntransport = \"iwarp\"\n[[devices.ports]]\n\
                               interfaces = [\"two\"]\nguid = \"0000:0000:0000:0009\"\n\
                               [[devices]]\nname = \"roce0\"\n[[devices.ports]]\ninterfaces = [\"three\"]\n";
        let mut world = World::new(&Config::parse(DEVICES).expect("valid"), "test").expect("a world");
        let node_guid = world.devices[0].node_guid;
        let others = [1, 2].map(|device| world.devices[device].gid(1, 0));
        let link =
            |name: &str, last| Link { name: name.to_owned(), mac: Some([2, 0, 0, 0, 0, last]), ..Link::default() };
        for last in [1, 2] {
            let links = ["one", "two", "three"].map(|name| link(name, last));
            world.devices.take_news();
            assert!(world.follow_macs(&links));
            assert!(!world.follow_macs(&links), "nothing changes again");
            let news = world.devices.take_news();
            assert!(
                matches!(
                    news[..],
                    [DeviceNews::Event(0, AsyncRecord { element: 1, event_type: kind::GID_CHANGE, .. })]
                ),
                "{news:?}"
            );
            assert_eq!(world.devices[0].gid(1, 0).expect("a GID")[..7], [2, 0, 0, 0, 0, last, 0]);
        }
        assert!(!world.follow_macs(&[]), "the address of an interface that is gone stays");
        assert_eq!(world.devices[0].node_guid, node_guid, "the device stays the same");
        assert_eq!([1, 2].map(|device| world.devices[device].gid(1, 0)), others);
        assert_eq!(world.devices[1].ports[0].guid, Guid(9));
    }
}
