//! The lives of links: training, error recovery, cuts, and the states that the manager sets. Not
//! what passes in a state ([`crate::state`]).

use super::{End, Fabric, Happening, Kind};
use crate::counters::Cause;
use crate::credit::Sender;
use crate::port::{CutBy, Hold, Port, Settings};
use crate::rate::{MICROSECOND, Rate, Speed, Time, Width};
use crate::state::{Event, Logical, Physical};

/// How long two ports train.
pub const TRAINING: Time = 1000 * MICROSECOND;
/// How long a link tries to recover before it goes down.
pub const RECOVERY: Time = 2000 * MICROSECOND;

/// A port refuses the state that the manager sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a port in state {0} does not accept this state")]
pub struct Refused(pub Logical);

impl Fabric {
    /// The manager sets the state of a port. DOWN makes the link train again.
    ///
    /// # Errors
    /// The state table has no such transition.
    pub fn set_state(&mut self, end: End, event: Event) -> Result<Logical, Refused> {
        let at = self.index(end).ok_or(Refused(Logical::Down))?;
        let before = self.ports[at as usize].logical;
        let by_manager = matches!(event, Event::SetDown | Event::SetArmed | Event::SetActive);
        if !by_manager || before.after(event).is_none() {
            return Err(Refused(before));
        }
        self.change(at, event);
        if event == Event::SetDown {
            self.ends(at).into_iter().for_each(|at| self.down(at, Physical::Polling));
            self.train(at);
        }
        self.send_all();
        Ok(self.ports[at as usize].logical)
    }

    /// The manager switches a port off, or on again.
    pub fn set_enabled(&mut self, end: End, enabled: bool) {
        let Some(at) = self.index(end) else { return };
        let disabled = self.ports[at as usize].physical == Physical::Disabled;
        if enabled && disabled {
            self.ports[at as usize].physical = Physical::Polling;
            self.train(at);
        } else if !enabled && !disabled {
            self.ends(at).into_iter().for_each(|at| self.down(at, Physical::Polling));
            self.ports[at as usize].physical = Physical::Disabled;
        }
        self.send_all();
    }

    /// The manager sets how many data lanes of a port are in operation. The neighbour gets the
    /// credits of lanes that were not.
    pub fn set_lanes(&mut self, end: End, lanes: u8) {
        let Some(at) = self.index(end) else { return };
        let port = &mut self.ports[at as usize];
        let before = lanes_in_use(port);
        port.settings.vls = lanes.min(port.settings.vls_cap);
        if port.physical == Physical::LinkUp {
            port.egress.flow_due |= lanes_in_use(port) & !before;
            self.kicked.push_back(at);
        }
        self.touch(at);
        self.send_all();
    }

    /// Cuts the cable of a port. Both ends try to recover and go down after [`RECOVERY`].
    pub fn cut(&mut self, end: End, by: CutBy) {
        let Some(at) = self.index(end) else { return };
        for at in self.cut_ends(at, by) {
            self.ports[at as usize].cuts.insert(by);
        }
        for at in self.ends(at) {
            match self.ports[at as usize].physical {
                Physical::LinkUp => self.change(at, Event::LinkError),
                Physical::Training => {
                    self.down(at, Physical::Polling);
                    continue;
                }
                _ => continue,
            }
            if self.ports[at as usize].logical == Logical::ActiveDefer {
                let port = &mut self.ports[at as usize];
                port.physical = Physical::Recovery;
                port.generation += 1;
                self.push(self.now + RECOVERY, at, Happening::GiveUp);
            } else {
                self.down(at, Physical::Polling);
            }
        }
        self.send_all();
    }

    /// Takes back a cut. If nothing else cuts the cable, a link that still tries to recover is
    /// ACTIVE again, and another one trains.
    pub fn mend(&mut self, end: End, by: CutBy) {
        let Some(at) = self.index(end) else { return };
        for at in self.cut_ends(at, by) {
            self.ports[at as usize].cuts.remove(by);
        }
        let ends = self.ends(at);
        if ends.iter().any(|at| self.ports[*at as usize].is_cut()) {
            return;
        }
        if ends.iter().all(|at| self.ports[*at as usize].physical == Physical::Recovery) {
            for at in ends {
                let port = &mut self.ports[at as usize];
                port.physical = Physical::LinkUp;
                port.generation += 1;
                port.counters.recovered += 1;
                port.egress.flow_due = lanes_in_use(port);
                port.egress.refresh = 0;
                self.change(at, Event::Recovered);
                self.kicked.push_back(at);
            }
        } else {
            // An end that still recovers does not find its neighbour again.
            for at in ends {
                if self.ports[at as usize].physical == Physical::Recovery {
                    self.change(at, Event::LinkDown);
                    self.down(at, Physical::Polling);
                }
            }
            self.train(at);
        }
        self.send_all();
    }

    /// The ends that keep a cut in mind. A node knows only of itself that it is absent.
    fn cut_ends(&self, at: u32, by: CutBy) -> Vec<u32> {
        if by == CutBy::Absence { vec![at] } else { self.ends(at) }
    }

    /// Both ends of a port's link.
    fn ends(&self, at: u32) -> Vec<u32> {
        std::iter::once(at).chain(self.ports[at as usize].peer).collect()
    }

    /// Applies an event to the link layer of a port. An event that the state table refuses changes
    /// nothing.
    pub(super) fn change(&mut self, at: u32, event: Event) {
        let port = &mut self.ports[at as usize];
        if let Some(next) = port.logical.after(event) {
            let before = std::mem::replace(&mut port.logical, next);
            if next != before {
                self.touch(at);
                self.note_state(at, before);
            }
            self.kicked.push_back(at);
        }
    }

    /// Training begins if both ends look for each other.
    pub(super) fn train(&mut self, at: u32) {
        let ends = self.ends(at);
        let polls = |at: &u32| {
            let port = &self.ports[*at as usize];
            port.physical == Physical::Polling && !port.is_cut()
        };
        if ends.len() == 2 && ends.iter().all(polls) {
            ends.iter().for_each(|at| self.ports[*at as usize].physical = Physical::Training);
            self.push(self.now + TRAINING, at, Happening::Trained);
        }
    }

    /// Training ends: the widest width and the fastest speed that both ends allow.
    pub(super) fn trained(&mut self, at: u32) {
        let ends = self.ends(at);
        let both = |codes: fn(&Settings) -> u8| {
            ends.iter().fold(0xff, |common, at| common & codes(&self.ports[*at as usize].settings))
        };
        let width = Width::widest(both(|settings| settings.widths & settings.widths_enabled));
        let speed = Speed::fastest(both(|settings| settings.speeds & settings.speeds_enabled));
        let (Some(width), Some(speed)) = (width, speed) else {
            ends.iter().for_each(|at| self.ports[*at as usize].physical = Physical::Polling);
            return;
        };
        for at in ends {
            let port = &mut self.ports[at as usize];
            port.rate = Rate { width, speed };
            port.physical = Physical::LinkUp;
            for lane in &mut port.lanes {
                lane.sender = Sender::default();
                lane.receiver.restart();
            }
            port.egress.flow_due = lanes_in_use(port);
            self.change(at, Event::LinkUp);
            // The manager of the other fabric decides there what passes.
            if matches!(self.nodes[self.ports[at as usize].node as usize].kind, Kind::Outside) {
                self.change(at, Event::SetArmed);
                self.change(at, Event::SetActive);
            }
        }
    }

    /// The time for recovery is over.
    pub(super) fn give_up(&mut self, at: u32) {
        self.change(at, Event::LinkDown);
        self.down(at, Physical::Polling);
    }

    /// The port has lost its link: what waits here is dropped, and what is on the wire is lost.
    fn down(&mut self, at: u32, physical: Physical) {
        let port = &mut self.ports[at as usize];
        if matches!(port.physical, Physical::LinkUp | Physical::Recovery) {
            port.counters.downed += 1;
        }
        if port.physical != Physical::Disabled {
            port.physical = physical;
        }
        port.generation += 1;
        port.egress.flow_due = 0;
        port.egress.refresh = 0;
        port.egress.waiting_since = None;
        let queued =
            port.lanes.iter_mut().flat_map(|lane| lane.queue.drain(..)).chain(port.egress.management.drain(..));
        let holds: Vec<Hold> = queued.map(|queued| queued.hold).collect();
        for hold in holds {
            self.ports[at as usize].counters.drop(Cause::EgressDown);
            self.release(hold);
        }
        self.change(at, Event::LinkDown);
    }
}

/// One bit for each lane in operation.
fn lanes_in_use(port: &Port) -> u16 {
    let lanes = usize::from(port.settings.vls).min(port.lanes.len()).min(15);
    (1 << lanes) - 1
}
