//! Multicast groups by IP address: JOIN_IP_MCAST, JOIN_MCAST, LEAVE_MCAST. IBA A17.9.5 (RoCE: the
//! group's address is the MGID). On a port of a topology, the port joins at the subnet manager
//! ([`super::administration`]).
//!
//! A membership tells the program which address vector and Q_Key lead to the group. ATTACH_MCAST on
//! the device's own node attaches the receiving QP, and it also makes the host join the group.

use std::collections::BTreeSet;

use abi::Errno;
use abi::layout::Record;
use abi::ucma::connection::{EventAnswer, JoinIpMcast, JoinMcast, UdParam, event, join_flags};
use abi::ucma::id::{CreateIdAnswer, DestroyId, DestroyIdAnswer};
use abi::ucma::port_space;
use abi::ucma::sockaddr::Sockaddr;
use wire::sa::McMemberRecord;

use super::attributes::vector;
use super::binding::{parse, sized};
use super::channel::Event;
use super::dispatch::CmCall;
use super::id::Membership;
use super::resolving::path_between;
use super::subnet::mgid;
use super::{GROUP_QPN, ID_MEMBERS_MAX, Manager, USER_MEMBERS_MAX};
use crate::gids::{gid_of, ip_of};
use crate::objects::groups::is_multicast;
use crate::refusal::{Outcome, refuse};

impl Manager {
    pub(super) fn join_ip(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let JoinIpMcast { uid, addr, id, .. } = call.command.body();
        self.join_group(call, (id, uid), McMemberRecord::FULL, parse(addr.bytes())?)
    }

    pub(super) fn join(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let JoinMcast { uid, id, addr_size, join_flags, addr, .. } = call.command.body();
        if join_flags != join_flags::FULLMEMBER && join_flags != join_flags::SENDONLY_FULLMEMBER {
            return refuse(Errno::EINVAL, format!("membership {join_flags} is not known; 0 is full and 1 send-only"));
        }
        let state = match join_flags {
            join_flags::FULLMEMBER => McMemberRecord::FULL,
            _ => McMemberRecord::SEND_ONLY_FULL,
        };
        self.join_group(call, (id, uid), state, parse(sized(&addr, addr_size)?)?)
    }

    /// Joins a group for an id. `state`: the kind of membership in a subnet.
    fn join_group(
        &mut self,
        call: &CmCall<'_>,
        (name, uid): (u32, u64),
        state: u8,
        group: Option<Sockaddr>,
    ) -> Outcome<Vec<u8>> {
        self.check_room(call)?;
        let id = self.id(call, name)?;
        let gid = match group {
            Some(Sockaddr::Ip(addr)) => gid_of(addr.ip()),
            Some(Sockaddr::Ib(record)) => record.addr,
            None => return refuse(Errno::EINVAL, "there is no group to join"),
        };
        if !is_multicast(&gid) {
            let address = ip_of(&gid);
            return refuse(Errno::EINVAL, format!("{address} is not the address of a group"));
        }
        let Some(at) = id.attachment.filter(|_| id.is_datagram()) else {
            return refuse(
                Errno::EINVAL,
                format!("id {name:#x} is not for datagrams or not bound to a device yet; resolve its address first"),
            );
        };
        let (tos, qkey, members) = (id.options.tos, id.qkey, id.members.clone());
        let gid = match group {
            Some(Sockaddr::Ip(addr)) if at.fabric.is_some() => {
                mgid(addr.ip().to_canonical(), at.pkey, id.space != port_space::IPOIB)
            }
            _ => gid,
        };
        let user = self.user_with_room(call, name, &gid, &members)?;
        let joined = at.fabric.map(|_| (at, state));
        let member = Membership { channel: call.channel, id: name, uid, gid, joined, reported: 0 };
        let Some(member) = self.members.insert(member) else {
            return refuse(Errno::ENOMEM, "the agent's limit of memberships is reached, or there is no memory");
        };
        self.users.entry(user).or_default().members += 1;
        self.id(call, name)?.members.push(member);
        if at.fabric.is_some() {
            if let Err(refusal) = self.join_in_subnet(member, qkey) {
                self.remove_member(call.channel, member);
                self.id(call, name)?.members.pop();
                return Err(refusal);
            }
            return Ok(call.command.answer(&CreateIdAnswer { id: member }));
        }
        let path = path_between(&at, gid, false, tos, None);
        let param = UdParam { qp_num: GROUP_QPN, qkey, ah_attr: vector(&path, &at), ..UdParam::default() };
        let answer = EventAnswer { uid, id: member, event: event::MULTICAST_JOIN, param, ..EventAnswer::default() };
        self.queue(name, Event { answer, id: name, member: Some(member), request: None, sentence: String::new() });
        Ok(call.command.answer(&CreateIdAnswer { id: member }))
    }

    /// Checks that an id can become a member of a group besides the memberships that it has.
    /// Returns its user.
    fn user_with_room(&mut self, call: &CmCall<'_>, name: u32, gid: &[u8; 16], of_id: &[u32]) -> Outcome<u32> {
        let present: BTreeSet<[u8; 16]> =
            of_id.iter().filter_map(|member| self.members.get(*member)).map(|member| member.gid).collect();
        if present.contains(gid) {
            let address = ip_of(gid);
            return refuse(Errno::EADDRINUSE, format!("id {name:#x} is a member of {address} already"));
        }
        if of_id.len() >= ID_MEMBERS_MAX {
            return refuse(
                Errno::ENOMEM,
                format!("id {name:#x} has {ID_MEMBERS_MAX} memberships; the limit is reached"),
            );
        }
        let user = self.owner(call.channel)?.channel.peer.uid;
        let has = self.users.get(&user).map_or(0, |share| share.members);
        if self.apart && has >= USER_MEMBERS_MAX {
            return refuse(Errno::ENOMEM, format!("user {user} has {has} memberships; the limit is reached"));
        }
        Ok(user)
    }

    pub(super) fn leave(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let DestroyId { id: name, .. } = call.command.body();
        let Some(member) = self.members.get(name).filter(|member| member.channel == call.channel) else {
            return refuse(Errno::ENOENT, format!("membership {name:#x} does not belong to this event channel"));
        };
        let (id, events_reported) = (member.id, member.reported);
        self.remove_member(call.channel, name);
        let (dropped, event_bytes) = self.owner(call.channel)?.channel.take_out(|_, member| member == Some(name), drop);
        if let Some(id) = self.ids.get_mut(id) {
            id.members.retain(|member| *member != name);
            id.events.queued = id.events.queued.saturating_sub(dropped);
        }
        Ok(call.command.answer(&DestroyIdAnswer { events_reported, event_bytes }))
    }
}
