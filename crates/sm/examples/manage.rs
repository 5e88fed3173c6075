//! The manager as a client of ibsim, or of `softhca-subnet`'s example `judge`, which speaks the
//! same protocol: so that ibsim's agents and the programs of infiniband-diags can judge it, and
//! opensm can be its rival. `cargo run -p softhca-sm --example manage -- NODE [PRIORITY] [ENGINE]`.
//! It ends with its input. Not a part of the agent.
#![allow(clippy::disallowed_methods, reason = "programs run in real time")]
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use softhca_sm::config::{Engine, Routing};
use softhca_sm::{Address, Config, Event, Manager};
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::layout::Layout;
use wire::mad::{CLASS_SUBN_DIRECTED, Header, Mad};
use wire::smp::{NodeInfo, PERMISSIVE_LID};

const CONTROL: usize = 80;
const RECORD: usize = 288;
const MAD: usize = 32;
/// The server's part of a transaction id.
const CLIENT: u64 = 0xffff << 48;

fn name(text: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("{text}\0")).unwrap()
}

struct Link {
    control: UnixDatagram,
    data: UnixDatagram,
    id: u32,
}

impl Link {
    fn connect(node: &str) -> Link {
        let pid = std::process::id();
        let control = UnixDatagram::bind_addr(&name(&format!("sim:ctl{pid}"))).unwrap();
        control.connect_addr(&name("sim:ctl")).unwrap();
        let data = UnixDatagram::bind_addr(&name(&format!("sim:in{pid}"))).unwrap();
        let mut link = Link { control, data, id: 0 };
        let mut body = [0; 64];
        body[..4].copy_from_slice(&pid.to_ne_bytes());
        body[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        body[12..12 + node.len()].copy_from_slice(node.as_bytes());
        let answer = link.ask(1, body);
        link.id = u32::from_ne_bytes(answer[..4].try_into().unwrap());
        link.data.connect_addr(&name(&format!("sim:out{}", link.id))).unwrap();
        link.data.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let mut issm = [0; 64];
        issm[..4].copy_from_slice(&1_u32.to_ne_bytes());
        link.ask(9, issm);
        link
    }

    fn ask(&self, kind: u32, body: [u8; 64]) -> [u8; 64] {
        let mut bytes = [0; CONTROL];
        for (at, word) in [(0, 0xdead_beef_u32), (4, self.id), (8, kind), (12, 64)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..].copy_from_slice(&body);
        self.control.send(&bytes).unwrap();
        self.control.recv(&mut bytes).unwrap();
        assert_ne!(bytes[8..12], [0; 4], "the server refuses {kind}");
        bytes[16..].try_into().unwrap()
    }

    fn send(&self, to: Address, mad: &Mad) {
        let (lid, qp) = match to {
            Address::Directed => (PERMISSIVE_LID, 0),
            Address::Lid { lid, qp, .. } => (lid, qp),
        };
        let mut bytes = [0; RECORD];
        bytes[..2].copy_from_slice(&lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&qp.to_be_bytes());
        bytes[24..32].copy_from_slice(&256_u64.to_be_bytes());
        bytes[MAD..].copy_from_slice(mad);
        self.data.send(&bytes).unwrap();
    }

    fn receive(&self) -> Option<(Address, Mad)> {
        let mut bytes = [0; 512];
        self.data.recv(&mut bytes).ok().filter(|size| *size >= RECORD)?;
        let mut mad: Mad = bytes[MAD..RECORD].try_into().unwrap();
        let header = Header::of(&mad);
        if header.method & wire::mad::RESPONSE != 0 {
            mad[8..16].copy_from_slice(&(header.transaction & !CLIENT).to_be_bytes());
        }
        let lid = u16::from_be_bytes([bytes[4], bytes[5]]);
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        if word(8) != 0 {
            return None;
        }
        let directed = header.class == CLASS_SUBN_DIRECTED;
        Some((if directed { Address::Directed } else { Address::Lid { lid, sl: 0, qp: word(12) } }, mad))
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let priority = arguments.get(1).and_then(|priority| priority.parse().ok()).unwrap_or(0);
    let engine = match arguments.get(2).map(String::as_str) {
        Some("updn") => Engine::UpDown,
        Some("ftree") => Engine::FatTree,
        Some("dor") => Engine::DimensionOrder,
        _ => Engine::MinHop,
    };
    let link = Link::connect(&arguments[0]);
    let info = NodeInfo::read(&link.ask(7, [0; 64])).unwrap();
    let config = Config { priority, routing: Routing { engine, roots: Vec::new() }, ..Config::default() };
    let mut manager = Manager::new(config, info.port_guid, 1);
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Relaxed);
    });
    let start = Instant::now();
    manager.handle_timeout(start.elapsed());
    while !ended.load(Ordering::Relaxed) {
        while let Some(transmit) = manager.poll_transmit() {
            link.send(transmit.to, &transmit.mad);
        }
        while let Some(event) = manager.poll_event() {
            tell(&event);
        }
        if let Some((from, mad)) = link.receive() {
            manager.receive(from, &mad, start.elapsed());
        }
        if manager.next_timeout().is_some_and(|next| next <= start.elapsed()) {
            manager.handle_timeout(start.elapsed());
        }
    }
}

fn tell(event: &Event) {
    match event {
        Event::State(state) => println!("state {state:?}"),
        Event::Up(up) => println!("{up}"),
        Event::Problem(problem) => println!("problem: {problem}"),
        Event::Notice(notice) => println!("notice {}", notice.number),
        Event::Changed | Event::Lids(_) => {}
    }
}
