//! The NETLINK_RDMA node: answers programs like `rdma` about devices, links and objects from the
//! agent's tables, as a kernel does.
//!
//! A connection stands for a netlink socket. The path redirector makes it when a program opens a
//! netlink socket. Each datagram holds requests. Each request is answered as Linux does
//! (`drivers/infiniband/core/nldev.c`): with the facts, with an errno, or message by message up to
//! DONE. Nothing can be changed here. As on the admin node, a long answer is sent in pieces, each
//! when there is room for it. The content of messages is in [`facts`] and [`objects`]. Principal
//! type: [`Dump`].

mod facts;
mod objects;

use std::collections::VecDeque;

use abi::Errno;
use abi::netlink::{Header, Request, Writer, command, flag, messages};
use shm::socket::Socket;

use crate::admin::telling::Tell;
use crate::admin::{self, QueryOutcome, Verdict};
use crate::asker::{Asker, asker};
use crate::cm::Manager;
use crate::foreign::Foreign;
use crate::headroom;
use crate::mads::Mads;
use crate::world::World;
use objects::{Class, Cursor};

/// The answers to the requests of one datagram.
#[derive(Debug)]
struct Dump {
    asker: Asker,
    requests: VecDeque<(Header, Vec<u8>)>,
    current: Option<(Header, DumpCursor)>,
    /// The packet to send next.
    packet: Writer,
}

/// The rest of an answer.
#[derive(Debug)]
enum DumpCursor {
    /// Devices from this index on.
    Devices(usize),
    /// Ports of a device after this number.
    Ports(usize, u32),
    /// Counts of objects, for devices from this index on; or for one device only, without an end
    /// message.
    Summaries { device: usize, only: bool, count: objects::IdCount },
    /// Objects of a device.
    Objects(Cursor),
    /// Only the end message.
    End,
}

/// Receives one datagram from `socket`.
pub(crate) fn serve(socket: &Foreign<Socket>, buffer: &mut [u8]) -> QueryOutcome {
    let len = match admin::take(socket, buffer) {
        Ok(len) => len,
        Err(verdict) => return QueryOutcome::Over(verdict),
    };
    if !headroom::is_there() {
        return QueryOutcome::Over(Verdict::Ends);
    }
    let asked = messages(&buffer[..len]).filter(|(header, _)| header.wants_answer());
    let requests: VecDeque<_> = asked.map(|(header, body)| (header, body.to_vec())).collect();
    if requests.is_empty() {
        return QueryOutcome::Over(Verdict::Continues);
    }
    QueryOutcome::Tell(
        Box::new(Dump { asker: asker(socket), requests, current: None, packet: Writer::default() }),
        false,
    )
}

impl Tell for Dump {
    fn go_on(&mut self, world: &World, (manager, _): (&Manager, &Mads)) -> bool {
        if !self.packet.is_empty() {
            return true;
        }
        self.current = match self.current.take() {
            Some((header, part)) => self.piece(world, manager, &header, part).map(|part| (header, part)),
            None => {
                let Some((header, body)) = self.requests.pop_front() else { return true };
                let begun = self.begin(world, &header, &body);
                begun.unwrap_or_else(|errno| {
                    self.packet.result(&header, errno.0);
                    None
                })
            }
        };
        !self.packet.is_empty()
    }

    fn message(&self) -> Vec<u8> {
        self.packet.as_bytes().to_vec()
    }

    fn sent(&mut self) -> bool {
        self.packet.clear();
        self.current.is_none() && self.requests.is_empty()
    }
}

impl Dump {
    /// Begins the answer to a request. A short answer is complete at once.
    fn begin(&mut self, world: &World, header: &Header, body: &[u8]) -> Result<Option<(Header, DumpCursor)>, Errno> {
        if header.is_control() {
            self.packet.result(header, 0);
            return Ok(None);
        }
        let command = header.command()?;
        let class = Class::of(command);
        let request = Request::parse(body, class.map(|class| class.number))?;
        let all = header.is_dump();
        let device = || {
            let index = request.device.ok_or(Errno::EINVAL)? as usize;
            world.devices.get(index).map(|device| device.index).ok_or(Errno::ENODEV)
        };
        let part = match (command, class) {
            (command::GET, _) if all => DumpCursor::Devices(0),
            (command::GET, _) => {
                self.packet.begin(header, 0);
                facts::device(&mut self.packet, &world.devices[device()?]);
                return Ok(self.over(header));
            }
            (command::PORT_GET, _) if all => DumpCursor::Ports(device()?, 0),
            (command::PORT_GET, _) => {
                let device = &world.devices[device()?];
                let number = request.port.filter(|number| device.port(*number).is_ok()).ok_or(Errno::EINVAL)?;
                self.packet.begin(header, 0);
                facts::port(&mut self.packet, device, number);
                return Ok(self.over(header));
            }
            // Counters are never bound to queue pairs or regions, so this list is empty.
            (command::STAT_GET, _) if all => DumpCursor::End,
            (command::STAT_GET, _) => {
                let device = &world.devices[device()?];
                let number = request.port.ok_or(Errno::EINVAL)?;
                let counters = world.hw_counters(device.index, number).ok_or(Errno::EINVAL)?;
                self.packet.begin(header, 0);
                facts::statistics(&mut self.packet, device, number, counters);
                return Ok(self.over(header));
            }
            (command::SYS_GET, _) => {
                self.packet.begin(header, 0);
                facts::system(&mut self.packet);
                return Ok(self.over(header));
            }
            (command::RES_GET, _) if all => {
                DumpCursor::Summaries { device: 0, only: false, count: objects::IdCount::default() }
            }
            (command::RES_GET, _) => {
                DumpCursor::Summaries { device: device()?, only: true, count: objects::IdCount::default() }
            }
            (_, Some(class)) if all => DumpCursor::Objects(Cursor::all(class, device()?, request.port)),
            (_, Some(class)) => {
                let number = request.object.ok_or(Errno::EINVAL)?;
                DumpCursor::Objects(Cursor::one(class, device()?, number))
            }
            _ => return Err(self.refusal(world, command, &request)),
        };
        Ok(Some((*header, part)))
    }

    /// Why a command is refused: a change is only for root, and no user can change anything here.
    fn refusal(&self, world: &World, command: u16, request: &Request) -> Errno {
        let changes = matches!(
            command,
            command::SET
                | command::NEWLINK
                | command::DELLINK
                | command::SYS_SET
                | command::STAT_SET
                | command::STAT_DEL
        );
        let is_there = |name: &Vec<u8>| world.devices.iter().any(|device| device.name.as_bytes() == name);
        match command {
            _ if changes && self.asker != Asker::Root => Errno::EPERM,
            command::NEWLINK if request.name.as_ref().is_some_and(is_there) => Errno::EEXIST,
            _ => Errno::EOPNOTSUPP,
        }
    }

    /// Ends the answer, with an acknowledgement if the request asks for it.
    fn over(&mut self, header: &Header) -> Option<(Header, DumpCursor)> {
        if header.flags & flag::ACK != 0 && !header.is_dump() {
            self.packet.result(header, 0);
        }
        None
    }

    /// Adds one message, or does a bounded part of the work for one. Returns the rest.
    fn piece(&mut self, world: &World, manager: &Manager, header: &Header, part: DumpCursor) -> Option<DumpCursor> {
        match part {
            DumpCursor::Devices(index) => {
                let Some(device) = world.devices.from(index) else { return self.end(header) };
                self.packet.begin(header, flag::MULTI);
                facts::device(&mut self.packet, device);
                Some(DumpCursor::Devices(device.index + 1))
            }
            DumpCursor::Ports(index, before) => {
                let device = &world.devices[index];
                let number = before + 1;
                if device.port(number).is_err() {
                    return self.end(header);
                }
                self.packet.begin(header, flag::MULTI);
                facts::port(&mut self.packet, device, number);
                Some(DumpCursor::Ports(index, number))
            }
            DumpCursor::Summaries { device, only, mut count } => {
                let Some(found) = world.devices.from(device) else { return self.end(header) };
                // The device of a request may have gone since.
                if only && found.index != device {
                    return self.end(header);
                }
                let device = found.index;
                if !count.go_on(manager, device) {
                    return Some(DumpCursor::Summaries { device, only, count });
                }
                self.packet.begin(header, if only { 0 } else { flag::MULTI });
                facts::summary(&mut self.packet, world, found, count.found());
                if only {
                    self.over(header);
                    return None;
                }
                Some(DumpCursor::Summaries { device: device + 1, only, count: objects::IdCount::default() })
            }
            DumpCursor::Objects(mut cursor) => {
                let goes_on = cursor.piece(&mut self.packet, header, self.asker, world, manager);
                match (goes_on, cursor.is_for_one()) {
                    (true, _) => Some(DumpCursor::Objects(cursor)),
                    (false, false) => Some(DumpCursor::End),
                    (false, true) => {
                        if self.packet.is_empty() {
                            self.packet.result(header, Errno::ENOENT.0);
                        } else {
                            self.over(header);
                        }
                        None
                    }
                }
            }
            DumpCursor::End => self.end(header),
        }
    }

    /// Adds the end message of an answer with several messages.
    fn end(&mut self, header: &Header) -> Option<DumpCursor> {
        self.packet.done(header);
        None
    }
}
