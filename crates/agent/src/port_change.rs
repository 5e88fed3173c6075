//! Changes of a port while programs run, as a subnet manager makes them: what programs can query
//! changes at once, and their contexts get the events. `softhca port` sends them (`request` `port`
//! of the admin node). Adds to [`World`]. The principal type is [`PortChange`].

use std::fmt;

use abi::device::port_state;
use abi::event::{AsyncRecord, kind};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::asker::Asker;
use crate::config::{Guid, PortState, mtu_code};
use crate::lids;
use crate::pkeys::{BadPkeys, PkeyTable};
use crate::rate::Rate;
use crate::show;
use crate::subnet_settings::{BadSettings, SubnetSettings};
use crate::world::World;

/// New values of a port; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PortChange {
    /// Up or down. A port that was taken down stays down when its interfaces change.
    pub state: Option<PortState>,
    /// What only InfiniBand ports have.
    pub subnet: SubnetSettings,
    /// The upper half of GID index 0.
    pub subnet_prefix: Option<Guid>,
    /// The alias GUIDs, from index 1; 0 is an empty entry. Only for ports in a topology.
    pub guids: Option<Vec<Guid>>,
    /// The P_Keys, from index 0; 0 is an empty entry.
    pub pkeys: Option<Vec<u16>>,
    /// Width and speed of the link.
    pub rate: Option<Rate>,
    /// The largest active MTU in bytes.
    pub mtu: Option<u32>,
    /// Clients shall register again with subnet administration.
    pub reregister: bool,
}

/// Why a change is refused. Then nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BadChange {
    /// There is no such port.
    NoPort,
    /// A value of the subnet manager.
    Subnet(BadSettings),
    /// Another port has this LID, or one of these LIDs.
    TakenLid {
        /// Its device.
        device: String,
        /// Its number.
        port: u32,
    },
    /// The P_Keys.
    Pkeys(BadPkeys),
    /// The MTU.
    Mtu(u32),
    /// Ethernet ports do not register with subnet administration.
    NoAdministration,
}

impl fmt::Display for BadChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPort => write!(f, "there is no such port; `softhca devices` lists the ports"),
            Self::Subnet(error) => error.fmt(f),
            Self::TakenLid { device, port } => write!(f, "`lid`: port {port} of {device} has this LID"),
            Self::Pkeys(error) => write!(f, "`pkeys`: {error}"),
            Self::Mtu(bytes) => write!(f, "`mtu` is {bytes}; it is one of 256, 512, 1024, 2048, 4096"),
            Self::NoAdministration => write!(f, "`reregister`: an Ethernet port has no subnet administration"),
        }
    }
}

/// What programs can see of a port, and learn by events.
#[derive(PartialEq, Eq)]
struct Seen {
    state: u8,
    gids: Vec<(usize, [u8; 16])>,
    sm: (u16, u8),
    pkeys: Vec<u16>,
}

impl World {
    /// Changes a port. Returns the events that the contexts of its device got. Other ports may get
    /// other LIDs; then their contexts get events, too.
    ///
    /// # Errors
    /// A value is not possible. Then nothing has changed.
    pub fn change_port(&mut self, device: usize, number: u32, change: &PortChange) -> Result<Vec<u32>, BadChange> {
        self.check_change(device, number, change)?;
        let before = self.seen(device, number);
        self.apply_change(device, number, change);
        let moved = lids::assign(&mut self.devices);
        let is_own = |(at, event): &(usize, AsyncRecord)| (*at, event.element) == (device, number.into());
        let after = self.seen(device, number);
        let lid_changed = moved.iter().any(|event| is_own(event) && event.1.event_type == kind::LID_CHANGE);
        let mut events: Vec<u32> = Vec::new();
        if let (Some(before), Some(after)) = (before, after) {
            let is_active = |seen: &Seen| seen.state == port_state::ACTIVE;
            let state = if is_active(&after) { kind::PORT_ACTIVE } else { kind::PORT_ERR };
            let found = [
                (is_active(&before) != is_active(&after), state),
                (before.gids != after.gids, kind::GID_CHANGE),
                (lid_changed, kind::LID_CHANGE),
                (before.sm != after.sm, kind::SM_CHANGE),
                (before.pkeys != after.pkeys, kind::PKEY_CHANGE),
                (change.reregister, kind::CLIENT_REREGISTER),
            ];
            events.extend(found.into_iter().filter(|(is_so, _)| *is_so).map(|(_, event)| event));
        }
        tracing::info!(device = %self.devices[device].name, port = number, ?change, "a port is changed");
        self.wire.touch();
        self.show_port(device);
        if events.contains(&kind::PKEY_CHANGE) {
            // Engines name the P_Key of packets to groups by its index.
            self.board.bump_mcast();
        }
        for event_type in &events {
            self.raise(device, AsyncRecord { element: number.into(), event_type: *event_type, reserved: 0 });
        }
        for (other, event) in moved.into_iter().filter(|event| !is_own(event)) {
            self.show_port(other);
            self.raise(other, event);
        }
        Ok(events)
    }

    fn check_change(&self, device: usize, number: u32, change: &PortChange) -> Result<(), BadChange> {
        let port = self.devices.get(device).and_then(|device| device.port(number).ok()).ok_or(BadChange::NoPort)?;
        let subnet = change.subnet.or(port.subnet);
        subnet.check(port.is_infiniband()).map_err(BadChange::Subnet)?;
        // A subnet manager that gives ports new LIDs may name one twice for a moment.
        let lids = subnet.lids().filter(|_| !port.managed);
        let others = lids.and_then(|lids| self.devices.with_set_lids(&lids, Some((device, number))));
        if let Some((other, port)) = others {
            return Err(BadChange::TakenLid { device: other.name.clone(), port });
        }
        if let Some(pkeys) = &change.pkeys {
            PkeyTable::check_entries(pkeys, port.pkeys.length()).map_err(BadChange::Pkeys)?;
        }
        if change.reregister && !port.is_infiniband() {
            return Err(BadChange::NoAdministration);
        }
        match change.mtu {
            Some(bytes) if mtu_code(bytes).is_none() => Err(BadChange::Mtu(bytes)),
            _ => Ok(()),
        }
    }

    /// Applies a change that is possible.
    fn apply_change(&mut self, device: usize, number: u32, change: &PortChange) {
        let Some(port) = self.devices[device].ports.get_mut(number as usize - 1) else { return };
        port.subnet = change.subnet.or(port.subnet);
        if let Some(state) = change.state {
            port.set_state(state);
        }
        if let Some(prefix) = change.subnet_prefix {
            port.gids.set_prefix(prefix, port.guid);
        }
        if let Some(guids) = change.guids.as_ref().filter(|_| port.managed) {
            let first = port.gids.entry(0).map_or(0, |entry| u128::from_be_bytes(entry.gid));
            port.gids.set_aliases(Guid((first >> 64) as u64), guids);
        }
        if let Some(pkeys) = &change.pkeys {
            // It was checked.
            let _ = port.pkeys.set(pkeys);
        }
        if let Some(rate) = change.rate {
            (port.rate, port.keeps_rate) = (rate, true);
        }
        if let Some(code) = change.mtu.and_then(mtu_code) {
            port.set_mtu(code);
        }
    }

    fn seen(&self, device: usize, number: u32) -> Option<Seen> {
        let port = self.devices.get(device)?.port(number).ok()?;
        Some(Seen {
            state: port.state,
            gids: port.gids.iter().map(|(index, entry)| (index, entry.gid)).collect(),
            sm: (port.sm_lid(), port.subnet.sm_sl()),
            pkeys: port.pkeys.entries().to_vec(),
        })
    }
}

/// Answers a `port` request: changes the port if there is something to change, and shows it. The
/// second value says whether ports have changed.
pub(crate) fn answer(world: &mut World, asker: Asker, question: &Value) -> (Value, bool) {
    match carry_out(world, asker, question) {
        Ok(done) => done,
        Err(why) => (json!({ "error": why }), false),
    }
}

fn carry_out(world: &mut World, asker: Asker, question: &Value) -> Result<(Value, bool), String> {
    let change = PortChange::deserialize(&question["set"]).map_err(|error| format!("`set`: {error}"))?;
    let changes = change != PortChange::default();
    if changes && asker != Asker::Root {
        return Err("only the agent's own user and root may change a port".into());
    }
    let number = question["port"].as_u64().map_or(Some(1), |number| u32::try_from(number).ok()).unwrap_or(0);
    let name = question["device"].as_str();
    let found = world.devices.iter().find(|device| name.is_none_or(|name| device.name == name));
    let device = found.ok_or_else(|| BadChange::NoPort.to_string())?.index;
    world.devices[device].port(number).map_err(|refusal| refusal.reason.into_owned())?;
    let place = format!("port {number} of {}", world.devices[device].name);
    let events = match changes {
        true => world.change_port(device, number, &change).map_err(|error| format!("{place}: {error}"))?,
        false => Vec::new(),
    };
    let names: Vec<_> = events.iter().map(|event| kind::name(*event)).collect();
    let answer = json!({
        "device": world.devices[device].name,
        "port": show::port(world, &world.devices[device], number),
        "events": names,
    });
    Ok((answer, changes))
}
