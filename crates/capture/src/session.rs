//! A running capture: the agent that serves it, the capture rings that it reads, and the packets in
//! order. The principal type is [`Session`].
//!
//! Each program writes to a capture ring of its own, so the session sorts packets by their times. A
//! drop record arrives a moment after its packet. For both reasons the session holds a packet back
//! for [`HOLD`]. Programs join a capture one after the other. Packets from before all programs have
//! joined are left out, because they would show only one side of a conversation.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use shm::Socket;
use shm::capture_ring::CaptureRingRx;

use crate::packet::{Packet, Path, Process, path_of};

/// How long a packet waits for earlier packets. A program may lose the processor between reading
/// the time of a packet and writing the packet to the capture ring. This time is several scheduler
/// slices.
const HOLD: Duration = Duration::from_millis(20);
/// How often the session asks the agent for new programs.
const NEWS: Duration = Duration::from_millis(20);
/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an engine may take until it writes to its capture ring. The session does not wait for a
/// stopped process.
const BEGIN: Duration = Duration::from_secs(5);
/// The time between two checks whether an engine has joined.
const GLANCE: Duration = Duration::from_millis(1);
/// Records that are read from one capture ring at a time.
const BUNCH: usize = 4096;
/// The number of queue pairs whose peers are remembered.
const PEERS: usize = 1 << 20;
/// The longest answer.
const ANSWER: usize = 64 * 1024;

/// Why a capture ended or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The agent has refused.
    #[error("{0}")]
    Refused(String),
    /// The agent cannot be reached, or has ended.
    #[error("the agent was lost: {0}")]
    Lost(#[from] io::Error),
    /// The agent's answer cannot be parsed.
    #[error("the agent's answer is not understood; it may be of another version")]
    Strange,
}

/// The options of a capture.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Bytes of each program's capture ring, 0 for 4 MiB.
    pub room: usize,
    /// The most bytes of a packet from its BTH on, 0 for all.
    pub most: usize,
}

/// A port of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name of the device.
    pub device: String,
    /// The port's number.
    pub number: u8,
    /// Whether its link layer is InfiniBand.
    pub infiniband: bool,
}

/// A capture.
#[derive(Debug)]
pub struct Session {
    socket: Socket,
    devices: Vec<String>,
    ports: Vec<Port>,
    /// The names of devices, by index.
    indices: HashMap<u32, Arc<str>>,
    everything: bool,
    rings: Vec<CaptureRing>,
    /// The programs by their engines, for the whole capture.
    programs: HashMap<u32, Process>,
    /// The peers of queue pairs on the wire, from the queue pairs' own packets: by engine and QP.
    peers: HashMap<(u32, u32), u32>,
    /// The directions of TCP connections whose senders are captured: source and destination.
    sent: HashSet<[(IpAddr, u16); 2]>,
    held: Vec<Packet>,
    /// When all programs had joined, and the number of lost packets before that. Older packets are
    /// left out.
    since: u64,
    lost_before: u64,
    asked: Instant,
    /// Packets lost on capture rings that have been read to their end.
    lost: u64,
    /// Problems to report at the end.
    complaints: Vec<String>,
    unseen: u64,
}

#[derive(Debug)]
struct CaptureRing {
    rx: CaptureRingRx,
    engine: u32,
    own: Process,
    device: Option<Arc<str>>,
    /// The program has ended.
    ended: bool,
    broken: bool,
}

impl Session {
    /// Begins a capture. `socket` is connected to the admin node of the agent. Waits until the
    /// running programs have joined. Programs that are stopped, or that take longer than [`BEGIN`],
    /// are among the [`Session::complaints`] until they join.
    ///
    /// # Errors
    /// When the agent refuses or is lost.
    pub fn begin(socket: Socket, wanted: Wanted) -> Result<Self, Error> {
        let mut question = json!({"request": "capture"});
        for (name, value) in [("room", wanted.room), ("most", wanted.most)] {
            if value != 0 {
                question[name] = json!(value);
            }
        }
        let (answer, _) = ask(&socket, &question)?;
        let devices = answer["devices"].as_array().ok_or(Error::Strange)?;
        let mut session = Self {
            socket,
            devices: devices.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            ports: ports(&answer),
            indices: indices(&answer),
            everything: answer["everything"] == true,
            rings: Vec::new(),
            programs: HashMap::new(),
            peers: HashMap::new(),
            sent: HashSet::new(),
            held: Vec::new(),
            since: u64::MAX,
            lost_before: 0,
            asked: Instant::now(),
            lost: 0,
            complaints: Vec::new(),
            unseen: 0,
        };
        session.ask_for_news()?;
        let end = Instant::now() + BEGIN;
        while session.rings.iter().any(CaptureRing::is_awaited) && Instant::now() < end {
            std::thread::sleep(GLANCE);
            // Packets of programs that join early must not fill their rings meanwhile.
            session.take()?;
        }
        session.lost_before = session.lost();
        session.since = now();
        Ok(session)
    }

    /// The agent's devices.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// The ports of the agent's devices.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Whether the capture includes the programs of all users.
    #[must_use]
    pub fn sees_everything(&self) -> bool {
        self.everything
    }

    /// The number of packets for which the capture rings had no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let all = self.lost + self.rings.iter().map(|ring| ring.rx.lost()).sum::<u64>();
        all.saturating_sub(self.lost_before)
    }

    /// What went wrong, as sentences.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.complaints.clone();
        let absent = self.rings.iter().filter(|ring| !ring.has_joined());
        all.extend(
            absent
                .map(|ring| format!("process {} is stopped or frozen: its packets appear when it continues", ring.own)),
        );
        if self.unseen > 0 {
            all.push(format!("{} programs are missing because there were too many", self.unseen));
        }
        all
    }

    /// The packets that are old enough to be in order; possibly none.
    ///
    /// # Errors
    /// When the agent is lost. [`Session::finish`] still returns the packets written until then.
    pub fn take(&mut self) -> Result<Vec<Packet>, Error> {
        if self.asked.elapsed() >= NEWS {
            self.ask_for_news()?;
        }
        let until = now().saturating_sub(HOLD.as_nanos() as u64);
        self.read_all(BUNCH);
        let (old, young) = std::mem::take(&mut self.held).into_iter().partition(|packet| packet.time <= until);
        self.held = young;
        Ok(self.without_copies(old))
    }

    /// The remaining packets: everything that has been written so far.
    pub fn finish(&mut self) -> Vec<Packet> {
        // A program that has just ended may not be known yet.
        let _ = self.ask_for_news();
        self.read_all(usize::MAX);
        let rest = std::mem::take(&mut self.held);
        self.without_copies(rest)
    }

    /// The packets in order. Bytes of TCP that were shown where they left are not shown again where
    /// they arrive: in a file they would be retransmissions.
    fn without_copies(&mut self, packets: Vec<Packet>) -> Vec<Packet> {
        let mut packets = in_order(packets);
        packets.retain(|packet| {
            let Some(tcp) = &packet.tcp else { return true };
            let flow = [(packet.from, packet.from_port), (packet.to, tcp.to_port)];
            if !matches!(packet.path, Path::Out(_)) {
                return !self.sent.contains(&flow);
            }
            if self.sent.len() >= PEERS {
                self.sent.clear();
            }
            self.sent.insert(flow);
            true
        });
        packets
    }

    fn ask_for_news(&mut self) -> Result<(), Error> {
        loop {
            let (answer, fds) = ask(&self.socket, &json!({"request": "capture-news"}))?;
            let told = answer["rings"].as_array().ok_or(Error::Strange)?;
            if told.len() != fds.len() {
                return Err(Error::Strange);
            }
            for (about, fd) in told.iter().zip(&fds) {
                self.add(about, fd)?;
            }
            for engine in answer["ended"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
                let of_it = |ring: &&mut CaptureRing| u64::from(ring.engine) == engine && ring.engine != 0;
                self.rings.iter_mut().filter(of_it).for_each(|ring| ring.ended = true);
            }
            self.unseen = answer["unseen"].as_u64().unwrap_or(0);
            if answer["more"] != true {
                self.asked = Instant::now();
                return Ok(());
            }
        }
    }

    fn add(&mut self, about: &Value, fd: &OwnedFd) -> Result<(), Error> {
        let number = |name: &str| about[name].as_u64().and_then(|value| u32::try_from(value).ok());
        let engine = number("engine").ok_or(Error::Strange)?;
        let room = number("room").ok_or(Error::Strange)? as usize;
        let comm = abi::reason::clean(about["comm"].as_str().unwrap_or_default(), 64);
        let own = Process { pid: number("pid").unwrap_or(0), comm: comm.into() };
        // If there is only one device, the agent's own packets belong to it.
        let only = self.devices.first().filter(|_| self.devices.len() == 1).map(String::as_str);
        let device = about["device"].as_str().or(only).map(Arc::from);
        if engine != 0 {
            self.programs.insert(engine, own.clone());
        }
        let rx = CaptureRingRx::map(fd.as_fd(), room)?;
        self.rings.push(CaptureRing { rx, engine, own, device, ended: false, broken: false });
        Ok(())
    }

    /// Reads at most `most` records from each capture ring, and drops rings that are at their end.
    fn read_all(&mut self, most: usize) {
        let Self { rings, programs, peers, held, complaints, since, indices, .. } = self;
        let (mut drops, mut record) = (Vec::new(), Vec::new());
        for ring in rings.iter_mut() {
            for _ in 0..most {
                match ring.rx.pop(&mut record) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => {
                        ring.broken = true;
                        break;
                    }
                }
                let mut seen_elsewhere = false;
                let path = |record: &abi::capture::CaptureRecord| {
                    // The sender's capture ring has this packet too.
                    seen_elsewhere = record.path == abi::capture::path::LANE_IN && programs.contains_key(&record.peer);
                    path_of(record, &ring.own, |engine| programs.get(&engine).cloned())
                };
                let device = |record: &abi::capture::CaptureRecord| {
                    let named = record.device.checked_sub(1).and_then(|index| indices.get(&index));
                    named.or(ring.device.as_ref()).cloned()
                };
                let read = Packet::read(&record, path, device);
                match read {
                    None => ring.broken = true,
                    Some(_) if seen_elsewhere => {}
                    Some(mut packet) => {
                        name_sender(&mut packet, ring.engine, peers);
                        match (packet.time < *since, !packet.is_there()) {
                            (true, _) => {}
                            (false, true) => drops.push(packet),
                            (false, false) => held.push(packet),
                        }
                    }
                }
                if ring.broken {
                    break;
                }
            }
            if ring.broken {
                complaints.push(format!("process {} wrote invalid capture data", ring.own));
            }
        }
        for drop in drops {
            let Some(dropped) = drop.dropped else { continue };
            match held.iter_mut().rev().filter(|packet| packet.is_what(&dropped)).max_by_key(|packet| packet.time) {
                Some(packet) => packet.dropped = Some(dropped),
                None => held.push(drop),
            }
        }
        let lost: u64 = rings.iter().filter(|ring| ring.is_over()).map(|ring| ring.rx.lost()).sum();
        rings.retain(|ring| !ring.is_over());
        self.lost += lost;
    }
}

impl CaptureRing {
    /// Whether the program writes to the ring, or has ended.
    fn has_joined(&self) -> bool {
        self.ended || self.rx.is_attached()
    }

    /// Whether the program will join soon: it is running, as far as the session knows.
    fn is_awaited(&self) -> bool {
        !self.has_joined() && !is_stopped(self.own.pid)
    }

    /// Whether no more records will come: the program has ended and the ring is empty, or the ring
    /// cannot be read.
    fn is_over(&self) -> bool {
        self.broken || (self.ended && self.rx.is_empty())
    }
}

/// The ports in the answer of an agent.
fn ports(answer: &Value) -> Vec<Port> {
    let port = |about: &Value| {
        let number = about["port"].as_u64().and_then(|number| u8::try_from(number).ok())?;
        Some(Port { device: about["device"].as_str()?.to_owned(), number, infiniband: about["link"] == "InfiniBand" })
    };
    answer["ports"].as_array().into_iter().flatten().filter_map(port).collect()
}

/// The names of devices in the answer of an agent, by index.
fn indices(answer: &Value) -> HashMap<u32, Arc<str>> {
    let named = |about: &Value| {
        let index = about["index"].as_u64().and_then(|index| u32::try_from(index).ok())?;
        Some((index, Arc::from(about["device"].as_str()?)))
    };
    answer["ports"].as_array().into_iter().flatten().filter_map(named).collect()
}

/// Whether a process is stopped, by a signal or by a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

/// Adds the sending QP to a packet. A packet from another host does not contain it. A connected QP
/// gets packets from the QP to which it sends.
fn name_sender(packet: &mut Packet, engine: u32, peers: &mut HashMap<(u32, u32), u32>) {
    let Some(headers) = packet.headers() else { return };
    let dest = headers.dest_qp.value();
    if headers.opcode.has_deth() {
        packet.src_qp = headers.deth.src_qp.value();
        return;
    }
    match packet.path {
        Path::Out(_) if packet.src_qp != 0 && peers.len() < PEERS => drop(peers.insert((engine, packet.src_qp), dest)),
        Path::In(_) if packet.src_qp == 0 => packet.src_qp = peers.get(&(engine, dest)).copied().unwrap_or(0),
        _ => {}
    }
}

fn in_order(mut packets: Vec<Packet>) -> Vec<Packet> {
    packets.sort_by_key(|packet| packet.time);
    packets
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

fn ask(socket: &Socket, question: &Value) -> Result<(Value, Vec<OwnedFd>), Error> {
    socket.send(question.to_string().as_bytes(), &[])?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    let end = Instant::now() + PATIENCE;
    loop {
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&patience)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            // A signal arrived. The caller handles it later.
            Err(rustix::io::Errno::INTR) if Instant::now() < end => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
            Ok(_) => break,
        }
    }
    let mut buffer = vec![0; ANSWER];
    let received = socket.recv(&mut buffer)?;
    if received.len == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let answer: Value = serde_json::from_slice(&buffer[..received.len]).map_err(|_| Error::Strange)?;
    match answer["error"].as_str() {
        Some(error) => Err(Error::Refused(error.to_owned())),
        None => Ok((answer, received.fds)),
    }
}
