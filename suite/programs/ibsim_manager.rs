//! softhca's subnet manager, with subnet administration, as a client of ibsim: so that ibsim's
//! switches and adapters and the programs of infiniband-diags can judge it. Not a part of the agent.
//!
//! `ibsim-manager NODE [PRIORITY [ENGINE]]` runs on a node until it is killed. It finds ibsim by the
//! name in `IBSIM_SOCKNAME`, as ibsim's own clients do. `softhca-subnet`'s example `judge` speaks
//! the same protocol. ibsim has no RMPP: a client gets the first segment of a long answer.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "programs run in real time")]

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use sm::config::{Engine, Routing};
use sm::sa::Peer;
use sm::service::Outgoing;
use sm::{Address, Config, Event, Manager, Service};
use wire::layout::Layout;
use wire::mad::{CLASS_SUBN_DIRECTED, Header, MAD_LEN, Mad, RESPONSE};
use wire::smp::{NodeInfo, PERMISSIVE_LID};

const CONTROL: usize = 80;
const MAGIC: u32 = 0xdead_beef;
const CONNECT: u32 = 1;
const NODE_INFO: u32 = 7;
const SET_SM: u32 = 9;
const RECORD: usize = 288;
const MAD: usize = 32;
const GSI_QP: u32 = 1;
/// The server's part of the transaction id of a request.
const CLIENT: u64 = 0xffff << 48;
/// How long the manager waits for a datagram before it looks at the clock.
const TURN: Duration = Duration::from_millis(1);

/// The name of a socket. ibsim's names end with a zero byte.
fn name(text: &str) -> io::Result<SocketAddr> {
    let base = std::env::var("IBSIM_SOCKNAME").unwrap_or_else(|_| "sim".to_owned());
    SocketAddr::from_abstract_name(format!("{base}:{text}\0"))
}

struct Link {
    control: UnixDatagram,
    data: UnixDatagram,
    id: u32,
}

impl Link {
    fn connect(node: &str) -> io::Result<Link> {
        let pid = std::process::id();
        let control = UnixDatagram::bind_addr(&name(&format!("ctl{pid}"))?)?;
        control.connect_addr(&name("ctl")?)?;
        let data = UnixDatagram::bind_addr(&name(&format!("in{pid}"))?)?;
        let mut link = Link { control, data, id: 0 };
        let mut body = [0; 64];
        body[..4].copy_from_slice(&pid.to_ne_bytes());
        body[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        body[12..12 + node.len()].copy_from_slice(node.as_bytes());
        let [a, b, c, d, ..] = link.ask(CONNECT, body)?;
        link.id = u32::from_ne_bytes([a, b, c, d]);
        link.data.connect_addr(&name(&format!("out{}", link.id))?)?;
        link.data.set_read_timeout(Some(TURN))?;
        let mut is_manager = [0; 64];
        is_manager[..4].copy_from_slice(&1_u32.to_ne_bytes());
        link.ask(SET_SM, is_manager)?;
        Ok(link)
    }

    fn ask(&self, kind: u32, body: [u8; 64]) -> io::Result<[u8; 64]> {
        let mut bytes = [0; CONTROL];
        for (at, word) in [(0, MAGIC), (4, self.id), (8, kind), (12, 64)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&body);
        self.control.send(&bytes)?;
        self.control.recv(&mut bytes)?;
        if bytes[8..12] == [0; 4] {
            return Err(io::Error::other(format!("ibsim refuses the request {kind}")));
        }
        let mut answer = [0; 64];
        answer.copy_from_slice(&bytes[16..]);
        Ok(answer)
    }

    fn send(&self, outgoing: &Outgoing) -> io::Result<()> {
        let (lid, source_qp, qp, mad) = match outgoing {
            Outgoing::Management(Address::Directed, mad) => (PERMISSIVE_LID, 0, 0, mad),
            Outgoing::Management(Address::Lid { lid, qp, .. }, mad) => (*lid, 0, *qp, mad),
            Outgoing::Administration(peer, mad) => (peer.lid, GSI_QP, peer.qpn, mad),
        };
        let mut bytes = [0; RECORD];
        bytes[..2].copy_from_slice(&lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&qp.to_be_bytes());
        bytes[12..16].copy_from_slice(&source_qp.to_be_bytes());
        bytes[24..32].copy_from_slice(&(MAD_LEN as u64).to_be_bytes());
        bytes[MAD..].copy_from_slice(mad);
        self.data.send(&bytes).map(drop)
    }

    /// Hands the next datagram to the manager, if one comes soon.
    fn receive(&self, service: &mut Service, now: impl Fn() -> Duration) {
        let mut bytes = [0; RECORD];
        if self.data.recv(&mut bytes).ok() != Some(RECORD) {
            return;
        }
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (lid, to, from) = (u16::from_be_bytes([bytes[4], bytes[5]]), word(8), word(12));
        let mut mad: Mad = [0; MAD_LEN];
        mad.copy_from_slice(&bytes[MAD..]);
        let header = Header::of(&mad);
        if header.method & RESPONSE != 0 {
            mad[8..16].copy_from_slice(&(header.transaction & !CLIENT).to_be_bytes());
        }
        if to != 0 {
            let peer = Peer { lid, qpn: from, pkey: wire::pkey::DEFAULT, sl: 0, gid: None };
            return service.receive_administration(peer, &mad, now());
        }
        let directed = header.class == CLASS_SUBN_DIRECTED;
        let from = if directed { Address::Directed } else { Address::Lid { lid, sl: 0, qp: from } };
        service.receive_management(from, &mad, now());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let link = Link::connect(&words.next().ok_or("the name of a node")?)?;
    let priority = words.next().map_or(Ok(0), |word| word.parse())?;
    let engine = match words.next().as_deref() {
        None | Some("minhop") => Engine::MinHop,
        Some("updn") => Engine::UpDown,
        Some("ftree") => Engine::FatTree,
        Some("dor") => Engine::DimensionOrder,
        Some(other) => return Err(format!("{other} is no engine").into()),
    };
    let info = NodeInfo::read(&link.ask(NODE_INFO, [0; 64])?).ok_or("a NodeInfo")?;
    let config = Config { priority, routing: Routing { engine, roots: Vec::new() }, ..Config::default() };
    let mut service = Service::new(Manager::new(config, info.port_guid, 1));
    let start = Instant::now();
    service.handle_timeout(start.elapsed());
    loop {
        while let Some(outgoing) = service.poll_transmit() {
            link.send(&outgoing)?;
        }
        while let Some(event) = service.poll_event() {
            tell(&event);
        }
        link.receive(&mut service, || start.elapsed());
        if service.next_timeout().is_some_and(|next| next <= start.elapsed()) {
            service.handle_timeout(start.elapsed());
        }
    }
}

fn tell(event: &Event) {
    match event {
        Event::State(state) => println!("state {state:?}"),
        Event::Up(up) => println!("{up}"),
        Event::Problem(problem) => println!("problem: {problem}"),
        Event::Notice(notice) => println!("notice {}", notice.number),
        Event::Violation(violation) => println!("{violation}"),
        Event::Changed | Event::Lids(_) => {}
    }
}
