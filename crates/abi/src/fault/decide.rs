//! Decides the fate of one packet by the rules in their order. The same seeds and packets give the
//! same decisions.
//!
//! Time is an argument. Random numbers come from a seed and the packet's number, so no state is
//! shared. Each rule counts the packets that it applies to. The first rule that acts decides,
//! except that rules which only delay packets do not end the search. Principal types: [`Armed`],
//! [`Verdict`].

use std::borrow::Borrow;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FaultKind, PLACES, Rule, Sort, Way, When};

/// The direction of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Outgoing.
    Out,
    /// Incoming.
    In,
}

/// The known facts about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The packet's direction.
    pub direction: Direction,
    /// The local device, by number.
    pub device: u32,
    /// The local port.
    pub port: u32,
    /// The address at the other end; zeros where it is not known.
    pub peer: [u8; 16],
    /// The local queue pair.
    pub qpn: u32,
    /// The queue pair at the other end.
    pub peer_qpn: u32,
    /// The byte of its opcode.
    pub opcode: u8,
    /// The syndrome of its AETH; 0 without one.
    pub syndrome: u8,
    /// The approximate length in bytes.
    pub len: u32,
    /// Whether it is a datagram of the connection manager.
    pub management: bool,
    /// The rules about links on its path, as bits ([`link_bit`]).
    pub links: u64,
}

/// The bit of the rule with this number among the rules about links.
#[must_use]
pub const fn link_bit(id: u32) -> u64 {
    1 << (id % PLACES)
}

const _: () = assert!(PLACES <= u64::BITS);

/// The known facts about a queue pair whose packets a rule may apply to. `None`: the fact differs
/// between packets.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The local device, by number.
    pub device: u32,
    /// Its own number.
    pub qpn: u32,
    /// The number of the queue pair at the other end.
    pub peer_qpn: Option<u32>,
    /// The local port and the address at the other end: of the path in use, and of the alternate
    /// path.
    pub paths: Option<[(u32, [u8; 16]); 2]>,
    /// The rules about links on its path, as bits ([`link_bit`]).
    pub links: Option<u64>,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered unchanged.
    #[default]
    Good,
    /// It is lost.
    Lost,
    /// It is delivered twice.
    Twice,
    /// It is delivered after the next packet.
    Late,
    /// This bit changes, to be taken modulo the packet's length.
    Damaged(u64),
    /// A ghost ACK follows it.
    Ghost,
}

/// A decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The fate of the packet.
    pub fate: Fate,
    /// The packet is delayed until this time, in nanoseconds; `None`: no rule delays packets of
    /// this kind.
    pub until: Option<u64>,
    /// The index of the rule that decided the fate. For a good packet, the index of the first rule
    /// that delayed it.
    pub by: Option<usize>,
    /// The packet is lost or damaged on a link of the topology, and not at its sender.
    pub on_link: bool,
}

/// Random numbers: one for each seed and position (splitmix64).
#[derive(Clone, Copy, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The number at position `n`.
    #[must_use]
    pub fn number(self, n: u64) -> u64 {
        let mut mixed = self.0.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Whether an event with probability `part` happens at position `n` of the sequence.
    #[must_use]
    pub fn happens(self, part: f64, n: u64) -> bool {
        // A double holds 53 bits.
        ((self.number(n) >> 11) as f64) < part * (1u64 << 53) as f64
    }
}

/// A rule with its counts.
#[derive(Debug)]
pub struct Armed {
    /// Its number.
    pub id: u32,
    /// The rule itself.
    pub rule: Rule,
    device: Option<u32>,
    peer: Option<[u8; 16]>,
    seen: AtomicU64,
    acted: AtomicU64,
    /// The time at which earlier packets have been sent, for a bandwidth limit.
    busy: AtomicU64,
}

impl Armed {
    /// A rule that has not been applied yet. A device in it must be a number by now.
    #[must_use]
    pub fn new(id: u32, rule: Rule) -> Self {
        let device = rule.select.device.as_ref().map(|device| device.parse().unwrap_or(u32::MAX));
        let peer = rule.select.peer.map(gid);
        let count = || AtomicU64::new(0);
        Self { id, rule, device, peer, seen: count(), acted: count(), busy: count() }
    }

    /// The number of packets or calls that the rule applied to, and how often it acted.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.seen.load(Ordering::Relaxed), self.acted.load(Ordering::Relaxed))
    }

    /// Counts one more packet that the rule applies to. Returns the packet's number, from 0, if the
    /// rule acts. The same order of calls gives the same results.
    pub fn acts(&self) -> Option<u64> {
        let n = self.seen.fetch_add(1, Ordering::Relaxed);
        let When { rate, nth, every, after, count, seed } = &self.rule.when;
        let number = n + 1;
        let due = nth.is_none_or(|nth| nth == number)
            && after.is_none_or(|after| number > after)
            && every.is_none_or(|every| (number - after.unwrap_or(0)).is_multiple_of(every.max(1)))
            && rate.is_none_or(|rate| Dice(*seed).happens(rate, n));
        if !due {
            return None;
        }
        let limit = count.unwrap_or(u64::MAX);
        let acted =
            self.acted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |acted| (acted < limit).then_some(acted + 1));
        acted.ok().map(|_| n)
    }

    /// Whether the rule applies to this packet.
    #[must_use]
    pub fn is_for(&self, facts: &Facts) -> bool {
        let select = &self.rule.select;
        let way = match (&self.rule.kind, select.direction) {
            // The sender decides for the whole path.
            _ if select.link.is_some() => facts.direction == Direction::Out,
            // The side without a receive request is the receiver of the packet.
            (FaultKind::Rnr, _) => facts.direction == Direction::In,
            (_, None | Some(Way::Out)) => facts.direction == Direction::Out,
            (_, Some(Way::In)) => facts.direction == Direction::In,
            (_, Some(Way::Both)) => true,
        };
        let sort = match select.opcode {
            None => !facts.management,
            Some(sort) => sort.has(facts),
        };
        way && sort
            && self.is_on_path(facts.links)
            && self.device.is_none_or(|device| device == facts.device)
            && select.port.is_none_or(|port| port == facts.port)
            && self.peer.is_none_or(|peer| peer == facts.peer)
            && select.qp.is_none_or(|qp| qp == facts.qpn || qp == facts.peer_qpn)
            && (self.rule.kind != FaultKind::GhostAck || Sort::Ack.has(facts))
    }

    /// Whether the link of the rule, if it has one, is on a path with these rules.
    #[must_use]
    pub fn is_on_path(&self, links: u64) -> bool {
        self.rule.select.link.is_none() || links & link_bit(self.id) != 0
    }

    /// Whether the rule may apply to a packet of this queue pair.
    #[must_use]
    pub fn may_concern(&self, pair: &Pair) -> bool {
        let select = &self.rule.select;
        let by = |(port, peer): &(u32, [u8; 16])| {
            select.port.is_none_or(|wanted| wanted == *port) && self.peer.is_none_or(|wanted| wanted == *peer)
        };
        self.rule.is_of_engines()
            && pair.links.is_none_or(|links| self.is_on_path(links))
            && self.device.is_none_or(|device| device == pair.device)
            && select.qp.is_none_or(|qp| qp == pair.qpn || pair.peer_qpn.is_none_or(|peer| qp == peer))
            && pair.paths.is_none_or(|paths| paths.iter().any(by))
    }

    /// Lets the packet wait until earlier packets have been sent at this rate. Returns the time at
    /// which this packet has been sent.
    fn slow(&self, bits: u64, len: u32, now: u64) -> u64 {
        let takes = u64::from(len).saturating_mul(8_000_000_000) / bits.max(1);
        let next = |busy: u64| Some(busy.max(now).saturating_add(takes));
        let before = self.busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or(now);
        before.max(now).saturating_add(takes)
    }
}

/// Decides the fate of one packet at time `now`, by the rules in their order.
#[must_use]
pub fn decide<A: Borrow<Armed>>(rules: &[A], facts: &Facts, now: u64) -> Verdict {
    let mut verdict = Verdict::default();
    for (index, armed) in rules.iter().enumerate() {
        let armed = armed.borrow();
        let kind = &armed.rule.kind;
        let waits = matches!(kind, FaultKind::Delay { .. } | FaultKind::Bandwidth(_));
        if !kind.is_of_packets() || !armed.is_for(facts) || (!waits && verdict.fate != Fate::Good) {
            continue;
        }
        let Some(n) = armed.acts() else { continue };
        let number = || Dice(!armed.rule.when.seed).number(n);
        match *kind {
            FaultKind::Loss => verdict.fate = Fate::Lost,
            FaultKind::Duplicate => verdict.fate = Fate::Twice,
            FaultKind::Reorder => verdict.fate = Fate::Late,
            FaultKind::Corrupt => verdict.fate = Fate::Damaged(number()),
            FaultKind::GhostAck => verdict.fate = Fate::Ghost,
            FaultKind::Delay { by, jitter } => {
                let more = if jitter == 0 { 0 } else { number() % (2 * jitter + 1) };
                let until = verdict.until.unwrap_or(now).saturating_add((by + more).saturating_sub(jitter));
                verdict.until = Some(until);
            }
            FaultKind::Bandwidth(bits) => {
                let until = armed.slow(bits, facts.len, now);
                verdict.until = Some(verdict.until.map_or(until, |other| other.saturating_add(until - now)));
            }
            _ => continue,
        }
        if !waits || verdict.by.is_none() {
            verdict.by = Some(index);
        }
        verdict.on_link |= !waits && armed.rule.select.link.is_some();
    }
    verdict
}

/// An address as a GID.
pub(super) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    }
}

impl Sort {
    /// Whether a packet is of this sort, by the lower five bits of its opcode (IBA 9.2.1).
    #[must_use]
    pub fn has(self, facts: &Facts) -> bool {
        const ACK: u8 = 0x11;
        let operation = facts.opcode & 0x1f;
        let answers = (0x0d..=0x12).contains(&operation);
        // Bits 6 and 5 of the syndrome: 00 is an ACK, 01 is RNR, 11 is a NAK.
        let plain = facts.syndrome & 0x60 == 0;
        if facts.management {
            return self == Self::Cm;
        }
        match self {
            Self::Send => matches!(operation, 0x00..=0x05 | 0x16 | 0x17),
            Self::Write => matches!(operation, 0x06..=0x0b | 0x1d),
            Self::Read => operation == 0x0c,
            Self::ReadResponse => (0x0d..=0x10).contains(&operation),
            Self::Atomic => matches!(operation, 0x13 | 0x14),
            Self::AtomicAck => operation == 0x12,
            Self::Ack => operation == ACK && plain,
            Self::Nak => operation == ACK && !plain,
            Self::Request => !answers,
            Self::Response => answers,
            Self::Cm => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::text::parse;

    fn facts() -> Facts {
        Facts {
            direction: Direction::Out,
            device: 0,
            port: 1,
            peer: gid(IpAddr::from([10, 0, 0, 2])),
            qpn: 0x11,
            peer_qpn: 0x22,
            opcode: 0x04,
            syndrome: 0,
            len: 1000,
            management: false,
            links: 0,
        }
    }

    fn armed(texts: &[&str]) -> Vec<Armed> {
        (1..).zip(texts).map(|(id, text)| Armed::new(id, parse(text).expect("a rule"))).collect()
    }

    fn fates(texts: &[&str], count: usize) -> Vec<Fate> {
        let rules = armed(texts);
        (0..count).map(|_| decide(&rules, &facts(), 0).fate).collect()
    }

    #[test]
    fn a_rule_may_harm_the_connections_that_it_is_for() {
        let here = gid(IpAddr::from([10, 0, 0, 1]));
        for (text, expected) in [
            ("loss 5%", true),
            ("bandwidth 1gbit direction in", true),
            ("loss qp 0x11", true),
            ("loss qp 0x22 nth 3", true),
            ("loss qp 0x33", false),
            ("loss peer 10.0.0.1", true),
            ("loss peer 10.0.0.2", false),
            ("loss opcode cm", false),
            ("rnr", false),
            ("fail create_qp ENOMEM", false),
        ] {
            let rule = parse(text).expect("a rule");
            assert_eq!(rule.may_harm([0x11, 0x22], |gid| *gid == here), expected, "{text}");
        }
    }

    #[test]
    fn fates_come_as_often_as_was_asked_for_and_again_with_the_seed() {
        let all = |seed: u64| {
            let kinds = ["loss", "duplicate", "reorder", "corrupt"];
            let texts = (0..).zip(kinds).map(|(n, kind)| format!("{kind} 10% seed {}", seed * 10 + n));
            let texts: Vec<String> = texts.collect();
            fates(&texts.iter().map(String::as_str).collect::<Vec<_>>(), 100_000)
        };
        let some = all(5);
        assert!(some == all(5) && some != all(6));
        let count = |fate: fn(&Fate) -> bool| some.iter().filter(|one| fate(one)).count();
        let counts = [
            count(|fate| *fate == Fate::Lost),
            count(|fate| *fate == Fate::Twice),
            count(|fate| *fate == Fate::Late),
            count(|fate| matches!(fate, Fate::Damaged(_))),
        ];
        for (count, expected) in counts.into_iter().zip([10_000_usize, 9_000, 8_100, 7_290]) {
            assert!(count.abs_diff(expected) < 500, "{counts:?}");
        }
    }

    #[test]
    fn rules_act_when_they_say() {
        let lost = |text: &str| {
            let fates = fates(&[text], 12);
            (1..).zip(fates).filter(|(_, fate)| *fate == Fate::Lost).map(|(n, _)| n).collect::<Vec<i32>>()
        };
        assert_eq!(lost("loss nth 3"), [3]);
        assert_eq!(lost("loss every 4"), [4, 8, 12]);
        assert_eq!(lost("loss every 4 after 1"), [5, 9]);
        assert_eq!(lost("loss after 10"), [11, 12]);
        assert_eq!(lost("loss count 2"), [1, 2]);
        assert_eq!(lost("loss 0%"), [0; 0]);
    }

    #[test]
    fn rules_are_for_what_they_say() {
        let is_for = |text: &str, facts: Facts| armed(&[text])[0].is_for(&facts);
        let base = facts();
        for (text, yes) in [
            ("loss", true),
            ("loss qp 0x11", true),
            ("loss qp 0x22", true),
            ("loss qp 0x33", false),
            ("loss peer 10.0.0.2", true),
            ("loss peer 10.0.0.3", false),
            ("loss device 0 port 1", true),
            ("loss device 1", false),
            ("loss direction in", false),
            ("loss direction both", true),
            ("loss opcode send", true),
            ("loss opcode request", true),
            ("loss opcode write", false),
            ("loss opcode cm", false),
            ("ghost-ack", false),
            ("rnr", false),
        ] {
            assert_eq!(is_for(text, base), yes, "{text}");
        }
        let ack = Facts { opcode: 0x11, syndrome: 0x1f, ..base };
        let nak = Facts { opcode: 0x11, syndrome: 0x60, ..base };
        assert!(is_for("loss opcode ack", ack) && !is_for("loss opcode nak", ack) && is_for("ghost-ack", ack));
        assert!(
            !is_for("loss opcode ack", nak) && is_for("loss opcode nak", nak) && is_for("loss opcode response", nak)
        );
        let management = Facts { management: true, ..base };
        assert!(!is_for("loss", management) && is_for("loss opcode cm", management));
        assert!(is_for("rnr", Facts { direction: Direction::In, ..base }));
    }

    #[test]
    fn rules_concern_queue_pairs_whose_packets_they_may_be_for() {
        let (here, spare) =
            ((1, gid("10.0.0.2".parse().expect("an address"))), (2, gid("10.0.0.3".parse().expect("one"))));
        let connected = Pair { device: 0, qpn: 0x11, peer_qpn: Some(0x22), paths: Some([here, spare]), links: Some(0) };
        let datagrams = Pair { peer_qpn: None, paths: None, links: None, ..connected };
        for (text, of_connection, of_datagrams) in [
            ("loss", true, true),
            ("rnr 5%", true, true),
            ("loss qp 0x11", true, true),
            ("loss qp 0x22", true, true),
            ("loss qp 0x33", false, true),
            ("loss peer 10.0.0.2", true, true),
            ("loss peer 10.0.0.3", true, true),
            ("loss peer 10.0.0.4", false, true),
            ("loss port 1", true, true),
            ("loss port 1 peer 10.0.0.3", false, true),
            ("loss port 3", false, true),
            ("loss device 1", false, false),
            ("loss opcode cm", false, false),
            ("fail create_qp ENOMEM", false, false),
        ] {
            let found = [connected, datagrams].map(|pair| armed(&[text])[0].may_concern(&pair));
            assert_eq!(found, [of_connection, of_datagrams], "{text}");
        }
    }

    #[test]
    fn a_slow_line_takes_its_time_and_delays_add_up() {
        let rules = armed(&["bandwidth 8mbit", "delay 5us"]);
        let until = |now| decide(&rules, &facts(), now).until;
        // A thousand bytes take a millisecond.
        assert_eq!(until(0), Some(1_005_000));
        assert_eq!(until(0), Some(2_005_000));
        assert_eq!(until(10_000_000), Some(11_005_000));
        let jittered = armed(&["delay 10us jitter 2us seed 3"]);
        let times: Vec<_> = (0..1000).filter_map(|_| decide(&jittered, &facts(), 0).until).collect();
        assert!(times.iter().all(|at| (8_000..=12_000).contains(at)) && times.iter().any(|at| *at != times[0]));
    }

    #[test]
    fn random_numbers_are_those_of_splitmix64() {
        let numbers = [0, 1, 2].map(|n| Dice(0).number(n));
        assert_eq!(numbers, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(Dice(0x9e37_79b9_7f4a_7c15).number(0), numbers[1], "a seed is a position in the same sequence");
    }

    /// The number of a damaged bit must not follow from the number that decided on the damage.
    #[test]
    fn a_damaged_packet_and_a_jitter_have_random_numbers_of_their_own() {
        let corrupt = armed(&["corrupt seed 7"]);
        assert_eq!(decide(&corrupt, &facts(), 0).fate, Fate::Damaged(Dice(!7).number(0)));
        let jittered = armed(&["delay 10ns jitter 1ns"]);
        let mut times: Vec<_> = (0..100).filter_map(|_| decide(&jittered, &facts(), 0).until).collect();
        times.sort_unstable();
        times.dedup();
        assert_eq!(times, [9, 10, 11]);
    }

    #[test]
    fn a_rule_that_is_not_for_a_packet_neither_acts_nor_counts() {
        let inbound = Facts { direction: Direction::In, ..facts() };
        for (text, facts) in [("loss qp 0x33", facts()), ("rnr", inbound), ("fail create_qp ENOMEM", facts())] {
            let rules = armed(&[text]);
            assert_eq!((decide(&rules, &facts, 0), rules[0].counts()), (Verdict::default(), (0, 0)), "{text}");
        }
        let rules = armed(&["loss every 3"]);
        for _ in 0..7 {
            let _ = decide(&rules, &facts(), 0);
        }
        assert_eq!(rules[0].counts(), (7, 2));
    }

    #[test]
    fn a_verdict_names_the_rule_that_decided() {
        for (texts, by, fate) in [
            (&["delay 1us", "delay 2us"][..], 0, Fate::Good),
            (&["delay 1us", "loss"], 1, Fate::Lost),
            (&["loss", "delay 1us"], 0, Fate::Lost),
            (&["duplicate", "loss"], 0, Fate::Twice),
        ] {
            let verdict = decide(&armed(texts), &facts(), 0);
            assert_eq!((verdict.by, verdict.fate), (Some(by), fate), "{texts:?}");
        }
        let ack = Facts { opcode: 0x11, syndrome: 0x1f, ..facts() };
        assert_eq!(decide(&armed(&["ghost-ack"]), &ack, 0).fate, Fate::Ghost);
    }

    #[test]
    fn a_delay_before_a_slow_line_adds_up_at_any_time() {
        for now in [0, 10_000_000] {
            let rules = armed(&["delay 5us", "bandwidth 8mbit"]);
            assert_eq!(decide(&rules, &facts(), now).until, Some(now + 1_005_000));
        }
    }

    #[test]
    fn each_sort_has_its_operations() {
        for (sort, operations) in [
            (Sort::Send, &[0x00, 0x05, 0x16, 0x17][..]),
            (Sort::Write, &[0x06, 0x0b, 0x1d]),
            (Sort::Read, &[0x0c]),
            (Sort::ReadResponse, &[0x0d, 0x10]),
            (Sort::Ack, &[0x11]),
            (Sort::AtomicAck, &[0x12]),
            (Sort::Atomic, &[0x13, 0x14]),
        ] {
            for opcode in [0x00, 0x05, 0x06, 0x0b, 0x0c, 0x0d, 0x10, 0x11, 0x12, 0x13, 0x14, 0x16, 0x17, 0x1d] {
                let has = sort.has(&Facts { opcode: 0xa0 | opcode, ..facts() });
                assert_eq!(has, operations.contains(&opcode), "{sort:?} and {opcode:#04x}");
            }
        }
    }

    #[test]
    fn a_rule_about_a_link_is_for_packets_on_paths_over_it() {
        let rules = armed(&["loss link S1[3]", "corrupt link \"S 2\"[1] direction in"]);
        let on = |links| Facts { links, ..facts() };
        assert_eq!(decide(&rules, &on(0), 0), Verdict::default());
        let lost = decide(&rules, &on(link_bit(1)), 0);
        assert_eq!((lost.fate, lost.by, lost.on_link), (Fate::Lost, Some(0), true));
        // The direction is that of the port, and the agent knows it: the sender decides.
        let damaged = decide(&rules, &on(link_bit(2)), 0);
        assert!(matches!(damaged.fate, Fate::Damaged(_)) && damaged.on_link);
        let arriving = Facts { direction: Direction::In, ..on(u64::MAX) };
        assert_eq!(decide(&rules, &arriving, 0), Verdict::default());
        assert!(!decide(&armed(&["loss"]), &on(0), 0).on_link);
        let pair = |links| Pair { device: 0, qpn: 1, peer_qpn: None, paths: None, links };
        let concerned =
            [None, Some(0), Some(link_bit(1)), Some(link_bit(2))].map(|links| rules[0].may_concern(&pair(links)));
        assert_eq!(concerned, [true, false, true, false]);
    }
}
