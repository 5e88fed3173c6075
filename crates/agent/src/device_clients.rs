//! Parts of the agent that work on every device: clients of the devices, as modules of a kernel are
//! (`ib_register_client`).
//!
//! A client hears of each device once when it registers or when the device is added, of its
//! asynchronous events, and of its removal. It keeps its own data about a device in [`PerDevice`].
//! The world collects the news ([`World::add_devices`], [`World::raise`]); [`World::tell_clients`]
//! hands them to the clients between two pieces of work. The principal type is [`DeviceClient`].

use std::collections::BTreeMap;

use abi::event::AsyncRecord;

use crate::devices::DeviceNews;
use crate::world::World;

/// A client of the devices.
pub trait DeviceClient {
    /// The device exists.
    fn add(&mut self, world: &World, device: usize);

    /// The device is removed: no program reaches it any more.
    fn remove(&mut self, world: &World, device: usize);

    /// The contexts of the device got this event.
    fn event(&mut self, _world: &World, _device: usize, _event: AsyncRecord) {}
}

/// What a client knows of each device.
#[derive(Debug)]
pub struct PerDevice<T>(BTreeMap<usize, T>);

impl<T> Default for PerDevice<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> PerDevice<T> {
    /// Keeps `data` about a device, and returns what was there.
    pub fn set(&mut self, device: usize, data: T) -> Option<T> {
        self.0.insert(device, data)
    }

    /// What is known of a device.
    pub fn get(&self, device: usize) -> Option<&T> {
        self.0.get(&device)
    }

    /// What is known of a device, to change it.
    pub fn get_mut(&mut self, device: usize) -> Option<&mut T> {
        self.0.get_mut(&device)
    }

    /// What is known of all devices.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// What is known of all devices, to change it.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// Forgets a device, and returns what was known.
    pub fn take(&mut self, device: usize) -> Option<T> {
        self.0.remove(&device)
    }
}

impl World {
    /// Tells a new client of the devices that exist. Later it hears the news.
    pub fn register(&self, client: &mut dyn DeviceClient) {
        // A device whose news have not been told yet is told as news.
        let waits = |index: &usize| {
            self.devices.news().iter().any(|news| matches!(news, DeviceNews::Added(new) if new == index))
        };
        for device in self.devices.iter().filter(|device| !waits(&device.index)) {
            client.add(self, device.index);
        }
    }

    /// Tells the clients what has happened to the devices since the last call, in order.
    pub fn tell_clients(&mut self, clients: &mut [&mut dyn DeviceClient]) {
        for news in self.devices.take_news() {
            for client in &mut *clients {
                match news {
                    DeviceNews::Added(device) => client.add(self, device),
                    DeviceNews::Removed(device) => client.remove(self, device),
                    DeviceNews::Event(device, event) => client.event(self, device, event),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use abi::event::kind;

    use super::*;
    use crate::config::Config;

    /// A client that counts the events of each device.
    #[derive(Default)]
    struct Counter {
        events: PerDevice<Vec<u32>>,
        gone: Vec<(usize, Vec<u32>)>,
    }

    impl DeviceClient for Counter {
        fn add(&mut self, world: &World, device: usize) {
            assert!(world.devices.get(device).is_some(), "it exists");
            assert!(self.events.set(device, Vec::new()).is_none(), "it is told once");
        }

        fn remove(&mut self, _world: &World, device: usize) {
            self.gone.push((device, self.events.take(device).expect("it was told")));
        }

        fn event(&mut self, _world: &World, device: usize, event: AsyncRecord) {
            self.events.get_mut(device).expect("it was told").push(event.event_type);
        }
    }

    #[test]
    fn a_client_hears_of_each_device_and_event_once_and_in_order() {
        let config = Config::parse("[[devices]]\nname = \"a\"\n[[devices]]\nname = \"b\"").expect("valid");
        let mut world = World::new(&config, "test").expect("a world");
        let (mut early, mut late) = (Counter::default(), Counter::default());
        world.register(&mut early);
        assert!(early.events.get(0).is_some() && early.events.get(1).is_some());
        world.set_port(1, 1, false);
        assert_eq!(world.add_devices("[[devices]]\nname = \"c\""), Ok(vec!["c".to_owned()]));
        world.register(&mut late);
        assert!(late.events.get(2).is_none(), "it comes as news");
        world.set_port(2, 1, false);
        world.remove_device("b").expect("it is there");
        world.tell_clients(&mut [&mut early, &mut late]);
        assert_eq!(early.events.get(2), Some(&vec![kind::PORT_ERR]));
        assert_eq!(late.events.get(2), early.events.get(2));
        assert_eq!(early.gone, [(1, vec![kind::PORT_ERR])]);
        world.tell_clients(&mut [&mut early]);
        assert_eq!(early.gone.len(), 1);
        // The slot is free again.
        assert_eq!(world.add_devices("[[devices]]\nname = \"d\""), Ok(vec!["d".to_owned()]));
        world.tell_clients(&mut [&mut early]);
        assert_eq!((world.devices[1].name.as_str(), early.events.get(1)), ("d", Some(&Vec::new())));
    }
}
