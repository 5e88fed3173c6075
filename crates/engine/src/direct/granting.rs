//! How grants are made: the initiator asks through the agent, the target checks and answers, and
//! the initiator maps what it got. Adds to [`Engine`].

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use abi::command::number as command;
use abi::mr::access as right;
use abi::private::{DirectAsk, DirectGrant, LaneOut};
use protocol::Service;
use rustix::process::DumpableBehavior;
use shm::Region;
use shm::share::Share;

use super::{ASKS, Ask, MAPPED, REMOTE_GRANTS, RIGHTS, RemoteGrant, backing};
use crate::engine::Engine;
use crate::extent::{Extent, MemoryKind};
use crate::grant_table::{GrantLine, GrantTable, LEN, LINE, Terms, field};
use crate::qp::{Inner, Qp, Route};
use crate::request;
use crate::special::Special;

/// The initiator's side: how it gets a grant.
impl Engine {
    pub(super) fn ask_for_way(&self, ask: Ask) {
        let mut asks = self.direct.asks.lock();
        if asks.len() < ASKS && !asks.contains(&ask) && Arc::strong_count(&self.direct.mapped) <= MAPPED {
            asks.push(ask);
            drop(asks);
            self.waker.kick();
        }
    }

    /// Asks for grants. The answers come as pushes, or not at all.
    pub(crate) fn ask_agent(&self) {
        // Not in the head of the loop, where the lock would be held until the loop ends.
        let asks = std::mem::take(&mut *self.direct.asks.lock());
        for Ask { engine, qpn, dest, key } in asks {
            let body = DirectAsk { engine, qpn, dest, key };
            let _ = self.tell(&request::private(command::DIRECT_ASK, &body, 0));
        }
    }

    /// A grant has come: `told` identifies the granter, our QP, the line and the number. All of it
    /// is a claim.
    pub(crate) fn take_way(&self, told: &LaneOut, fds: Vec<OwnedFd>) {
        if self.direct.on
            && let Err(why) = self.try_take_way(told, fds)
        {
            tracing::debug!("a grant of engine {} cannot be used: {why}", told.engine);
        }
    }

    fn try_take_way(&self, told: &LaneOut, fds: Vec<OwnedFd>) -> Result<(), String> {
        let [book, file] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| "it has not two descriptors")?;
        let (engine, line, number) = (told.engine, told.side as usize, told.lane_index);
        let grant_table = self.grant_table_of(engine, &book).map_err(|error| error.to_string())?;
        if number == 0 || line == 0 || line >= LEN / LINE {
            return Err(format!("there is no line {line}"));
        }
        let terms: Terms = grant_table.read(line * LINE + field::TERMS);
        if grant_table.word(line * LINE + field::NUMBER).load(Ordering::Acquire) != number || terms.asker != told.lane {
            return Err("it holds no more".into());
        }
        let writable = terms.rights & (right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0;
        let len = usize::try_from(terms.len).map_err(|error| error.to_string())?;
        if !backing::is_tmpfs(&file) {
            return Err("its file may have the one wait who touches it".into());
        }
        let share = Share::map(file.as_fd(), terms.offset, len, writable).map_err(|error| error.to_string())?;
        let qp = self.qps.find(terms.asker).ok_or("its QP is gone")?;
        let grant = RemoteGrant {
            engine,
            dest: terms.qpn,
            key: terms.key,
            rights: terms.rights & RIGHTS,
            addr: terms.addr,
            grant_table,
            line,
            number,
            share,
            _counted: Arc::clone(&self.direct.mapped),
        };
        let mut inner = qp.lock();
        let fits = matches!(&inner.link.route, Route::Lane(lane) if lane.peer == engine);
        if !fits || inner.is_dead() || inner.attributes.dest_qp_num != terms.qpn {
            return Err("its QP has another peer".into());
        }
        // Removes revoked grants, which unmaps their memory.
        inner.direct.remote_grants.retain(|old| old.key != grant.key && old.is_open());
        if inner.direct.remote_grants.len() >= REMOTE_GRANTS {
            inner.direct.remote_grants.remove(0);
        }
        inner.direct.remote_grants.push(grant);
        inner.direct.pause = 0;
        Ok(())
    }

    fn grant_table_of(&self, engine: u32, fd: &OwnedFd) -> std::io::Result<Arc<Region>> {
        let mut peers = self.direct.peers.lock();
        peers.retain(|_, grant_table| grant_table.strong_count() > 0);
        if let Some(known) = peers.get(&engine).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let grant_table = Arc::new(Region::map(fd.as_fd(), LEN)?);
        peers.insert(engine, Arc::downgrade(&grant_table));
        Ok(grant_table)
    }
}

/// The target's side.
impl Engine {
    /// A peer asks for a grant: `told` names its engine and QP, our QP, and the key. Without a
    /// grant, the peer uses the lane.
    pub(crate) fn grant(&self, told: &LaneOut) {
        let (to, asker, qpn, key) = (told.engine, told.lane, told.side, told.lane_index);
        if let Some((grant, file)) = self.try_grant(to, asker, qpn, key)
            && let Some(grant_table) = self.keys.grants.get()
        {
            let request = request::private(command::DIRECT_GRANT, &grant, 0);
            // If the peer does not get the answer, the line becomes free when the QP or the region
            // ends.
            let _ = self.call_with(&request, &[grant_table.file.as_fd(), file.as_fd()]);
        }
    }

    fn try_grant(&self, to: u32, asker: u32, qpn: u32, key: u32) -> Option<(DirectGrant, OwnedFd)> {
        if !self.direct.on {
            return None;
        }
        let qp = self.qps.find(qpn)?;
        let extent = self.keys.extents.find(key >> 8).filter(|extent| extent.key == key)?;
        // A process that is not dumpable must not be inspected by other programs of its user, so it
        // gives out no files.
        rustix::process::dumpable_behavior().ok().filter(|what| *what == DumpableBehavior::Dumpable)?;
        let rights = rights(&qp, &qp.lock(), &extent, (to, asker))?;
        let writable = rights & (right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0;
        let backing = backing::find(extent.host, extent.length, writable)?;
        let grant_table = match self.keys.grants.get() {
            Some(grant_table) => grant_table,
            None => {
                let made = GrantTable::new().ok()?;
                self.keys.grants.get_or_init(|| made)
            }
        };
        let mut inner = qp.lock();
        // Held until the grant is in the table: a thread that invalidates the key waits for this
        // lock, and then revokes the grant.
        let held = self.keys.extents.hold(key >> 8).filter(|held| Arc::ptr_eq(held, &extent))?;
        if self::rights(&qp, &inner, &held, (to, asker)) != Some(rights) {
            return None;
        }
        let terms = Terms {
            key,
            rights,
            addr: extent.iova.checked_add(backing.start - extent.host)?,
            len: backing.len,
            offset: backing.offset,
            asker,
            qpn,
        };
        let line = grant_table.give(&terms, to, |engine| self.keys.has_ended(engine))?;
        inner.direct.given.retain(GrantLine::is_open);
        let grant = DirectGrant { engine: to, qpn: asker, line: line.line, number: line.number };
        inner.direct.given.push(line);
        Some((grant, backing.file))
    }
}

/// The rights on a region that the connection's peer can get, if any.
fn rights(qp: &Qp, inner: &Inner, extent: &Extent, (to, asker): (u32, u32)) -> Option<u32> {
    let engine = qp.engine();
    let connected = qp.service == Service::Rc
        && !inner.is_dead()
        && inner.state.serves()
        && !qp.special(inner).has_beside(Special::PACED.and(Special::HELD))
        && inner.attributes.dest_qp_num == asker
        && engine.board.owner(asker) == to;
    let own = extent.pd == qp.pd
        && extent.only == 0
        && extent.length > 0
        && extent.memory_kind == MemoryKind::Program
        && extent.backing.is_none()
        && extent.access & right::ON_DEMAND == 0
        && engine.keys.windows.find(extent.key >> 8).is_none();
    let reading = right::REMOTE_READ | right::REMOTE_ATOMIC;
    let served = if inner.attributes.max_dest_rd_atomic == 0 { RIGHTS & !reading } else { RIGHTS };
    let rights = extent.access & inner.attributes.qp_access_flags & served;
    (connected && own && rights != 0).then_some(rights)
}

impl Qp {
    /// How many of this QP's requests were carried out directly on the peer's memory since the QP
    /// was made or reset.
    #[must_use]
    pub fn carried_directly(&self) -> u64 {
        self.lock().direct.carried
    }
}
