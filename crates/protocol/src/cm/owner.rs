//! The owners of datagrams. A user of [`Cm`] may give each id an owner, a number without meaning
//! here. [`Cm`] then tells the owner of each datagram that arrives or is sent. A destroyed id keeps
//! its owner until it has ended. Owners decide nothing here. Adds to [`Cm`].

use super::entry::Key;
use super::error::Error;
use super::origin::Origin;
use super::{Cm, Id, Mad};
use wire::cm::Message;

impl Cm {
    /// Sets the owner of an id; 0 is no owner.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_owner(&mut self, id: Id, owner: u32) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        self.table.entry_mut(index).owner = owner;
        Ok(())
    }

    /// The owner of a datagram that has arrived: the owner of the id that the datagram names or has
    /// created. 0: no owner.
    #[must_use]
    pub fn addressee(&self, origin: &Origin, mad: &Mad) -> u32 {
        let Ok((_, message)) = Message::parse(mad) else { return 0 };
        let key = |key: Key| self.table.find_key(&key);
        let index = match message {
            Message::Req(req) => key(Key::number(req.local_comm_id, req.local_ca_guid, origin.source)),
            Message::SidrReq(req) => key(Key::question(req.request_id, origin.source)),
            Message::SidrRep(rep) => self.table.find(rep.request_id),
            Message::Mra(mra) => self.table.find(mra.remote_comm_id),
            Message::Rej(rej) => self.rejected_by_adapter(origin, &rej).or_else(|| self.table.find(rej.remote_comm_id)),
            Message::Rep(rep) => self.table.find(rep.remote_comm_id),
            Message::Rtu(rtu) => self.table.find(rtu.remote_comm_id),
            Message::Dreq(dreq) => self.table.find(dreq.remote_comm_id),
            Message::Drep(drep) => self.table.find(drep.remote_comm_id),
            Message::Lap(lap) => self.table.find(lap.remote_comm_id),
            Message::Apr(apr) => self.table.find(apr.remote_comm_id),
        };
        let entry = index.map(|index| self.table.entry(index));
        // A datagram from another host that guessed the number does not belong to the owner.
        entry.filter(|entry| entry.is_from(origin)).map_or(0, |entry| entry.owner)
    }
}
