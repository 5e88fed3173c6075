//! Several managers in one subnet: who is the master. IBA 14.4. Principal type: [`Role`].
//!
//! | state | what happens | next state |
//! |---|---|---|
//! | DISCOVERING | a sweep finds a master, or a better manager | STANDBY, polls it |
//! | | a sweep finds none | MASTER |
//! | STANDBY | the polled manager is silent, or DISCOVER | DISCOVERING |
//! | | HANDOVER | MASTER |
//! | | DISABLE | NOTACTIVE |
//! | NOTACTIVE | STANDBY | STANDBY |
//! | MASTER | a sweep finds a better manager: it gets a HANDOVER | STANDBY, polls it |
//! | | a sweep finds a better one that is DISCOVERING | MASTER, sweeps again soon |
//! | | HANDOVER | MASTER, sweeps again |
//! | | DISCOVER | DISCOVERING |
//!
//! The better manager has the higher priority, or with equal priorities the lower GUID. One with
//! another SM_Key does not count.

use super::asker::{SmpRequest, What};
use super::inherited::Inherited;
use super::told::Told;
use super::{Manager, Phase, Wishes};
use crate::address::Address;
use crate::event::{Event, Problem};
use crate::inventory::PortId;
use std::cmp::Reverse;
use wire::layout::Layout;
use wire::mad::{CLASS_SUBN_DIRECTED, METHOD_GET, METHOD_SET, RESPONSE, STATUS_INVALID};
use wire::smp::{SmInfo, SmState, Smp};

/// What this manager is among those of its subnet.
#[derive(Debug)]
pub(super) struct Role {
    pub(super) state: SmState,
    /// It has become the master and has not completed a sweep since.
    pub(super) takeover: bool,
    /// It took over from a master.
    pub(super) from_standby: bool,
    /// The directed route to the manager that is polled.
    watched: Box<[u8]>,
    /// Polls without a good answer.
    misses: u32,
    activity: u32,
    /// A better manager is in the state DISCOVERING, or a manager has not said what it is. The
    /// first sends no message when it becomes STANDBY, the second none when it can answer: only a
    /// sweep finds out.
    pub(super) rival: bool,
    /// A port says that it has a manager, which has not answered in this sweep: it has just started
    /// or ended.
    pub(super) has_silent: bool,
    /// How many sweeps in a row there was such a port.
    silent_sweeps: u32,
}

/// After so many sweeps, a port whose manager never answers is asked only in the usual sweeps.
const SILENT_SWEEPS: u32 = 3;

impl Default for Role {
    fn default() -> Role {
        let state = SmState::Discovering;
        let watched = Box::default();
        Role {
            state,
            takeover: false,
            from_standby: false,
            watched,
            misses: 0,
            activity: 0,
            rival: false,
            has_silent: false,
            silent_sweeps: 0,
        }
    }
}

impl Role {
    /// Counts: other managers see that this one lives.
    pub(super) const fn lives(&mut self) {
        self.activity = self.activity.wrapping_add(1);
    }
}

const fn rank(info: &SmInfo) -> (u8, Reverse<u64>) {
    (info.priority, Reverse(info.guid))
}

const fn is(info: &SmInfo, state: SmState) -> bool {
    info.state == state as u8
}

impl Manager {
    /// What the manager says of itself.
    #[must_use]
    pub fn sm_info(&self) -> SmInfo {
        SmInfo {
            guid: self.guid,
            sm_key: self.config.sm_key,
            activity_count: self.role.activity,
            priority: self.config.priority.min(15),
            state: self.role.state as u8,
        }
    }

    pub(super) fn set_state(&mut self, state: SmState) {
        if self.role.state == state {
            return;
        }
        self.role.takeover = state == SmState::Master;
        self.role.rival = false;
        self.role.from_standby |= self.role.state == SmState::Standby;
        self.role.state = state;
        self.is_up &= state == SmState::Master;
        self.wishes = Wishes::default();
        (self.inherited, self.told) = (Inherited::default(), Told::default());
        self.event(Event::State(state));
    }

    /// The subnet is discovered: decides who is the master.
    pub(super) fn elect(&mut self) {
        let others = self.others();
        let own = self.sm_info();
        self.role.silent_sweeps = match std::mem::take(&mut self.role.has_silent) {
            true => self.role.silent_sweeps.saturating_add(1),
            false => 0,
        };
        let best = |filter: &dyn Fn(&SmInfo) -> bool| {
            let found = others.iter().filter(|(_, info)| filter(info));
            found.max_by_key(|(_, info)| rank(info)).map(|(at, _)| *at)
        };
        let better = |info: &SmInfo| rank(info) > rank(&own);
        if self.role.state == SmState::Master {
            let discovers = |info: &SmInfo| better(info) && is(info, SmState::Discovering);
            let is_silent = (1..=SILENT_SWEEPS).contains(&self.role.silent_sweeps);
            self.role.rival = is_silent || others.iter().any(|(_, info)| discovers(info));
            let successor = |info: &SmInfo| better(info) && (is(info, SmState::Master) || is(info, SmState::Standby));
            match best(&successor) {
                Some(at) => self.hand_over(at),
                None => self.configure(),
            }
            return;
        }
        let active = |info: &SmInfo| !is(info, SmState::NotActive) && better(info);
        match best(&|info| is(info, SmState::Master)).or_else(|| best(&active)) {
            Some(at) => {
                let route = self.route(at);
                self.stand_by(route.into());
            }
            None => {
                self.set_state(SmState::Master);
                self.configure();
            }
        }
    }

    /// The other managers that were found and that have the same key.
    fn others(&mut self) -> Vec<(PortId, SmInfo)> {
        let found = self.inventory.end_ports().filter_map(|(id, _, port)| Some((id, port.sm?)));
        let (own, key) = (self.guid, self.config.sm_key);
        let (trusted, others): (Vec<_>, Vec<_>) =
            found.filter(|(_, info)| info.guid != own).partition(|(_, info)| info.sm_key == key);
        others.iter().for_each(|(_, info)| self.problem(Problem::Untrusted(info.guid)));
        trusted
    }

    fn stand_by(&mut self, route: Box<[u8]>) {
        self.stop();
        self.role.watched = route;
        self.role.misses = 0;
        self.set_state(SmState::Standby);
        self.sweep.next = Some(self.now.saturating_add(self.timing().poll_interval));
    }

    pub(super) fn poll_master(&mut self) {
        self.asker.push(SmpRequest::get(What::Poll, SmInfo::ATTRIBUTE, 0, &self.role.watched));
    }

    /// The polled manager has answered, or not.
    pub(super) fn polled(&mut self, answer: Option<&Smp>) {
        if self.role.state != SmState::Standby {
            return;
        }
        let info = answer.filter(|smp| smp.status == 0).and_then(|smp| SmInfo::read(&smp.data));
        let alive = info.is_some_and(|info| {
            info.sm_key == self.config.sm_key && (is(&info, SmState::Master) || is(&info, SmState::Discovering))
        });
        self.role.misses = if alive { 0 } else { self.role.misses + 1 };
        if self.role.misses >= self.timing().poll_retries.max(1) {
            return self.rediscover();
        }
        self.sweep.next = Some(self.now.saturating_add(self.timing().poll_interval));
    }

    /// The master is gone, or this manager shall look for itself.
    fn rediscover(&mut self) {
        self.stop();
        self.set_state(SmState::Discovering);
        self.sweep.heavy = true;
        self.sweep.next = Some(self.now);
    }

    fn hand_over(&mut self, at: PortId) {
        self.sweep.phase = Phase::Handover;
        let attribute = (SmInfo::ATTRIBUTE, SmInfo::HANDOVER);
        let request = SmpRequest::set(What::Handover(at), attribute, &self.route(at), self.sm_info());
        self.asker.push(request);
    }

    /// The other manager has agreed to be the master, or not; then this one stays it.
    pub(super) fn handed_over(&mut self, at: PortId, answer: Option<&Smp>) {
        if self.role.state != SmState::Master {
            return;
        }
        match answer {
            Some(smp) if smp.status == 0 => {
                let route = self.route(at);
                self.stand_by(route.into());
            }
            Some(smp) => self.problem(Problem::Refused { what: What::Handover(at).to_string(), status: smp.status }),
            None => self.problem(Problem::Unanswered(What::Handover(at).to_string())),
        }
    }

    /// Another manager, or a tool, asks for SMInfo or wants to change the state.
    pub(super) fn asked(&mut self, from: Address, smp: &Smp) {
        let status = if smp.method == METHOD_SET { self.control(from, smp).err().unwrap_or(0) } else { 0 };
        self.role.lives();
        let returning = smp.class == CLASS_SUBN_DIRECTED;
        let mut answer = Smp { method: METHOD_GET | RESPONSE, status, returning, ..*smp };
        answer.data.fill(0);
        self.sm_info().write(&mut answer.data);
        self.reply(from, &answer);
    }

    /// A Set of SMInfo: a master tells this manager what to be.
    fn control(&mut self, from: Address, smp: &Smp) -> Result<(), u16> {
        let sender = SmInfo::read(&smp.data).unwrap_or_default();
        let acknowledges = smp.modifier == SmInfo::ACKNOWLEDGE;
        if sender.sm_key != self.config.sm_key || !(acknowledges || is(&sender, SmState::Master)) {
            return Err(STATUS_INVALID);
        }
        let state = self.role.state;
        match (state, smp.modifier) {
            (_, SmInfo::ACKNOWLEDGE) => {}
            (SmState::Standby | SmState::Discovering, SmInfo::HANDOVER) => {
                self.stop();
                self.role.from_standby = true;
                self.set_state(SmState::Master);
                self.want_sweep(self.now);
            }
            (SmState::Master, SmInfo::HANDOVER) => self.want_sweep(self.now),
            (SmState::Standby, SmInfo::DISABLE) => {
                self.stop();
                self.set_state(SmState::NotActive);
            }
            (SmState::NotActive, SmInfo::STANDBY) => {
                let route = self.route_back(from, smp).ok_or(STATUS_INVALID)?;
                self.stand_by(route);
            }
            (SmState::Standby | SmState::Master, SmInfo::DISCOVER) => self.rediscover(),
            _ => return Err(STATUS_INVALID),
        }
        Ok(())
    }

    /// The directed route to the sender of a request.
    fn route_back(&self, from: Address, smp: &Smp) -> Option<Box<[u8]>> {
        match from {
            Address::Directed => {
                let hops = usize::from(smp.hop_count);
                let path = smp.return_path.get(1..=hops)?;
                Some(path.iter().rev().copied().collect())
            }
            Address::Lid { lid, .. } => Some(self.route(self.inventory.by_lid(lid)?).into()),
        }
    }
}
