//! The neighbours of an interface: which link-layer address an IP address has, and packets that
//! wait for it. Not the messages that find it. Principal type: [`Neighbours`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::address::LinkAddress;
use crate::held::Held;
use crate::time::Time;

/// The most neighbours. To make room, the one that was used least recently goes.
pub(crate) const MOST: usize = 1024;
/// How long an answer counts, and how long a neighbour that is not used is kept.
const REACHABLE: Duration = Duration::from_secs(30);
const UNUSED: Duration = Duration::from_secs(60);
/// How often a neighbour is asked, once per [`ASK`].
const TRIES: u8 = 3;
pub(crate) const ASK: Duration = Duration::from_secs(1);

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its link-layer address has been asked for.
    Asked { tries: u8 },
    /// The path to its port has been asked for.
    NeedsPath(LinkAddress),
    /// Packets can be sent. `probes`: unanswered questions whether it is still there.
    Known { link: LinkAddress, probes: u8 },
}

#[derive(Debug)]
struct Neighbour {
    state: State,
    /// When it was asked last.
    asked: Time,
    /// When it last said where it is.
    confirmed: Time,
    used: Time,
    held: VecDeque<Vec<u8>>,
}

/// What a neighbour's message says about its link-layer address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) ip: IpAddr,
    pub(crate) link: LinkAddress,
    /// It has asked for an address of this host: an unknown neighbour is added.
    pub(crate) asks: bool,
    /// It has announced the address to all hosts, without a request: its port may have another LID.
    pub(crate) announces: bool,
}

/// What to do about a neighbour.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NeighbourStep {
    /// Ask everybody who has the address.
    Ask(IpAddr),
    /// Ask the neighbour itself whether it still has the address.
    Probe(IpAddr, LinkAddress),
    /// The path to this port is needed.
    Resolve(LinkAddress),
    /// Send this packet.
    Send(LinkAddress, Vec<u8>),
    /// Nobody has the address: this packet cannot be sent.
    Unreachable(Vec<u8>),
    /// No neighbour has this link-layer address any more.
    Forget(LinkAddress),
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    table: BTreeMap<IpAddr, Neighbour>,
    held: Held,
}

impl Neighbours {
    /// The link-layer address of a neighbour to which packets can be sent now.
    pub(crate) fn find(&mut self, ip: IpAddr, now: Time) -> Option<LinkAddress> {
        let neighbour = self.table.get_mut(&ip)?;
        neighbour.used = now;
        match neighbour.state {
            State::Known { link, .. } => Some(link),
            _ => None,
        }
    }

    /// Keeps a packet until the neighbour is known. Begins to ask for it, if nobody has asked yet.
    /// Returns false if the packet is lost.
    pub(crate) fn hold(&mut self, ip: IpAddr, packet: &[u8], now: Time, steps: &mut Vec<NeighbourStep>) -> bool {
        if !self.table.contains_key(&ip) {
            if !self.make_room(steps) {
                return false;
            }
            steps.push(NeighbourStep::Ask(ip));
            self.insert(ip, State::Asked { tries: 1 }, now);
        }
        let Some(neighbour) = self.table.get_mut(&ip) else { return false };
        neighbour.used = now;
        self.held.push(&mut neighbour.held, packet)
    }

    /// A neighbour has sent its link-layer address.
    pub(crate) fn learn(&mut self, told: Told, now: Time, steps: &mut Vec<NeighbourStep>) {
        let Told { ip, link, asks, announces } = told;
        let Some(neighbour) = self.table.get_mut(&ip) else {
            if asks && self.make_room(steps) {
                self.insert(ip, State::NeedsPath(link), now);
                self.find_path(ip, link, now, steps);
            }
            return;
        };
        let since = now.saturating_sub(neighbour.confirmed);
        neighbour.confirmed = now;
        match neighbour.state {
            State::Known { link: known, .. } if known == link => {
                neighbour.state = State::Known { link, probes: 0 };
                if announces && since >= ASK {
                    steps.push(NeighbourStep::Resolve(link));
                }
            }
            State::NeedsPath(known) if known == link => {}
            before => {
                neighbour.state = State::NeedsPath(link);
                self.find_path(ip, link, now, steps);
                if let State::Known { link: known, .. } | State::NeedsPath(known) = before {
                    self.forget_unless_used(known, steps);
                }
            }
        }
    }

    /// Asks for the path to a port, unless another neighbour at this port already has the path.
    fn find_path(&mut self, ip: IpAddr, link: LinkAddress, now: Time, steps: &mut Vec<NeighbourStep>) {
        let is_known = |one: &Neighbour| matches!(one.state, State::Known { link: known, .. } if known == link);
        if self.table.values().any(is_known) {
            self.path_found(ip, link, now, steps);
        } else {
            steps.push(NeighbourStep::Resolve(link));
        }
    }

    fn path_found(&mut self, ip: IpAddr, link: LinkAddress, now: Time, steps: &mut Vec<NeighbourStep>) {
        let Some(neighbour) = self.table.get_mut(&ip) else { return };
        (neighbour.state, neighbour.confirmed) = (State::Known { link, probes: 0 }, now);
        steps.extend(self.held.take(&mut neighbour.held).map(|packet| NeighbourStep::Send(link, packet)));
    }

    /// The neighbours at this link-layer address may have another address by now, because the port
    /// refuses or ends connections. Asks all hosts for them, at most once in [`ASK`] each.
    pub(crate) fn doubt(&mut self, link: &LinkAddress, now: Time, steps: &mut Vec<NeighbourStep>) {
        for (ip, neighbour) in &mut self.table {
            let is_there = matches!(&neighbour.state, State::Known { link: known, .. } if known == link);
            if is_there && now.saturating_sub(neighbour.asked) >= ASK {
                neighbour.asked = now;
                steps.push(NeighbourStep::Ask(*ip));
            }
        }
    }

    /// A known neighbour has answered without saying where it is.
    pub(crate) fn confirm(&mut self, ip: IpAddr, now: Time) {
        if let Some(neighbour) = self.table.get_mut(&ip)
            && let State::Known { link, .. } = neighbour.state
        {
            (neighbour.confirmed, neighbour.state) = (now, State::Known { link, probes: 0 });
        }
    }

    /// The path to a port was found, or there is none.
    pub(crate) fn resolved(&mut self, link: LinkAddress, found: bool, now: Time, steps: &mut Vec<NeighbourStep>) {
        let waiting = |neighbour: &Neighbour| neighbour.state == State::NeedsPath(link);
        let all: Vec<IpAddr> = self.table.iter().filter(|(_, one)| waiting(one)).map(|(ip, _)| *ip).collect();
        for ip in all {
            if !found {
                self.remove(ip, steps);
                continue;
            }
            self.path_found(ip, link, now, steps);
        }
    }

    /// Asks again, and removes neighbours that do not answer or are not used.
    pub(crate) fn tick(&mut self, now: Time, steps: &mut Vec<NeighbourStep>) {
        let mut gone = Vec::new();
        for (ip, neighbour) in &mut self.table {
            let since = |then: Time| now.saturating_sub(then);
            match &mut neighbour.state {
                State::Asked { tries } if since(neighbour.asked) >= ASK => {
                    if *tries == TRIES {
                        gone.push(*ip);
                    } else {
                        (*tries, neighbour.asked) = (*tries + 1, now);
                        steps.push(NeighbourStep::Ask(*ip));
                    }
                }
                State::Known { .. } if since(neighbour.used) >= UNUSED => gone.push(*ip),
                State::Known { link, probes } if since(neighbour.confirmed) >= REACHABLE => {
                    let due = *probes == 0 && neighbour.used > neighbour.confirmed;
                    let overdue = *probes > 0 && since(neighbour.asked) >= ASK;
                    if overdue && *probes == TRIES {
                        gone.push(*ip);
                    } else if due || overdue {
                        (*probes, neighbour.asked) = (*probes + 1, now);
                        steps.push(NeighbourStep::Probe(*ip, *link));
                    }
                }
                State::NeedsPath(_) if since(neighbour.confirmed) >= REACHABLE => gone.push(*ip),
                _ => {}
            }
        }
        gone.into_iter().for_each(|ip| self.remove(ip, steps));
    }

    /// The link-layer addresses to which packets can be sent.
    pub(crate) fn links(&self) -> BTreeSet<LinkAddress> {
        let link = |neighbour: &Neighbour| match neighbour.state {
            State::Known { link, .. } => Some(link),
            _ => None,
        };
        self.table.values().filter_map(link).collect()
    }

    /// Whether nothing has to be done as time passes.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    fn insert(&mut self, ip: IpAddr, state: State, now: Time) {
        let neighbour = Neighbour { state, asked: now, confirmed: now, used: now, held: VecDeque::new() };
        self.table.insert(ip, neighbour);
    }

    fn remove(&mut self, ip: IpAddr, steps: &mut Vec<NeighbourStep>) {
        let Some(mut neighbour) = self.table.remove(&ip) else { return };
        steps.extend(self.held.take(&mut neighbour.held).map(NeighbourStep::Unreachable));
        if let State::Known { link, .. } | State::NeedsPath(link) = neighbour.state {
            self.forget_unless_used(link, steps);
        }
    }

    fn forget_unless_used(&self, link: LinkAddress, steps: &mut Vec<NeighbourStep>) {
        if !self.has(link) {
            steps.push(NeighbourStep::Forget(link));
        }
    }

    /// Whether a neighbour has this link-layer address.
    pub(crate) fn has(&self, link: LinkAddress) -> bool {
        let has = |one: &Neighbour| matches!(one.state, State::Known { link: other, .. } | State::NeedsPath(other) if other == link);
        self.table.values().any(has)
    }

    /// Makes room for one more neighbour. Neighbours that are being asked for are not removed.
    fn make_room(&mut self, steps: &mut Vec<NeighbourStep>) -> bool {
        if self.table.len() < MOST {
            return true;
        }
        let known = self.table.iter().filter(|(_, one)| matches!(one.state, State::Known { .. }));
        let oldest = known.min_by_key(|(_, one)| one.used).map(|(ip, _)| *ip);
        oldest.is_some_and(|ip| {
            self.remove(ip, steps);
            true
        })
    }
}
