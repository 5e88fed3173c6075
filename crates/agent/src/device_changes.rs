//! Devices that are added to a running agent, and removed from it.
//!
//! For programs a removal is as with a kernel: IBV_EVENT_DEVICE_FATAL, and
//! RDMA_CM_EVENT_DEVICE_REMOVAL for ids of the connection manager. What the device did for them
//! fails, and its objects can still be destroyed. The program's connections end; their peers see
//! that they are gone. Adds to [`World`].

use abi::event::{AsyncRecord, kind};
use abi::private::{Push, push};
use serde_json::{Value, json};

use crate::asker::Asker;
use crate::config::{DeviceConfig, MAX_DEVICES, parse_devices};
use crate::device::Device;
use crate::ids::ContextId;
use crate::lids;
use crate::world::World;

/// Maximum number of lanes of removed devices that end at once. Separate pieces of work end the
/// rest.
const LANES_AT_ONCE: usize = 256;

impl World {
    /// Adds the devices of a configuration that has only `[[devices]]`: all of them, or none.
    /// Returns their names.
    ///
    /// # Errors
    /// The text is no such configuration, or one of the devices cannot be beside those that exist,
    /// or has no place in the topology.
    pub fn add_devices(&mut self, text: &str) -> Result<Vec<String>, String> {
        let configs = parse_devices(text).map_err(|error| error.to_string())?;
        let configs: Vec<_> =
            configs.into_iter().map(|config| self.devices.placed(config)).collect::<Result<_, _>>()?;
        let free = self.free_slots();
        if configs.len() > free.len() {
            let (all, there) = (configs.len(), self.devices.iter().count());
            let text = format!("there are {there} devices, and {MAX_DEVICES} are possible: {all} more have no room");
            return Err(if there + free.len() < MAX_DEVICES {
                format!("{text} until programs have closed the devices that were removed")
            } else {
                text
            });
        }
        let added: Vec<Device> =
            free.iter().zip(&configs).map(|(index, config)| self.devices.make(*index, config)).collect();
        for (device, config) in added.iter().zip(&configs) {
            self.check_beside(device, config)?;
        }
        for device in added {
            tracing::info!(device = %device.name, "a device is added");
            self.devices.put(device);
        }
        self.board.show_slots(self.devices.slots());
        for device in &self.devices {
            self.board.show_ports(device, |entry| self.wire.code(entry));
        }
        let host = std::mem::take(&mut self.host);
        self.show_addresses_to_new_ports(&host);
        self.follow_addresses(&host);
        self.wire.touch();
        Ok(configs.into_iter().map(|config| config.name).collect())
    }

    /// The indices that new devices can have.
    fn free_slots(&self) -> Vec<usize> {
        let is_open = |index| self.contexts.values().any(|context| context.device == index);
        (0..MAX_DEVICES).filter(|index| self.devices.get(*index).is_none() && !is_open(*index)).collect()
    }

    /// Checks that a new device differs from those that exist.
    fn check_beside(&self, device: &Device, config: &DeviceConfig) -> Result<(), String> {
        let name = &device.name;
        if self.devices.named(name).is_some() {
            return Err(format!("there is a device {name:?} already; `softhca devices` lists them"));
        }
        if let Some(other) = self.devices.iter().find(|other| other.node_guid == device.node_guid) {
            return Err(format!("device {name:?}: {:?} has its `node_guid`", other.name));
        }
        for (number, port) in (1..).zip(&config.ports) {
            if let Some((other, at)) = port.subnet.lids().and_then(|lids| self.devices.with_set_lids(&lids, None)) {
                return Err(format!(
                    "device {name:?}: port {number}: `lid`: port {at} of {:?} has this LID",
                    other.name
                ));
            }
        }
        Ok(())
    }

    /// Removes the device with this name from the agent and from all programs.
    ///
    /// # Errors
    /// There is no such device.
    pub fn remove_device(&mut self, name: &str) -> Result<(), String> {
        let Some(index) = self.devices.named(name).map(|device| device.index) else {
            return Err(format!("there is no device {name:?}; `softhca devices` lists them"));
        };
        self.clear_faults_of(index);
        let opened = self.contexts.values().filter(|context| context.device == index).map(|context| context.id);
        let opened: Vec<ContextId> = opened.collect();
        tracing::info!(device = %name, contexts = opened.len(), "a device is removed");
        let fatal = AsyncRecord { element: 0, event_type: kind::DEVICE_FATAL, reserved: 0 };
        for id in &opened {
            // An engine raises the event itself.
            if let Some(context) = self.contexts.get_mut(id).filter(|context| context.engine.is_none())
                && let Some(events) = &mut context.events
            {
                events.push(fatal);
            }
        }
        self.take_from(&opened);
        self.devices.remove(index);
        self.board.show_ports(&self.devices[index], |_| 0);
        for (other, event) in lids::assign(&mut self.devices) {
            self.show_port(other);
            self.raise(other, event);
        }
        self.wire.touch();
        Ok(())
    }

    /// Takes the device from the engines of these contexts. Returns from how many.
    pub(crate) fn take_from(&mut self, contexts: &[ContextId]) -> u64 {
        let (mut removed, mut left) = (0, LANES_AT_ONCE);
        for id in contexts {
            if let Some(engine) = self.contexts.get_mut(id).and_then(|context| context.engine.as_mut()) {
                engine.push(Push { kind: push::REMOVED, ..Push::default() }, Vec::new());
                removed += 1;
            }
            // The engines at the other ends must not get anything from it any more.
            left -= self.end_some_lanes(*id, left);
            if self.lanes.neighbours(*id).next().is_some() {
                self.removed.push(*id);
            }
        }
        removed
    }
}

/// Answers a `device` request: adds or removes devices. The second value says whether it did.
pub(crate) fn answer(world: &mut World, asker: Asker, question: &Value) -> (Value, bool) {
    if asker != Asker::Root {
        return (json!({"error": "only the agent's own user and root may add and remove devices"}), false);
    }
    let done = match (question["add"].as_str(), question["remove"].as_str()) {
        (Some(config), None) => world.add_devices(config).map(|names| json!({"added": names})),
        (None, Some(name)) => world.remove_device(name).map(|()| json!({"removed": [name]})),
        _ => Err("a `device` request has either `add`, a configuration, or `remove`, a name".to_owned()),
    };
    match done {
        Ok(done) => (done, true),
        Err(why) => (json!({ "error": why }), false),
    }
}
