//! Ids whose device a rule removes (`softhca fault add remove`). As with a kernel, the ids get an
//! event, and their connections end. The protocol tells their peers. Adds to [`Manager`].

use abi::ucma::connection::{UdParam, event};

use super::Manager;
use super::id::Stage;
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
            self.lose_device(name);
        }
        self.settle(world);
    }

    fn lose_device(&mut self, name: u32) {
        let Some(id) = self.ids.get_mut(name) else { return };
        (id.stage, id.attachment) = (Stage::Over, None);
        let connection = id.connection.take();
        if let Some(service) = id.service.take() {
            self.ports.release(service, name);
        }
        self.lookups.pending.remove(&name);
        if let Some(connection) = connection {
            self.connections.remove(&connection);
            let now = self.now();
            // The protocol sends the rest to the peer; the id no longer follows it.
            if let Err(error) = self.core.destroy(now, connection) {
                tracing::debug!(%error, "an id's connection was gone before its device");
            }
        }
        let text = "the device was taken away by a rule of faults on demand".to_owned();
        self.tell(name, event::DEVICE_REMOVAL, 0, UdParam::default(), text);
    }
}
