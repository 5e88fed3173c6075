//! ECN: the bits of a traffic class, and when this engine last sent a CNP to a host. What a QP does
//! with marks is in `congestion.rs`. Principal type: [`LastCnp`].

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::Time;

/// The ECN bits of a traffic class.
const ECN: u8 = 3;
/// Congestion Experienced: the network or the receiver has marked the packet.
const CE: u8 = 3;
/// ECN-capable: the sender reacts to marks.
const CAPABLE: u8 = 2;
/// Nanoseconds between two CNPs to one host, as adapters do.
const PAUSE: u64 = 50_000;

/// The traffic class of a connection: the program's, made ECN-capable if the program leaves the ECN
/// bits 0.
pub(crate) const fn capable(traffic_class: u8) -> u8 {
    if traffic_class & ECN == 0 { traffic_class | CAPABLE } else { traffic_class }
}

/// The traffic class of a datagram that arrived when `used` of the `room` bytes of the receive
/// buffer were full.
pub(crate) const fn marked(traffic_class: u8, (used, room): (usize, usize)) -> u8 {
    if traffic_class & ECN != 0 && used > room / 2 { traffic_class | CE } else { traffic_class }
}

/// Whether a packet with this traffic class is marked.
pub(crate) const fn is_marked(traffic_class: u8) -> bool {
    traffic_class & ECN == CE
}

/// When this engine last sent a CNP to a host.
#[derive(Debug, Default)]
pub(crate) struct LastCnp(AtomicU64);

impl LastCnp {
    /// Whether to send a CNP now.
    pub(crate) fn should_send(&self, now: Time) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let is_due = last == 0 || now.0 >= last + PAUSE;
        if is_due {
            self.0.store(now.0.max(1), Ordering::Relaxed);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_something_of_ecn_gets_it() {
        assert_eq!([0, 0x68, 1, 2, 3, 0xfd].map(capable), [2, 0x6a, 1, 2, 3, 0xfd]);
    }

    #[test]
    fn a_buffer_that_is_half_full_marks_what_heeds_marks() {
        assert_eq!(marked(0x6a, (51, 100)), 0x6b);
        assert_eq!(marked(0x6a, (50, 100)), 0x6a);
        assert_eq!(marked(0x68, (99, 100)), 0x68);
    }

    #[test]
    fn a_host_is_told_once_in_a_while() {
        let last = LastCnp::default();
        assert!(last.should_send(Time(0)) && last.should_send(Time(PAUSE + 1)));
        assert!(
            !last.should_send(Time(PAUSE + 2))
                && !last.should_send(Time(2 * PAUSE))
                && last.should_send(Time(2 * PAUSE + 1))
        );
    }
}
