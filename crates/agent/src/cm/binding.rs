//! Local addresses and ports: BIND_IP, BIND, LISTEN.

use std::net::{IpAddr, SocketAddr};

use abi::layout::Record;
use abi::ucma::address::{Bind, BindIp};
use abi::ucma::connection::Listen;
use abi::ucma::port_space;
use abi::ucma::sockaddr::{Sockaddr, SockaddrIb};
use abi::{Errno, Refusal};

use super::Manager;
use super::dispatch::CmCall;
use super::id::{Stage, ib_address, port, space_name};
use super::locals::Attachment;
use super::ports::{BindError, Family, PortHolder, Spot};
use crate::refusal::{Outcome, refuse};

/// Maximum number of requests that may wait for a listener (Linux's default).
const BACKLOG_MAX: u32 = 1024;

/// How many ports are tried that other sockets of the host may have.
const PORT_TRIES: usize = 1024;

impl Manager {
    pub(super) fn bind_ip(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let BindIp { addr, id, .. } = call.command.body();
        self.bind_to(call, id, parse(addr.bytes())?)
    }

    pub(super) fn bind(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Bind { id, addr_size, addr, .. } = call.command.body();
        self.bind_to(call, id, parse(sized(&addr, addr_size)?)?)
    }

    fn bind_to(&mut self, call: &CmCall<'_>, name: u32, address: Option<Sockaddr>) -> Outcome<Vec<u8>> {
        let Some(address) = address else { return refuse(Errno::EINVAL, "there is no address to bind to") };
        self.id_in(call, name, &[Stage::Idle])?;
        self.give_address(call, name, address, true)?;
        Ok(Vec::new())
    }

    /// Gives a new id its local address and port. `may_listen`: a port that the agent chooses must
    /// be free for TCP, too.
    pub(super) fn give_address(
        &mut self,
        call: &CmCall<'_>,
        name: u32,
        address: Sockaddr,
        may_listen: bool,
    ) -> Outcome<()> {
        let privileged = self.owner(call.channel)?.channel.peer.uid == 0;
        let first = self.first_free_port;
        let id = self.id(call, name)?;
        let (space, reuse, af_only) = (id.space, id.options.reuse, id.options.af_only);
        let (spot, attachment) = self.place(&address, self.node_of(call.channel))?;
        // For IPv4, this is the default: programs do not expect IPv6 peers at an IPv4 address.
        let af_only = af_only.unwrap_or(spot.family == Family::V4);
        let wanted = port(&address);
        if wanted != 0 && wanted < first && !privileged {
            let text = format!("port {wanted} is below {first}, the first that an ordinary user may have");
            return refuse(Errno::EACCES, text);
        }
        let upper = u64::from(space) << 16;
        let named = own_service(&address).filter(|_| space == port_space::IB);
        if named.is_some() && !privileged {
            return refuse(Errno::EACCES, "only root may have a service id of IPoIB".to_owned());
        }
        let chosen = match wanted {
            // The id names the whole service; its last bits may be 0.
            wanted if named.is_some() => wanted,
            0 => self.choose_port(name, upper, spot, &address, may_listen).ok_or_else(|| {
                let text = format!("every port of port space {} is in use", space_name(space));
                Refusal::new(Errno::EADDRNOTAVAIL, text)
            })?,
            wanted => wanted,
        };
        let service = named.unwrap_or(upper | u64::from(chosen));
        self.ports
            .bind(service, PortHolder { id: name, spot, reuse, af_only, listens: false })
            .map_err(|conflict| conflict_at(conflict, &address, chosen))?;
        let local = match address {
            Sockaddr::Ip(addr) => Sockaddr::Ip(with_port(addr, chosen)),
            Sockaddr::Ib(record) => ib_address(record.addr, u16::from_be_bytes(record.pkey), service),
        };
        let id = self.id(call, name)?;
        (id.service, id.local, id.attachment, id.stage) = (Some(service), Some(local), attachment, Stage::Bound);
        Ok(())
    }

    /// Finds a free port. Of the ports that are free here, other sockets of the host may have some
    /// ([`Manager::hold_tcp_port`]).
    fn choose_port(&mut self, name: u32, space: u64, spot: Spot, at: &Sockaddr, may_listen: bool) -> Option<u16> {
        for _ in 0..PORT_TRIES {
            let port = self.ports.free(space, spot)?;
            match at {
                Sockaddr::Ip(at) if may_listen && !self.hold_tcp_port(name, with_port(*at, port)) => {}
                _ => return Some(port),
            }
        }
        None
    }

    /// Finds the attachment of an own address.
    fn place(&self, address: &Sockaddr, node: Option<usize>) -> Outcome<(Spot, Option<Attachment>)> {
        match address {
            Sockaddr::Ip(addr) if addr.ip().is_unspecified() => Ok((Spot::ip(addr.ip()).on(node), None)),
            // As on Linux (`cma_any_addr`), this gives no device. libfabric looks for the devices'
            // own addresses only then.
            Sockaddr::Ip(addr) if node.is_some() && addr.ip().is_loopback() && !self.locals.is_of_node(addr.ip()) => {
                Ok((Spot::ip(addr.ip()).on(node), None))
            }
            Sockaddr::Ip(addr) => {
                let ip = addr.ip().to_canonical();
                match self.locals.find_on(node, ip, scope(addr)) {
                    Some(at) => Ok((Spot::ip(addr.ip()).on(node), Some(at))),
                    None => refuse(Errno::EADDRNOTAVAIL, format!("{ip} is not an address of this agent")),
                }
            }
            Sockaddr::Ib(record) if record.addr == [0; 16] => Ok((Spot::gid(record.addr).on(node), None)),
            Sockaddr::Ib(record) => {
                match self.locals.with_gid(&record.addr).filter(|at| node.is_none_or(|node| node == at.device)) {
                    Some(at) => Ok((Spot::gid(record.addr).on(node), Some(self.partition(at, record)?))),
                    None => {
                        let gid = std::net::Ipv6Addr::from(record.addr);
                        refuse(Errno::EADDRNOTAVAIL, format!("{gid} is not a GID of this agent"))
                    }
                }
            }
        }
    }

    /// An attachment in the partition that an address names.
    pub(super) fn partition(&self, at: Attachment, address: &SockaddrIb) -> Outcome<Attachment> {
        let pkey = u16::from_be_bytes(address.pkey);
        match self.locals.in_partition(at, pkey) {
            Some(at) => Ok(at),
            None => refuse(Errno::ENODEV, format!("port {} does not belong to the partition {pkey:#06x}", at.port)),
        }
    }

    pub(super) fn listen(&mut self, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Listen { id: name, backlog } = call.command.body();
        if self.id(call, name)?.stage == Stage::Idle {
            // As with a socket: any address, any port.
            self.give_address(call, name, Sockaddr::Ip(SocketAddr::from(([0, 0, 0, 0], 0))), true)?;
        }
        let id = self.id_in(call, name, &[Stage::Bound])?;
        let (service, local) = (id.service.unwrap_or_default(), id.local);
        let at = local.unwrap_or(Sockaddr::Ip(SocketAddr::from(([0, 0, 0, 0], 0))));
        let backlog = if (1..=BACKLOG_MAX).contains(&backlog) { backlog } else { BACKLOG_MAX };
        self.listen_by_tcp(name, backlog)?;
        if let Err(conflict) = self.ports.listen(service, name) {
            self.close_end(name);
            return Err(conflict_at(conflict, &at, port(&at)));
        }
        let id = self.id(call, name)?;
        id.stage = Stage::Listening;
        id.backlog = backlog;
        self.consider_early();
        Ok(Vec::new())
    }
}

/// The service ids of IPoIB in connected mode, as Linux has them: this byte and the QPN of the
/// interface. They are in no port space.
const IPOIB_SERVICES: u64 = 0x10;

/// Whether a service id is one of IPoIB. Its requests have no header with IP addresses.
pub(super) fn is_ipoib(service: u64) -> bool {
    service >> 56 == IPOIB_SERVICES
}

/// The service id of IPoIB that an address names.
fn own_service(address: &Sockaddr) -> Option<u64> {
    match address {
        Sockaddr::Ib(record) => Some(u64::from_be_bytes(record.sid)).filter(|service| is_ipoib(*service)),
        Sockaddr::Ip(_) => None,
    }
}

/// The address in the fixed room that a record has for it.
pub(super) fn sized(room: &[u8; 128], size: u16) -> Outcome<&[u8]> {
    match room.get(..usize::from(size)) {
        Some(bytes) => Ok(bytes),
        None => refuse(Errno::EINVAL, format!("an address of {size} bytes is longer than any")),
    }
}

/// Parses an address. Returns `None` if there is none.
pub(super) fn parse(bytes: &[u8]) -> Outcome<Option<Sockaddr>> {
    Sockaddr::parse(bytes).or_else(|errno| match errno {
        Errno::EAFNOSUPPORT => refuse(errno, "an address is of the family AF_INET, AF_INET6 or AF_IB"),
        errno => refuse(errno, "an address is shorter than its family's"),
    })
}

/// The interface of a link-local address, or 0.
pub(super) fn scope(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() => addr.scope_id(),
        _ => 0,
    }
}

fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

fn conflict_at(conflict: BindError, at: &Sockaddr, port: u16) -> Refusal {
    let place = match at {
        Sockaddr::Ip(addr) => IpAddr::to_string(&addr.ip()),
        Sockaddr::Ib(record) => std::net::Ipv6Addr::from(record.addr).to_string(),
    };
    let (errno, text) = match conflict {
        BindError::SameAddress(other) => {
            (Errno::EADDRINUSE, format!("port {port} of {place} belongs to id {other:#x}"))
        }
        BindError::EveryAddress(other) => (
            Errno::EADDRNOTAVAIL,
            format!("port {port} of {place} conflicts with id {other:#x}: one of the two has every address"),
        ),
        BindError::TooMany => (Errno::EADDRINUSE, format!("the limit of ids that share port {port} is reached")),
        BindError::NoMemory => (Errno::ENOMEM, "the agent has no memory for one more holder of the port".to_owned()),
    };
    Refusal::new(errno, text)
}
