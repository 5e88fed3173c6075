//! Ids whose device is removed from the agent, or by a rule (`softhca fault add remove`) from some
//! programs. As with a kernel, the ids get an event, and their connections end. The protocol tells
//! their peers. Adds to [`Manager`].

use abi::ucma::connection::{UdParam, event};

use super::Manager;
use super::id::{Id, Stage};
use crate::device_clients::DeviceClient;
use crate::world::World;

impl Manager {
    /// Tells ids whose devices were removed since the last call.
    pub(crate) fn follow_removals(&mut self, world: &World) {
        let removals = world.faults.take_removals();
        if removals.is_empty() {
            return;
        }
        let mut names: Vec<u32> = Vec::new();
        for (name, id) in self.ids.iter() {
            let (Some(at), Some(owner)) = (id.attachment, self.channels.get(&id.channel)) else { continue };
            if removals.iter().any(|removal| removal.touches(&owner.channel.peer, at.device)) {
                names.push(name);
            }
        }
        for name in names {
            self.lose_device(name, "a rule of faults on demand has removed the device");
        }
        self.settle(world);
    }

    fn lose_device(&mut self, name: u32, why: &str) {
        let Some(id) = self.ids.get_mut(name) else { return };
        (id.stage, id.attachment) = (Stage::Over, None);
        let connection = id.connection.take();
        if let Some(service) = id.service.take() {
            self.ports.release(service, name);
        }
        self.lookups.pending.remove(&name);
        self.close_end(name);
        if let Some(connection) = connection {
            self.connections.remove(&connection);
            let now = self.now();
            // The protocol sends the rest to the peer; the id no longer follows it.
            if let Err(error) = self.core.destroy(now, connection) {
                tracing::debug!(%error, "an id's connection was gone before its device");
            }
        }
        self.tell(name, event::DEVICE_REMOVAL, 0, UdParam::default(), why.to_owned());
    }
}

impl DeviceClient for Manager {
    fn add(&mut self, world: &World, _device: usize) {
        self.follow_addresses(world);
    }

    fn remove(&mut self, world: &World, device: usize) {
        let is_there = |id: &Id| id.attachment.is_some_and(|at| at.device == device);
        let names: Vec<u32> = self.ids.iter().filter(|(_, id)| is_there(id)).map(|(name, _)| name).collect();
        for name in names {
            self.lose_device(name, "the device was removed from the agent");
        }
        self.follow_addresses(world);
    }
}
