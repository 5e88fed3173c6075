//! The devices of an agent. Devices may come and go while the agent runs.
//!
//! A device keeps its index, which is the number of its node, as long as it exists. A device that
//! is removed stays in its slot as long as programs have it open, because their contexts count what
//! they hold there; no search finds it. Then another device can take the slot. The principal type
//! is [`Devices`].

use std::iter::Filter;
use std::ops::{Index, IndexMut, RangeInclusive};
use std::slice::{Iter, IterMut};

use abi::event::AsyncRecord;

use crate::config::{Config, DeviceConfig, Guid};
use crate::device::{Device, Port};
use crate::mad_numbers::MadNumbers;
use crate::subnet_settings::overlap;

/// What clients have not heard yet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DeviceNews {
    Added(usize),
    Removed(usize),
    Event(usize, AsyncRecord),
}

/// The devices, by index.
#[derive(Debug, Default)]
pub struct Devices {
    slots: Vec<Device>,
    /// The numbers of their ports in `umadN` and `issmN`.
    mads: MadNumbers,
    /// Where the agent serves; default GUIDs follow from it.
    place: String,
    /// The system image GUID of all devices; without it, each device has its own.
    system_guid: Option<Guid>,
    /// With a topology: its adapters. Other devices have no place in the fabric.
    adapters: Option<Vec<DeviceConfig>>,
    /// What clients of the devices have not heard yet.
    news: Vec<DeviceNews>,
    /// How many changes there were.
    changes: u64,
    /// Of each device, by index.
    versions: Vec<Version>,
    /// How many there were when a device came or went last.
    population: u64,
}

/// How many changes of devices there were when a device came, and when it changed last.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) came: u64,
    changed: u64,
}

impl Devices {
    /// The devices of an agent that serves `place` when it starts.
    pub fn configured(config: &Config, place: &str) -> Self {
        let adapters = config.topology.as_ref().and_then(|topology| crate::topology::adapters(topology).ok());
        let adapters = adapters.map(|adapters| adapters.filter_map(Result::ok).collect());
        let mut devices = Self { place: place.to_owned(), adapters, ..Self::default() };
        devices.slots = (0..).zip(&config.devices).map(|(index, config)| devices.make(index, config)).collect();
        devices.system_guid = config.system_guid.or(devices.slots.first().map(|device| device.node_guid));
        for (device, config) in devices.slots.iter_mut().zip(&config.devices) {
            if config.fabric.is_none() {
                device.system_guid = devices.system_guid.unwrap_or(device.node_guid);
            }
            devices.mads.add(device);
        }
        devices
    }

    /// A new device of this agent, which is not among the devices yet.
    pub(crate) fn make(&self, index: usize, config: &DeviceConfig) -> Device {
        let mut device = Device::new(index, config, &self.place);
        if config.fabric.is_none() {
            device.system_guid = self.system_guid.unwrap_or(device.node_guid);
        }
        device
    }

    /// What a new device is. In the fabric of a topology it takes the place of an adapter with its
    /// name, and has its ports.
    ///
    /// # Errors
    /// The topology has no such adapter.
    pub(crate) fn placed(&self, config: DeviceConfig) -> Result<DeviceConfig, String> {
        let Some(adapters) = &self.adapters else { return Ok(config) };
        let name = &config.name;
        match adapters.iter().find(|adapter| adapter.name == *name) {
            Some(adapter) => Ok(DeviceConfig {
                ports: adapter.ports.clone(),
                node_guid: adapter.node_guid,
                part_id: adapter.part_id,
                fabric: adapter.fabric,
                ..config
            }),
            None => Err(format!(
                "the topology has no adapter {name:?}, so the device would have no cable: add it to the file with its \
                 links, and start the agent again; `softhca subnet` lists the nodes"
            )),
        }
    }

    /// The devices that exist.
    pub fn iter(&self) -> Filter<Iter<'_, Device>, fn(&&Device) -> bool> {
        self.slots.iter().filter(|device| !device.is_removed)
    }

    /// The devices that exist, to change them.
    pub fn iter_mut(&mut self) -> Filter<IterMut<'_, Device>, fn(&&mut Device) -> bool> {
        (0..self.slots.len()).for_each(|index| self.count_change(index));
        self.slots.iter_mut().filter(|device| !device.is_removed)
    }

    /// The device at an index, if it exists.
    pub fn get(&self, index: usize) -> Option<&Device> {
        self.slots.get(index).filter(|device| !device.is_removed)
    }

    /// The first device at this index or after it.
    pub fn from(&self, index: usize) -> Option<&Device> {
        self.slots.get(index..)?.iter().find(|device| !device.is_removed)
    }

    /// The device at an index, if it exists, to change it.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut Device> {
        self.count_change(index);
        self.slots.get_mut(index).filter(|device| !device.is_removed)
    }

    /// The device at an index, to change what no file and no program shows: its own counts.
    pub(crate) fn uncounted(&mut self, index: usize) -> &mut Device {
        &mut self.slots[index]
    }

    fn count_change(&mut self, index: usize) {
        self.changes += 1;
        if index >= self.versions.len() {
            self.versions.resize(index + 1, Version::default());
        }
        self.versions[index].changed = self.changes;
    }

    /// Differs whenever a device may have changed.
    pub(crate) fn version(&self, index: usize) -> Version {
        self.versions.get(index).copied().unwrap_or_default()
    }

    /// A number that differs whenever a device has come or gone.
    pub(crate) fn population(&self) -> u64 {
        self.population
    }

    /// The device with this name.
    pub fn named(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name == name)
    }

    /// The first port for which `is` holds: the index of its device, and its number.
    pub(crate) fn port_with(&self, is: impl Fn(&Port) -> bool) -> Option<(usize, u8)> {
        self.iter().find_map(|device| Some((device.index, device.ports.iter().position(&is)? as u8 + 1)))
    }

    /// The device and the port, other than `except`, that have one of these LIDs by their settings.
    pub fn with_set_lids(&self, lids: &RangeInclusive<u16>, except: Option<(usize, u32)>) -> Option<(&Device, u32)> {
        let ports =
            self.iter().flat_map(|device| (1..).zip(&device.ports).map(move |(number, port)| (device, number, port)));
        let mut others = ports.filter(|(device, number, _)| Some((device.index, *number)) != except);
        let found = others.find(|(_, _, port)| port.subnet.lids().is_some_and(|of| overlap(&of, lids)));
        found.map(|(device, number, _)| (device, number))
    }

    /// The number of a port in `umadN` and `issmN`, if its device exists.
    pub fn mad_number(&self, device: usize, port: u32) -> Option<u32> {
        self.mads.number(device, port)
    }

    /// The port with this number in `umadN` and `issmN`: the index of its device, and its own
    /// number there.
    pub fn port_of_mad(&self, number: u32) -> Option<(usize, u32)> {
        self.mads.port(number)
    }

    /// How many slots there are. Every index is smaller.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Adds a device at its index: that of a removed device, or the next one. Clients hear of it.
    pub(crate) fn put(&mut self, device: Device) {
        self.news.push(DeviceNews::Added(device.index));
        self.mads.add(&device);
        self.count_change(device.index);
        self.versions[device.index].came = self.changes;
        self.population = self.changes;
        match self.slots.get_mut(device.index) {
            Some(slot) => *slot = device,
            None => self.slots.push(device),
        }
    }

    /// Marks a device as removed. Clients hear of it.
    pub(crate) fn remove(&mut self, index: usize) {
        self.news.push(DeviceNews::Removed(index));
        self.mads.remove(index);
        self.count_change(index);
        self.population = self.changes;
        self.slots[index].remove();
    }

    /// Keeps an event for the clients of the devices.
    pub(crate) fn note(&mut self, index: usize, event: AsyncRecord) {
        self.news.push(DeviceNews::Event(index, event));
    }

    /// What clients have not heard yet.
    pub(crate) fn news(&self) -> &[DeviceNews] {
        &self.news
    }

    /// Takes what clients have not heard yet.
    pub(crate) fn take_news(&mut self) -> Vec<DeviceNews> {
        std::mem::take(&mut self.news)
    }
}

impl FromIterator<Device> for Devices {
    fn from_iter<T: IntoIterator<Item = Device>>(devices: T) -> Self {
        let mut all = Self { slots: devices.into_iter().collect(), ..Self::default() };
        all.slots.iter().for_each(|device| all.mads.add(device));
        all
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = Filter<Iter<'a, Device>, fn(&&Device) -> bool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Devices {
    type Item = &'a mut Device;
    type IntoIter = Filter<IterMut<'a, Device>, fn(&&mut Device) -> bool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// The device of a context, which may be removed.
impl Index<usize> for Devices {
    type Output = Device;

    fn index(&self, index: usize) -> &Device {
        &self.slots[index]
    }
}

impl IndexMut<usize> for Devices {
    fn index_mut(&mut self, index: usize) -> &mut Device {
        self.count_change(index);
        &mut self.slots[index]
    }
}
