//! A managed fabric for the programs of infiniband-diags and for opensm: a server that speaks the
//! protocol of ibsim to its shim, so that these programs can judge the fabric. `cargo run -p
//! softhca-subnet --example judge -- FILE` reads a topology in text form; then `LD_PRELOAD=
//! libumad2sim.so SIM_HOST=H1 opensm`. It reads commands from its input: `cut NODE PORT`, `mend
//! NODE PORT`. Not a part of the agent, which has its own devices.
#![allow(clippy::disallowed_methods, reason = "programs run in real time")]
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use mad::topology::Topology;
use softhca_subnet::managed::{Datagram, Delivered, Managed, Output};
use softhca_subnet::{CutBy, End};
use std::collections::HashMap;
use std::io::BufRead;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use wire::layout::Layout;
use wire::mad::{Header, METHOD_TRAP_REPRESS, RESPONSE};
use wire::smp::{Capability, NodeInfo, PortInfo};

const CLIENTS: usize = 10;
const CONTROL: usize = 80;
const RECORD: usize = 288;
const MAD: usize = 32;

struct Client {
    end: End,
    manager: bool,
    peer: SocketAddr,
}

struct Server {
    net: Managed,
    control: UnixDatagram,
    sockets: Vec<UnixDatagram>,
    clients: HashMap<usize, Client>,
}

fn name(text: &str) -> SocketAddr {
    SocketAddr::from_abstract_name(format!("{text}\0")).unwrap()
}

/// ibsim fills the whole address with zeros behind the name.
fn padded(text: &str) -> SocketAddr {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(107, 0);
    SocketAddr::from_abstract_name(bytes).unwrap()
}

fn bind(text: &str) -> UnixDatagram {
    let socket = UnixDatagram::bind_addr(&name(text)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn main() {
    let file = std::env::args().nth(1).unwrap();
    let topology = Topology::from_text(&std::fs::read_to_string(file).unwrap()).unwrap();
    let net = Managed::new(&topology).unwrap();
    let sockets = (0..CLIENTS).map(|at| bind(&format!("sim:out{at}"))).collect();
    let mut server = Server { net, control: bind("sim:ctl"), sockets, clients: HashMap::new() };
    let (sender, commands) = mpsc::channel();
    std::thread::spawn(move || {
        std::io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let start = Instant::now();
    loop {
        while server.serve_control() {}
        while server.serve_data() {}
        commands.try_iter().for_each(|line| server.command(&line));
        let now = u64::try_from(start.elapsed().as_nanos()).unwrap() * 1000;
        for output in server.net.advance(now) {
            server.output(output);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}

impl Server {
    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[verb, node, port] = &words[..] else { return };
        let (Some(node), Ok(port)) = (self.net.id(node), port.parse()) else { return println!("no such port") };
        let end = End { node, port };
        match verb {
            "cut" => self.net.cut(end, CutBy::Operator),
            "mend" => self.net.mend(end, CutBy::Operator),
            _ => println!("cut or mend"),
        }
    }

    fn serve_control(&mut self) -> bool {
        let mut bytes = [0; CONTROL];
        let Ok((CONTROL, from)) = self.control.recv_from(&mut bytes) else { return false };
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (id, kind) = (word(4) as usize, word(8));
        let ok = if kind == 1 { self.connect(&mut bytes) } else { self.ask(id, kind, &mut bytes) };
        if ok.is_none() {
            bytes[8..12].copy_from_slice(&0_u32.to_ne_bytes());
        }
        let from: SocketAddr = from;
        let _ = self.control.send_to_addr(&bytes, &from);
        true
    }

    fn connect(&mut self, bytes: &mut [u8; CONTROL]) -> Option<()> {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (pid, manager) = (word(16), word(24) != 0);
        let text = String::from_utf8_lossy(&bytes[28..60]).trim_end_matches('\0').to_owned();
        let node = self.net.id(&text)?;
        let end = self.net.ends().find(|end| end.node == node)?;
        let id = (0..CLIENTS).find(|id| !self.clients.contains_key(id))?;
        self.net.attach(end).ok()?;
        self.clients.insert(id, Client { end, manager, peer: name(&format!("sim:in{pid}")) });
        let _ = self.sockets[id]
            .connect_addr(&self.clients[&id].peer)
            .or_else(|_| self.sockets[id].connect_addr(&padded(&format!("sim:in{pid}"))));
        bytes[16..20].copy_from_slice(&u32::try_from(id).unwrap().to_ne_bytes());
        Some(())
    }

    fn ask(&mut self, id: usize, kind: u32, bytes: &mut [u8; CONTROL]) -> Option<()> {
        let client = self.clients.get_mut(&id)?;
        let end = client.end;
        let node = self.net.node(end.node)?;
        let port = node.port(end.port)?;
        let data = &mut bytes[16..];
        match kind {
            2 => drop(self.clients.remove(&id)),
            4 => {
                data[..4].copy_from_slice(&node.info.vendor_id.to_ne_bytes());
                data[4..8].copy_from_slice(&u32::from(node.info.device_id).to_ne_bytes());
            }
            7 => drop(NodeInfo { port_guid: port.guid, local_port: end.port, ..node.info }.write(data)),
            8 => {
                let asked = if data[0] == 0 || data[0] > node.info.ports { end.port } else { data[0] };
                PortInfo { local_port: end.port, ..self.net.port_info(End { port: asked, ..end })? }.write(data);
            }
            9 => {
                client.manager = data[0] != 0;
                let mask = port.info.capability_mask & !Capability::SM;
                let mask = if client.manager { mask | Capability::SM } else { mask };
                self.net.set_capability(end, mask).ok()?;
            }
            10 => {
                data[..64].fill(0);
                let keys = port.pkeys.iter().take(32).flat_map(|key| key.to_be_bytes());
                data.iter_mut().zip(keys).for_each(|(place, byte)| *place = byte);
            }
            _ => return None,
        }
        Some(())
    }

    fn serve_data(&mut self) -> bool {
        let mut any = false;
        for id in 0..CLIENTS {
            let mut bytes = [0; 512];
            let Some(client) = self.clients.get(&id) else { continue };
            let Ok(size) = self.sockets[id].recv(&mut bytes) else { continue };
            any = true;
            if size < RECORD {
                continue;
            }
            let end = client.end;
            let half = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let qp = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let own = self.net.port_info(end).unwrap();
            let slid = if own.lid == 0 { 0xffff } else { own.lid };
            let mut mad: wire::mad::Mad = bytes[MAD..RECORD].try_into().unwrap();
            let header = Header::of(&mad);
            if header.method & RESPONSE == 0 && header.method != METHOD_TRAP_REPRESS {
                let transaction = header.transaction & !(0xffff << 48) | (id as u64 + 1) << 48;
                Header { transaction, ..header }.emit_to(&mut mad);
                mad[18..20].copy_from_slice(&bytes[MAD + 18..MAD + 20]);
            }
            let datagram = if qp(8) == 0 {
                Datagram::smp(slid, half(0), 0, mad)
            } else {
                Datagram { source_qp: qp(12), dest_qp: qp(8), ..Datagram::gmp(slid, half(0), 0, mad) }
            };
            if let Err(error) = self.net.send(end, &datagram) {
                println!("client {id}: {error}: {header}");
            }
        }
        any
    }

    fn output(&mut self, output: Output) {
        let Output::Datagram(delivered) = output else { return };
        let header = Header::of(&delivered.datagram.mad);
        let answers = header.method & RESPONSE != 0 || header.method == METHOD_TRAP_REPRESS;
        let found = if answers {
            Some((header.transaction >> 48) as usize).filter(|id| *id > 0).map(|id| id - 1)
        } else {
            let mut at = self.clients.iter().filter(|(_, client)| client.end == delivered.end && client.manager);
            at.next().map(|(id, _)| *id)
        };
        match found.filter(|id| self.clients.contains_key(id)) {
            Some(id) => self.hand(id, &delivered),
            None => self.net.refuse(&delivered),
        }
    }

    fn hand(&mut self, id: usize, delivered: &Delivered) {
        let datagram = &delivered.datagram;
        let mut bytes = [0; RECORD];
        bytes[..2].copy_from_slice(&datagram.dlid.to_be_bytes());
        bytes[4..6].copy_from_slice(&datagram.slid.to_be_bytes());
        bytes[8..12].copy_from_slice(&datagram.dest_qp.to_be_bytes());
        bytes[12..16].copy_from_slice(&datagram.source_qp.to_be_bytes());
        bytes[24..32].copy_from_slice(&256_u64.to_be_bytes());
        bytes[MAD..].copy_from_slice(&datagram.mad);
        let _ = self.sockets[id].send(&bytes);
    }
}
