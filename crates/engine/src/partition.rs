//! The partition of a queue pair: its P_Key, and which packets that accepts (IBA 10.9).
//!
//! A QP has an index in its port's P_Key table, and the table may change. So the engine looks the
//! P_Key up when the QP becomes ready, and again after each change of the port. Packets of another
//! partition are dropped and counted ([`crate::drops`]). Adds to [`Qp`].

use abi::qp::ModifyQp;
use wire::pkey;

use crate::cell::{Packet, Partition};
use crate::qp::{Inner, Qp};

impl Qp {
    /// The P_Key that the port's table has for these attributes: 0 for an empty entry.
    pub(crate) fn table_pkey(&self, attributes: &ModifyQp) -> u16 {
        let engine = self.engine();
        engine.board.pkey(engine.device(), attributes.port_num.into(), attributes.pkey_index.into()).unwrap_or(0)
    }

    /// Whether a packet is of this QP's partition.
    #[inline]
    pub(crate) fn is_in_partition(&self, inner: &Inner, packet: &Packet) -> bool {
        pkey::is_accepted(inner.responder.pkey(), packet.headers.pkey)
    }

    /// The P_Key index, the port or the port's table has changed. Direct access in the old
    /// partition ends.
    pub(crate) fn follow_partition(&self, inner: &mut Inner) {
        let pkey = self.table_pkey(&inner.attributes);
        if inner.state.serves() && inner.responder.pkey() != pkey {
            inner.responder.set_pkey(pkey);
            inner.link.partition = Partition::of(pkey);
            inner.requester.set_pkey(pkey);
            inner.direct.leave();
        }
    }
}
