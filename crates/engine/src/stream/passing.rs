//! How bytes pass the gate of a stream, as the fault rules want it. Adds to [`Qp`].

use abi::capture::{path, record_flag};
use abi::fault::Direction;
use protocol::State;

use super::gate::Next;
use super::memory::Access;
use super::{Live, duration};
use crate::qp::{Inner, Qp};

impl Qp {
    /// Passes bytes that have arrived to the stream, as the rules want it.
    #[cold]
    pub(super) fn pass_gate(&self, inner: &mut Inner, live: &mut Live) {
        let now = duration(self.engine().now());
        while !live.gate.is_empty() && !live.gate.waits(now) {
            let is_ruled = self.engine().faults.is_on() && inner.state != State::Err;
            let Some(missing) = live.stream.missing().filter(|_| is_ruled) else {
                return self.pass_all(inner, live);
            };
            match live.gate.next(missing) {
                None => return,
                Some(Next::Rest(len)) => {
                    self.show_stream(&live.addresses, path::WIRE_IN, record_flag::INSIDE, live.gate.first(len));
                    self.pass(inner, live, len);
                }
                Some(Next::Fpdu(len)) => {
                    if !live.gate.is_seen && !self.sees(inner, live, len) {
                        return;
                    }
                    if !live.gate.waits(now) {
                        self.pass(inner, live, len);
                    }
                }
            }
        }
    }

    /// Lets the rules see the first FPDU. Returns false if they have reset the connection.
    fn sees(&self, inner: &mut Inner, live: &mut Live, len: usize) -> bool {
        let fpdu = live.gate.first(len);
        let harm = self.harm(Direction::In, inner.attributes.port_num, &live.addresses, fpdu);
        self.show_fpdu(&live.addresses, path::WIRE_IN, fpdu, &harm.words);
        (live.gate.is_seen, live.gate.until) = (true, harm.until);
        if harm.resets {
            live.gate.clear();
            live.stream.abort();
            self.heed_events(inner, live);
        }
        !harm.resets
    }

    fn pass(&self, inner: &mut Inner, live: &mut Live, len: usize) {
        let now = duration(self.engine().now());
        let Live { stream, receives, gate, .. } = live;
        stream.receive(now, gate.first(len), &mut Access { qp: self, inner, receives });
        gate.passed(len);
        self.heed_events(inner, live);
    }

    /// Passes everything without regard to rules: there are none any more, or no FPDU will be
    /// whole. A queue pair in error takes nothing.
    pub(super) fn pass_all(&self, inner: &mut Inner, live: &mut Live) {
        let len = live.gate.len();
        if inner.state != State::Err && len > 0 {
            let inside = if live.stream.is_between() { 0 } else { record_flag::INSIDE };
            self.show_stream(&live.addresses, path::WIRE_IN, inside, live.gate.first(len));
            self.pass(inner, live, len);
        }
        live.gate.clear();
    }
}
