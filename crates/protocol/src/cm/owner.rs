//! Whose a datagram is: a user of [`Cm`] may give each id an owner, a number that means nothing here, and hears for whom a datagram is and
//! who has sent one. What is left of an id that was destroyed still has its owner. Adds to [`Cm`].

use super::entry::Key;
use super::{Cm, Error, Id, Mad, Origin};
use wire::cm::Message;

impl Cm {
    /// Whose an id is from now on; 0 is nobody.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn set_owner(&mut self, id: Id, owner: u32) -> Result<(), Error> {
        let index = self.table.resolve(id)?;
        self.table.entry_mut(index).owner = owner;
        Ok(())
    }

    /// For whom a datagram is that has come: the owner of the id that it names, or that it has become. 0: for nobody.
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
        // Another host that guesses a number has nothing to say to its owner.
        entry.filter(|entry| entry.is_from(origin)).map_or(0, |entry| entry.owner)
    }
}
