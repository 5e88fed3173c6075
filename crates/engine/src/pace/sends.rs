//! Holds the sends of a QP to its rate limit. Adds to [`Qp`].

use abi::qp::attr;
use protocol::Time;
use wire::Psn;

use super::{RateLimit, slow_path};
use crate::qp::{Inner, Qp};
use crate::special::Special;

impl Qp {
    /// The rate that the program has set.
    #[must_use]
    pub fn rate_limit(&self) -> RateLimit {
        self.lock().pace.as_ref().map_or(RateLimit::default(), |pace| pace.limit)
    }

    /// Sets the program's rate, or applies the rate of a new path.
    pub(crate) fn set_pace(&self, inner: &mut Inner, limit: Option<RateLimit>) {
        let path = slow_path(inner.attributes.dest.static_rate);
        let limit = limit.unwrap_or_else(|| inner.pace.as_ref().map_or(RateLimit::default(), |pace| pace.limit));
        if limit.kbps == 0 && path == 0 {
            inner.pace = None;
            return inner.link.special.set(Special::PACED, false);
        }
        let now = self.engine().now();
        inner.pace.get_or_insert_default().change(now, limit, path);
        inner.link.special.set(Special::PACED, true);
    }

    /// Applies a change of attributes to the rates.
    pub(crate) fn repace(&self, inner: &mut Inner, mask: u32, rate: RateLimit) {
        if mask & (attr::RATE_LIMIT | attr::AV) != 0 {
            self.set_pace(inner, (mask & attr::RATE_LIMIT != 0).then_some(rate));
        }
    }

    /// Whether the packet `psn` of a connection must wait. Then a timer is set. Packets that are
    /// retransmitted do not wait.
    pub(crate) fn must_wait(&self, inner: &mut Inner, psn: Psn, now: Time) -> bool {
        match &inner.pace {
            Some(pace) if psn == inner.requester.sq_psn() => {
                let until = pace.wait(now, pace.path);
                self.put_off(inner, until)
            }
            _ => false,
        }
    }

    /// Charges a packet of a connection.
    #[inline]
    pub(crate) fn charge(&self, inner: &mut Inner, len: u32, now: Time) {
        if let Some(pace) = &mut inner.pace {
            pace.charge(now, len, pace.path);
        }
    }

    /// Whether a datagram must wait. Its address handle may have its own static rate.
    #[inline]
    pub(crate) fn datagram_must_wait(&self, inner: &mut Inner, static_rate: u8, now: Time) -> bool {
        match &inner.pace {
            Some(pace) => {
                let until = pace.wait(now, slow_path(static_rate));
                self.put_off(inner, until)
            }
            None => false,
        }
    }

    /// Charges a datagram.
    #[inline]
    pub(crate) fn charge_datagram(&self, inner: &mut Inner, len: u32, static_rate: u8, now: Time) {
        let path = if static_rate == 0 { 0 } else { slow_path(static_rate) };
        if inner.pace.is_some() || path != 0 {
            inner.pace.get_or_insert_default().charge(now, len, path);
            inner.link.special.set(Special::PACED, true);
        }
    }

    fn put_off(&self, inner: &mut Inner, until: Option<Time>) -> bool {
        let Some(until) = until else { return false };
        self.look_again(inner, until);
        true
    }
}
