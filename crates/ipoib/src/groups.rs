//! The multicast groups of an interface: which are joined, and packets that wait for a group. Not
//! how a subnet manager is asked. Principal type: [`Groups`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wire::cm::Gid;

use crate::held::Held;
use crate::time::Time;

/// The most groups. The host's own groups beyond them are not joined.
pub(crate) const MOST: usize = 256;
/// How long an interface remains able to send to a group that it does not use.
const UNUSED: Duration = Duration::from_secs(300);
/// The shortest and the longest time until a refused group is tried again.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(16)];

/// How an interface is a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// It sends to the group.
    SendOnly,
    /// It sends and receives.
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Joined,
    Refused { again: Time, wait: Duration },
}

#[derive(Debug)]
struct Group {
    membership: Membership,
    state: State,
    used: Time,
    held: VecDeque<Vec<u8>>,
}

/// What to do about a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GroupStep {
    Join(Gid, Membership),
    Leave(Gid),
    Send(Gid, Vec<u8>),
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    table: BTreeMap<Gid, Group>,
    held: Held,
}

impl Groups {
    /// Whether packets can be sent to a group now.
    pub(crate) fn is_joined(&mut self, mgid: &Gid, now: Time) -> bool {
        let Some(group) = self.table.get_mut(mgid) else { return false };
        group.used = now;
        group.state == State::Joined
    }

    /// Whether a group is joined, or shall be.
    pub(crate) fn is_known(&self, mgid: &Gid) -> bool {
        self.table.contains_key(mgid)
    }

    /// Joins these groups as a full member, and leaves those that are no longer wanted.
    pub(crate) fn want(&mut self, wanted: &BTreeSet<Gid>, now: Time, steps: &mut Vec<GroupStep>) {
        let full = self.table.iter().filter(|(_, group)| group.membership == Membership::Full);
        let gone: Vec<Gid> = full.map(|(mgid, _)| *mgid).filter(|mgid| !wanted.contains(mgid)).collect();
        gone.into_iter().for_each(|mgid| self.leave(mgid, steps));
        for mgid in wanted {
            let known = self.table.get(mgid).is_some_and(|group| group.membership == Membership::Full);
            if !known && (self.table.contains_key(mgid) || self.table.len() < MOST) {
                self.join(*mgid, Membership::Full, now, steps);
            }
        }
    }

    /// Keeps a packet until its group is joined. Joins it to send, if it is unknown. Returns false
    /// if the packet is lost.
    pub(crate) fn hold(&mut self, mgid: Gid, packet: &[u8], now: Time, steps: &mut Vec<GroupStep>) -> bool {
        if !self.table.contains_key(&mgid) {
            if self.table.len() >= MOST {
                return false;
            }
            self.join(mgid, Membership::SendOnly, now, steps);
        }
        match self.table.get_mut(&mgid) {
            Some(group) if group.state == State::Asked => self.held.push(&mut group.held, packet),
            _ => false,
        }
    }

    /// A group was joined, or the join was refused.
    pub(crate) fn joined(&mut self, mgid: &Gid, joined: bool, now: Time, steps: &mut Vec<GroupStep>) {
        let Some(group) = self.table.get_mut(mgid) else { return };
        let held = self.held.take(&mut group.held);
        if joined {
            group.state = State::Joined;
            steps.extend(held.map(|packet| GroupStep::Send(*mgid, packet)));
        } else {
            let wait = match group.state {
                State::Refused { wait, .. } => wait,
                _ => AGAIN[0],
            };
            group.state = State::Refused { again: now + wait, wait };
        }
    }

    /// Tries refused groups again, and leaves groups to which nobody sends.
    pub(crate) fn tick(&mut self, now: Time, steps: &mut Vec<GroupStep>) {
        let mut gone = Vec::new();
        for (mgid, group) in &mut self.table {
            let unused = now.saturating_sub(group.used) >= UNUSED;
            match group.state {
                _ if group.membership == Membership::SendOnly && unused => gone.push(*mgid),
                State::Refused { again, wait } if again <= now => {
                    // The next refusal waits for twice as long.
                    let wait = (2 * wait).min(AGAIN[1]);
                    group.state = State::Refused { again: now + wait, wait };
                    steps.push(GroupStep::Join(*mgid, group.membership));
                }
                _ => {}
            }
        }
        gone.into_iter().for_each(|mgid| self.leave(mgid, steps));
    }

    /// Every group is asked for again: the subnet manager has forgotten them.
    pub(crate) fn rejoin(&mut self, steps: &mut Vec<GroupStep>) {
        steps.extend(self.table.iter().map(|(mgid, group)| GroupStep::Join(*mgid, group.membership)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    fn join(&mut self, mgid: Gid, membership: Membership, now: Time, steps: &mut Vec<GroupStep>) {
        let held = self.table.remove(&mgid).map(|group| group.held).unwrap_or_default();
        self.table.insert(mgid, Group { membership, state: State::Asked, used: now, held });
        steps.push(GroupStep::Join(mgid, membership));
    }

    fn leave(&mut self, mgid: Gid, steps: &mut Vec<GroupStep>) {
        if let Some(mut group) = self.table.remove(&mgid) {
            drop(self.held.take(&mut group.held));
            steps.push(GroupStep::Leave(mgid));
        }
    }
}
