//! The states of a port on one page: what the link layer lets pass in each state, and every
//! transition.
//!
//! ```text
//!            link up           manager            manager or data packet
//!    DOWN ───────────▶ INIT ───────────▶ ARMED ───────────────────────▶ ACTIVE
//!      ▲                 │                 │                            │    ▲
//!      │   link error    │                 │                 link error │    │ recovered
//!      ├─────────────────┴─────────────────┘                            ▼    │
//!      └──────────────────────────────────────────────────────────── ACTIVE DEFER
//! ```
//!
//! | state        | management packets | data received           | data sent | credits |
//! |--------------|--------------------|-------------------------|-----------|---------|
//! | DOWN         | –                  | –                       | –         | –       |
//! | INIT         | pass               | dropped                 | –         | pass    |
//! | ARMED        | pass               | pass; makes port ACTIVE | –         | pass    |
//! | ACTIVE       | pass               | pass                    | pass      | pass    |
//! | ACTIVE DEFER | wait               | –                       | wait      | –       |
//!
//! Only the manager takes a port from INIT to ARMED to ACTIVE. Not here: when a link trains or
//! fails ([`crate::fabric`]). Principal types: [`Logical`], [`Event`], [`Physical`]. IBA 7.2.

use std::fmt;

/// The state of the link layer, with the numbers of PortInfo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Logical {
    /// Nothing passes.
    #[default]
    Down = 1,
    /// Only management packets and credits pass.
    Init = 2,
    /// Data may come in, but does not start here.
    Armed = 3,
    /// Everything passes.
    Active = 4,
    /// The link is in error recovery: nothing passes, and nothing is dropped.
    ActiveDefer = 5,
}

/// The state of the physical layer, with the numbers of PortInfo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Physical {
    /// Neither sends nor listens.
    Sleep = 1,
    /// Looks for a neighbour.
    #[default]
    Polling = 2,
    /// Switched off by the manager.
    Disabled = 3,
    /// Agrees with its neighbour on width and speed.
    Training = 4,
    /// Carries packets.
    LinkUp = 5,
    /// Tries to carry packets again after an error.
    Recovery = 6,
    /// Test of the transmitter; the model never enters it.
    Test = 7,
}

/// What can happen to the link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The manager sets the state DOWN.
    SetDown,
    /// The manager sets the state ARMED.
    SetArmed,
    /// The manager sets the state ACTIVE.
    SetActive,
    /// The physical layer has come up.
    LinkUp,
    /// The physical layer has lost its neighbour, for a time or for good.
    LinkError,
    /// The physical layer has recovered from the error.
    Recovered,
    /// The physical layer gives up.
    LinkDown,
    /// A data packet has arrived without an error.
    Data,
}

use Logical::{Active, ActiveDefer, Armed, Down, Init};

/// The state after each event: one row for each event, one column for each state in the order of
/// [`Logical::ALL`]. `None` is a refusal: the state stays.
#[rustfmt::skip]
pub const TRANSITIONS: [(Event, [Option<Logical>; 5]); 8] = [
    //                   DOWN         INIT         ARMED         ACTIVE             ACTIVE DEFER
    (Event::SetDown,   [Some(Down), Some(Down),  Some(Down),   Some(Down),        Some(Down)]),
    (Event::SetArmed,  [None,       Some(Armed), Some(Armed),  None,              None]),
    (Event::SetActive, [None,       None,        Some(Active), Some(Active),      None]),
    (Event::LinkUp,    [Some(Init), None,        None,         None,              None]),
    (Event::LinkError, [Some(Down), Some(Down),  Some(Down),   Some(ActiveDefer), Some(ActiveDefer)]),
    (Event::Recovered, [None,       None,        None,         None,              Some(Active)]),
    (Event::LinkDown,  [Some(Down), Some(Down),  Some(Down),   Some(Down),        Some(Down)]),
    (Event::Data,      [None,       None,        Some(Active), Some(Active),      None]),
];

impl Logical {
    /// All states, in the order of their numbers.
    pub const ALL: [Logical; 5] = [Down, Init, Armed, Active, ActiveDefer];

    /// The state after an event, or `None` if the event is refused in this state.
    #[must_use]
    pub fn after(self, event: Event) -> Option<Logical> {
        TRANSITIONS.iter().find(|(row, _)| *row == event)?.1[self as usize - 1]
    }

    /// Whether packets of this kind may come in.
    #[must_use]
    pub const fn receives(self, management: bool) -> bool {
        match self {
            Down | ActiveDefer => false,
            Init => management,
            Armed | Active => true,
        }
    }

    /// Whether packets of this kind may go out.
    #[must_use]
    pub const fn sends(self, management: bool) -> bool {
        match self {
            Down | ActiveDefer => false,
            Init | Armed => management,
            Active => true,
        }
    }

    /// Whether packets of this kind may be queued to go out, now or after the recovery of the link.
    #[must_use]
    pub const fn queues(self, management: bool) -> bool {
        self.sends(management) || matches!(self, ActiveDefer)
    }
}

impl fmt::Display for Logical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE DEFER"][*self as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l33_every_state_and_event() {
        let lines = TRANSITIONS.map(|(event, _)| {
            let cells = Logical::ALL.map(|state| state.after(event).map_or("-".to_owned(), |next| next.to_string()));
            format!("{event:?}: {}", cells.join(", "))
        });
        assert_eq!(
            lines.join("\n"),
            "SetDown: DOWN, DOWN, DOWN, DOWN, DOWN\n\
             SetArmed: -, ARMED, ARMED, -, -\n\
             SetActive: -, -, ACTIVE, ACTIVE, -\n\
             LinkUp: INIT, -, -, -, -\n\
             LinkError: DOWN, DOWN, DOWN, ACTIVE DEFER, ACTIVE DEFER\n\
             Recovered: -, -, -, -, ACTIVE\n\
             LinkDown: DOWN, DOWN, DOWN, DOWN, DOWN\n\
             Data: -, -, ACTIVE, ACTIVE, -"
        );
    }

    #[test]
    fn l33_each_state_passes_what_its_row_says() {
        let row = |state: Logical| {
            [state.receives(true), state.receives(false), state.sends(true), state.sends(false)].map(u8::from)
        };
        assert_eq!(row(Down), [0, 0, 0, 0]);
        assert_eq!(row(Init), [1, 0, 1, 0]);
        assert_eq!(row(Armed), [1, 1, 1, 0]);
        assert_eq!(row(Active), [1, 1, 1, 1]);
        assert_eq!(row(ActiveDefer), [0, 0, 0, 0]);
        assert!(ActiveDefer.queues(false) && !Armed.queues(false));
    }
}
