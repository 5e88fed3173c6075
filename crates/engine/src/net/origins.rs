//! The last senders: for each, the bytes that its ICRCs cover beside the packets, and the next
//! identification. Packets themselves are parsed in [`crate::net::deliver`]. Principal type:
//! [`Origins`].

use wire::icrc::Envelope;

use crate::net::datagrams::Datagrams;

/// How many senders are remembered; each source port has one place.
const PLACES: usize = 16;

/// The last senders.
#[derive(Default)]
pub(crate) struct Origins {
    places: [Option<Origin>; PLACES],
}

/// A socket of another host.
struct Origin {
    from: [u8; 16],
    to: [u8; 16],
    port: u16,
    envelope: Envelope,
    /// The identification that its next datagram will have, if the sender numbers its datagrams.
    next: u16,
}

impl Origins {
    /// The bytes that the ICRCs of these datagrams cover beside the packets, and the likely
    /// identification of the first datagram.
    pub(crate) fn expect(&mut self, datagrams: &Datagrams) -> (Envelope, u16) {
        let Datagrams { from, to, from_port: port, .. } = *datagrams;
        let place = &mut self.places[usize::from(port) % PLACES];
        match place {
            Some(known) if known.port == port && known.from == from && known.to == to => (known.envelope, known.next),
            _ => {
                let envelope = Envelope::new(&from, &to, port);
                *place = Some(Origin { from, to, port, envelope, next: 0 });
                (envelope, 0)
            }
        }
    }

    /// The first of the datagrams in the last [`Origins::expect`] for this port had the
    /// identification `id`. Sockets that do not always send 0 count their calls.
    pub(crate) fn began(&mut self, port: u16, id: u16) {
        if let Some(known) = &mut self.places[usize::from(port) % PLACES] {
            known.next = if id == 0 { 0 } else { id.wrapping_add(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(from: u8, from_port: u16) -> Datagrams {
        Datagrams { from: [from; 16], to: [9; 16], from_port, traffic_class: 0, hop_limit: 0, segment: 0 }
    }

    #[test]
    fn senders_are_told_apart_and_those_that_count_are_followed() {
        let mut origins = Origins::default();
        let (first, id) = origins.expect(&datagrams(1, 0xc000));
        assert_eq!((first, id), (Envelope::new(&[1; 16], &[9; 16], 0xc000), 0));
        origins.began(0xc000, 77);
        let (_, id) = origins.expect(&datagrams(1, 0xc001));
        assert_eq!(id, 0);
        origins.began(0xc001, 0);
        assert_eq!(origins.expect(&datagrams(1, 0xc000)), (first, 78));
        assert_eq!(origins.expect(&datagrams(1, 0xc001)).1, 0);
        let (other, id) = origins.expect(&datagrams(2, 0xc000));
        assert_eq!((other, id), (Envelope::new(&[2; 16], &[9; 16], 0xc000), 0));
        origins.began(0xc000, u16::MAX);
        assert_eq!(origins.expect(&datagrams(2, 0xc000)).1, 0);
        assert_eq!(origins.expect(&datagrams(2, 0xc010)).1, 0, "a place has one owner");
        assert_eq!(origins.expect(&datagrams(2, 0xc000)), (other, 0));
    }
}
