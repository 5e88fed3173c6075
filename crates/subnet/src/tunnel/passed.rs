//! Packets of programs that pass a link to another agent beside the tunnel, for the counters of the
//! ports behind it. Principal type: [`Passed`].
//!
//! ```text
//!  for each LID and service level:
//!  LID (2), level, tunnels before this one, packets (8), words of 4 bytes (8)
//! ```

/// The bytes of an entry.
const LEN: usize = 20;
/// Entries of one datagram, which so fits into packets of every network.
const MOST: usize = 50;

/// Packets that have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Their destination LID.
    pub dlid: u16,
    /// Their service level.
    pub sl: u8,
    /// The tunnels that they passed before this one.
    pub tunnels: u8,
    /// How many.
    pub packets: u64,
    /// Words of 4 bytes.
    pub words: u64,
}

/// The bodies of the datagrams that say this.
pub fn bodies(passed: &[Passed]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let emit = |one: &Passed| {
        let mut out = [0; LEN];
        out[..2].copy_from_slice(&one.dlid.to_be_bytes());
        (out[2], out[3]) = (one.sl, one.tunnels);
        out[4..12].copy_from_slice(&one.packets.to_be_bytes());
        out[12..].copy_from_slice(&one.words.to_be_bytes());
        out
    };
    passed.chunks(MOST).map(move |some| some.iter().flat_map(emit).collect())
}

/// Parses a body. `None`: it is malformed.
#[must_use]
pub fn parse(body: &[u8]) -> Option<Vec<Passed>> {
    let (entries, rest) = body.as_chunks::<LEN>();
    if !rest.is_empty() || entries.len() > MOST || entries.iter().any(|entry| entry[2] > 15) {
        return None;
    }
    let parse = |entry: &[u8; LEN]| {
        let [a, b, sl, tunnels, numbers @ ..] = *entry;
        let numbers = u128::from_be_bytes(numbers);
        let (packets, words) = ((numbers >> 64) as u64, numbers as u64);
        Passed { dlid: u16::from_be_bytes([a, b]), sl, tunnels, packets, words }
    };
    Some(entries.iter().map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let one = |dlid| Passed { dlid, sl: 3, tunnels: 2, packets: 1 << 40, words: u64::from(dlid) << 33 };
        let all: Vec<Passed> = (1..=120).map(one).collect();
        let bodies: Vec<Vec<u8>> = bodies(&all).collect();
        assert_eq!(bodies.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 400]);
        assert_eq!(bodies.iter().flat_map(|body| parse(body).unwrap()).collect::<Vec<_>>(), all);
        assert_eq!(bodies[0][..20], [0, 1, 3, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(parse(&bodies[0][..19]), None);
        assert_eq!(parse(&[16; LEN]), None, "no service level");
        assert_eq!(parse(&[0; LEN * (MOST + 1)]), None, "too many");
    }
}
