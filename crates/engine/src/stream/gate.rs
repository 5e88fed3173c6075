//! Bytes that have arrived while fault rules exist. They pass to the stream FPDU by FPDU, so that a
//! rule sees each FPDU first. Without rules, bytes go from the socket to the stream directly. How
//! they pass is in `passing.rs`. Principal type: [`Gate`].

use std::time::Duration;

/// Bytes of the length field of an FPDU.
const LENGTH: usize = 2;

/// What has arrived and not passed. It holds what was read at once, and an FPDU that has arrived in
/// part.
#[derive(Default)]
pub(super) struct Gate {
    bytes: Vec<u8>,
    /// The bytes before have passed.
    at: usize,
    /// The rules have seen the first FPDU.
    pub(super) is_seen: bool,
    /// Nothing passes before this time.
    pub(super) until: Option<Duration>,
}

/// What passes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// So many bytes of an FPDU whose beginning has passed.
    Rest(usize),
    /// A whole FPDU of so many bytes.
    Fpdu(usize),
}

impl Gate {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a rule holds everything back.
    pub(super) fn waits(&mut self, now: Duration) -> bool {
        self.until = self.until.filter(|until| now < *until);
        self.until.is_some()
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// What passes next, if the stream still misses so many bytes of an FPDU.
    pub(super) fn next(&self, missing: usize) -> Option<Next> {
        let bytes = &self.bytes[self.at..];
        if missing > 0 {
            return (!bytes.is_empty()).then(|| Next::Rest(missing.min(bytes.len())));
        }
        let len = iwarp::fpdu::size(u16::from_be_bytes(*bytes.first_chunk::<LENGTH>()?).into());
        (bytes.len() >= len).then_some(Next::Fpdu(len))
    }

    pub(super) fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.at..][..len]
    }

    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// So many bytes have passed.
    pub(super) fn passed(&mut self, len: usize) {
        self.at += len;
        self.is_seen = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fpdus_pass_when_they_are_whole() {
        let mut gate = Gate::default();
        assert_eq!((gate.next(0), gate.next(5)), (None, None));
        gate.add(&[0]);
        assert_eq!((gate.next(0), gate.next(5)), (None, Some(Next::Rest(1))));
        // 2 bytes of length, 3 bytes, 3 bytes of padding and a CRC.
        gate.add(&[3, 1, 1, 1, 0, 0, 0, 9, 9, 9]);
        assert_eq!(gate.next(0), None);
        gate.add(&[9, 0]);
        assert_eq!(gate.next(0), Some(Next::Fpdu(12)));
        gate.is_seen = true;
        gate.passed(12);
        assert_eq!((gate.next(0), gate.is_seen, gate.is_empty()), (None, false, false));
        assert_eq!(gate.next(7), Some(Next::Rest(1)));
        gate.passed(1);
        assert!(gate.is_empty());
    }

    #[test]
    fn a_gate_is_closed_until_its_time() {
        let mut gate = Gate { until: Some(Duration::from_millis(5)), ..Gate::default() };
        assert!(gate.waits(Duration::from_millis(4)) && !gate.waits(Duration::from_millis(5)));
        assert_eq!(gate.until, None);
    }
}
