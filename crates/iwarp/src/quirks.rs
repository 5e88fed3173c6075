//! What a peer does against the RFCs, and what this side does about it. All is off towards softhca
//! itself. Principal type: [`Quirks`].
//!
//! Two properties of siw need no switch, because the RFCs ask the same of everyone: the padding of
//! its FPDUs is not zero, which a receiver ignores, and as responder it may send first.
//! Nor does a third: siw repeats a READ that it refuses with its length in place of its MSN, so the
//! READ is known by what it asks for.

use std::time::Duration;

/// Work-arounds for a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// How long this side holds its first FPDU back after the reply. As responder, siw overlooks an
    /// FPDU that arrives just after its reply, until more data arrives ([`Quirks::nudge`]). As
    /// initiator, it resets the connection if an FPDU arrives before it has read the reply.
    pub hold_first_fpdu: Duration,
    /// How long this side waits after the peer's last bytes before it closes its direction. If the
    /// end arrives while siw still sends, siw completes that work request with an error although
    /// all of its bytes have left.
    pub hold_end: Duration,
    /// How long a responder that rejects waits for the peer to close. siw loses the private data of
    /// a reply if the connection ends just behind it.
    pub linger_after_reject: Duration,
    /// Private data has at most 251 bytes. siw loses 256 bytes of the length if there is more.
    pub short_private_data: bool,
    /// The responder may choose a ready-to-receive message that was not offered. siw chooses a
    /// WRITE if only a SEND was offered.
    pub any_rtr: bool,
    /// A responder may send before the initiator has sent. As initiator, siw does not ask for the
    /// peer-to-peer model, but accepts FPDUs as soon as it has the reply.
    pub responder_first: bool,
    /// A Terminate message whose layout is not clear has siw's.
    pub siw_terminate: bool,
    /// How long after its first FPDU an initiator sends an empty WRITE, if nothing else leaves by
    /// then. More of them follow, each after a longer time. So a siw that has overlooked the first
    /// FPDU looks again, however long it takes until it can.
    pub nudge: Duration,
}

impl Quirks {
    /// Those of the siw driver of Linux.
    pub const SIW: Quirks = Quirks {
        hold_first_fpdu: Duration::from_millis(20),
        hold_end: Duration::from_millis(20),
        linger_after_reject: Duration::from_secs(1),
        short_private_data: true,
        any_rtr: true,
        responder_first: true,
        siw_terminate: true,
        nudge: Duration::from_millis(5),
    };

    /// The names of the work-arounds, those of the fields. The place of a name is its bit.
    pub const NAMES: [&str; 8] = [
        "hold_first_fpdu",
        "hold_end",
        "linger_after_reject",
        "short_private_data",
        "any_rtr",
        "responder_first",
        "siw_terminate",
        "nudge",
    ];

    /// The work-arounds whose bits are set, with the times for siw.
    #[must_use]
    pub fn of(bits: u8) -> Quirks {
        let is = |name: usize| bits >> name & 1 != 0;
        let time = |name, time| if is(name) { time } else { Duration::ZERO };
        Quirks {
            hold_first_fpdu: time(0, Self::SIW.hold_first_fpdu),
            hold_end: time(1, Self::SIW.hold_end),
            linger_after_reject: time(2, Self::SIW.linger_after_reject),
            short_private_data: is(3),
            any_rtr: is(4),
            responder_first: is(5),
            siw_terminate: is(6),
            nudge: time(7, Self::SIW.nudge),
        }
    }

    /// The longest private data of a program.
    #[must_use]
    pub const fn most_private(&self, enhanced: bool) -> usize {
        match (self.short_private_data, enhanced) {
            (true, _) => 251,
            (false, true) => crate::startup::MOST_PRIVATE - 4,
            (false, false) => crate::startup::MOST_PRIVATE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_the_bit_of_its_field() {
        for (place, name) in Quirks::NAMES.iter().enumerate() {
            let text = format!("{:?}", Quirks::of(1 << place));
            let set = text
                .trim_start_matches("Quirks { ")
                .trim_end_matches(" }")
                .split(", ")
                .find(|field| !field.ends_with("false") && !field.ends_with(" 0ns"));
            assert!(set.is_some_and(|field| field.starts_with(&format!("{name}: "))), "{name}: {text}");
        }
        assert_eq!((Quirks::of(0), Quirks::of(0xff)), (Quirks::default(), Quirks::SIW));
    }
}
