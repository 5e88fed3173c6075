//! Traps of agents: they are answered, passed on to subscribers, and lead to a sweep.

use super::{Manager, TRAP_DELAY};
use crate::address::Address;
use crate::event::{Event, Violation};
use wire::layout::Layout;
use wire::mad::METHOD_TRAP_REPRESS;
use wire::notice::Notice;
use wire::smp::{SmState, Smp};

impl Manager {
    /// A trap has arrived. Only the master answers it.
    pub(super) fn trap(&mut self, from: Address, smp: &Smp) {
        if self.role.state != SmState::Master {
            return;
        }
        let mut whole = [0; Notice::LEN];
        whole[..Notice::SHORT].copy_from_slice(&smp.data);
        let Some(mut notice) = Notice::read(&whole) else { return };
        if let Address::Lid { .. } = from {
            let repress = Smp { method: METHOD_TRAP_REPRESS, status: 0, ..*smp };
            self.reply(from, &repress);
        }
        let changes = [
            Notice::LINK_STATE,
            Notice::LINK_INTEGRITY,
            Notice::BUFFER_OVERRUN,
            Notice::FLOW_CONTROL,
            Notice::LOCAL_CHANGE,
            Notice::SYSTEM_GUID,
        ];
        if notice.generic && changes.contains(&notice.number) {
            self.want_sweep(self.now.saturating_add(TRAP_DELAY));
        }
        let issuer = self.inventory.by_lid(notice.issuer_lid).and_then(|id| self.inventory.port(id));
        if let Some(port) = issuer {
            let guid = port.guid;
            notice.issuer_gid = gid(self.config.subnet_prefix, guid);
            if let Some(heard) = Violation::of(&notice, guid).and_then(|violation| self.told.violated(violation)) {
                self.event(Event::Violation(heard));
            }
            self.event(Event::Notice(Box::new(notice)));
        }
    }
}

/// The GID of a port.
pub(super) fn gid(prefix: u64, guid: u64) -> wire::cm::Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&prefix.to_be_bytes());
    gid[8..].copy_from_slice(&guid.to_be_bytes());
    gid
}
