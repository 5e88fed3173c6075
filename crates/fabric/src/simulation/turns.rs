//! When engines and connection managers run. Adds to [`Simulation`].

use engine::Step;

use super::core::Event;
use super::trace::Seen;
use super::{HostId, SimulatedHost, Simulation, Turn};

/// The longest delay in nanoseconds before an engine with work runs, if it is not paused.
const TURN: u64 = 2_000;

impl Simulation {
    /// How many engines and hosts the steps have looked at so far: those that were woken or have
    /// run, however many there are.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.attention.looks()
    }

    /// The host of an engine; `program` is its position in the order of opening.
    #[must_use]
    pub fn host_of(&self, program: usize) -> HostId {
        HostId(self.programs[program].host)
    }

    /// Schedules engines that were notified, and connection managers that have messages or whose
    /// time has come.
    pub(super) fn wake(&mut self) {
        let (engines, hosts) = self.attention.take();
        for number in engines {
            let program = &self.programs[number];
            if !program.turn.soon && program.engine.upgrade().is_some_and(|engine| engine.is_notified()) {
                self.turn_soon(number);
            }
        }
        for number in hosts {
            self.wake_manager(number);
        }
    }

    fn wake_manager(&mut self, number: usize) {
        let SimulatedHost { agent, turn, .. } = &self.hosts[number];
        agent.bring_events();
        if agent.owes() {
            // There is room when the program has read events, which wakes nobody.
            self.attention.look_at_host(number);
        }
        if turn.soon {
            return;
        }
        let due = agent.due().map(|at| at.max(self.core.now() + 1));
        if agent.has_datagrams() {
            let at = self.soon();
            self.hosts[number].turn = Turn { at: Some(at), soon: true };
            self.core.state.lock().push(at, Event::Managed(number));
        } else if let Some(due) = due.filter(|due| turn.at.is_none_or(|at| *due < at)) {
            self.hosts[number].turn.at = Some(due);
            self.core.state.lock().push(due, Event::Managed(number));
        }
    }

    /// An engine runs.
    pub(super) fn take_turn(&mut self, number: usize) {
        self.attention.look_at_engine(number);
        let program = &mut self.programs[number];
        program.turn = Turn::default();
        let Some(engine) = program.engine.upgrade() else { return };
        let step = engine.step();
        self.core.see(&Seen::Turn { program: number, worked: step == Step::Worked });
        let now = self.core.now();
        match step {
            Step::Worked => self.turn_soon(number),
            Step::Sleeps(Some(at)) => self.turn_at(number, at.max(now + 1)),
            Step::Sleeps(None) => {}
        }
    }

    /// A connection manager runs.
    pub(super) fn manage(&mut self, number: usize) {
        self.attention.look_at_host(number);
        self.hosts[number].turn = Turn::default();
        self.hosts[number].agent.step();
        self.core.see(&Seen::Managed { host: number });
    }

    /// The time at which an engine or manager with work gets the processor.
    fn soon(&mut self) -> u64 {
        let (pauses, pause) = {
            let conditions = &self.core.state.lock().conditions;
            (conditions.pauses, u64::try_from(conditions.pause.as_nanos()).unwrap_or(u64::MAX))
        };
        let longest = if self.turns.happens(pauses) { pause } else { TURN };
        self.core.now() + 1 + self.turns.below(longest)
    }

    pub(super) fn turn_soon(&mut self, number: usize) {
        let at = self.soon();
        self.programs[number].turn.soon = true;
        self.turn_at(number, at);
    }

    fn turn_at(&mut self, number: usize, at: u64) {
        self.programs[number].turn.at = Some(at);
        self.core.state.lock().push(at, Event::Turn(number));
    }
}
