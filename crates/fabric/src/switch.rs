//! The switch: carries packets between the hosts of one process, and loses, repeats, reorders or
//! damages some of them on demand.
//!
//! The switch takes the place of UDP: engines send through its [`Outlet`]s, and the same call gives
//! the packets to the target agent's forwarder. The segments of one send stay together, as
//! segmentation offload keeps them. Principal type: [`Switch`].

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use agent::wire::Forwarder;
use engine::{Network, Outlet};
use parking_lot::{Mutex, RwLock};
use softhca::Gid;

use abi::fault::{Armed, Direction, Facts, Fate, Rule, decide};

use crate::faults::Faults;
use crate::head::{HOPS, Head, source_port};

/// The ECN bits of a traffic class: 0 from senders that do not react to CE marks; all bits set is
/// the CE mark.
const ECN: u8 = 3;

/// The network between the hosts of a fabric.
pub struct Switch {
    plugs: RwLock<Vec<Arc<Plug>>>,
    places: RwLock<HashMap<Gid, Arc<Plug>>>,
    /// Addresses that are cut off.
    cut: RwLock<HashSet<Gid>>,
    /// Whether there are any cut addresses.
    has_cuts: AtomicBool,
    /// Whether there are faults: without faults, packets take no lock.
    faulty: AtomicBool,
    /// Whether the switch sets CE marks, as if its queues were long.
    marks: AtomicBool,
    trouble: Mutex<Trouble>,
    ports: AtomicU16,
    packets: AtomicU64,
}

struct Trouble {
    rules: Vec<Armed>,
    /// Packets that are held back until the next packet to their host.
    late: Vec<(Arc<Plug>, Late)>,
    counts: Counts,
}

/// Counters of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Packets that came in.
    pub packets: u64,
    /// Packets that were lost on purpose.
    pub lost: u64,
    /// Packets that were repeated.
    pub repeated: u64,
    /// Packets that were held back.
    pub reordered: u64,
    /// Packets that were damaged.
    pub damaged: u64,
}

/// A held-back packet.
struct Late {
    head: Head,
    bytes: Vec<u8>,
}

/// The connection of a host to the switch.
pub(crate) struct Plug {
    switch: std::sync::Weak<Switch>,
    gids: Vec<Gid>,
    forwarder: Arc<Forwarder>,
    connected: AtomicBool,
}

impl Switch {
    pub(crate) fn new(faults: Faults) -> Self {
        let rules = armed(faults.rules());
        let faulty = AtomicBool::new(!rules.is_empty());
        let trouble = Trouble { rules, late: Vec::new(), counts: Counts::default() };
        Self {
            plugs: RwLock::default(),
            places: RwLock::default(),
            cut: RwLock::default(),
            has_cuts: AtomicBool::new(false),
            faulty,
            marks: AtomicBool::new(false),
            trouble: Mutex::new(trouble),
            ports: AtomicU16::new(0),
            packets: AtomicU64::new(0),
        }
    }

    pub(crate) fn plug(self: &Arc<Self>, addresses: &[IpAddr], forwarder: Arc<Forwarder>) -> Arc<Plug> {
        let gids: Vec<Gid> = addresses.iter().copied().map(Gid::from).collect();
        let switch = Arc::downgrade(self);
        let plug = Arc::new(Plug { switch, gids: gids.clone(), forwarder, connected: AtomicBool::new(true) });
        self.places.write().extend(gids.into_iter().map(|gid| (gid, Arc::clone(&plug))));
        self.plugs.write().push(Arc::clone(&plug));
        plug
    }

    /// Replaces the faults. Packets that were held back are delivered now.
    pub fn set_faults(&self, faults: Faults) {
        self.set_rules(faults.rules());
    }

    /// Sets the faults by rules of faults on demand. The switch loses, repeats, reorders and
    /// damages packets; rules of other kinds have no effect here.
    pub fn set_rules(&self, rules: Vec<Rule>) {
        let mut trouble = self.trouble.lock();
        trouble.rules = armed(rules);
        let faulty = !trouble.rules.is_empty();
        for (plug, late) in std::mem::take(&mut trouble.late) {
            plug.take(&late.head, late.bytes.len(), &late.bytes);
        }
        self.faulty.store(faulty, Ordering::Relaxed);
    }

    /// Starts or stops losing all packets from and to one address.
    pub(crate) fn cut(&self, address: Gid, cut: bool) {
        let mut all = self.cut.write();
        if cut {
            all.insert(address);
        } else {
            all.remove(&address);
        }
        self.has_cuts.store(!all.is_empty(), Ordering::Relaxed);
    }

    /// Starts or stops setting the CE mark in all packets whose senders support ECN, as if the
    /// switch's queues were long.
    pub fn set_marks(&self, marks: bool) {
        self.marks.store(marks, Ordering::Relaxed);
    }

    fn loses(&self, head: &Head) -> bool {
        self.has_cuts.load(Ordering::Relaxed) && {
            let cut = self.cut.read();
            cut.contains(&head.from) || cut.contains(&head.to)
        }
    }

    /// The counters so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { packets: self.packets.load(Ordering::Relaxed), ..self.trouble.lock().counts }
    }

    /// Delivers a packet that no host has sent to the host with address `to`. `packet` is from its
    /// BTH to its ICRC, as a faulty adapter or an attacker could send it. Faults do not apply to
    /// it. Returns whether there is a host with this address.
    pub fn inject(&self, from: Gid, from_port: u16, to: Gid, packet: &[u8]) -> bool {
        self.inject_segments(from, from_port, to, packet, packet.len())
    }

    /// Like [`Switch::inject`], for several packets that arrive together, as receive offload joins
    /// them: `packets` is cut into packets of `segment` bytes. The last may be shorter.
    pub fn inject_segments(&self, from: Gid, from_port: u16, to: Gid, packets: &[u8], segment: usize) -> bool {
        let place = self.places.read().get(&to).cloned();
        let head = Head { from, from_port, to, traffic_class: 0, service_level: 0, hop_limit: HOPS };
        place.is_some_and(|plug| {
            plug.take(&head, segment, packets);
            plug.is_connected()
        })
    }

    fn carry(&self, from: &Plug, head: &Head, segment: usize, bytes: &[u8]) {
        self.packets.fetch_add(bytes.len().div_ceil(segment) as u64, Ordering::Relaxed);
        if !from.is_connected() || self.loses(head) {
            return;
        }
        let mut head = *head;
        if head.traffic_class & ECN != 0 && self.marks.load(Ordering::Relaxed) {
            head.traffic_class |= ECN;
        }
        let head = &head;
        if head.to.is_multicast() {
            for plug in self.plugs.read().iter().filter(|plug| !std::ptr::eq(&***plug, from)) {
                self.deliver(plug, head, segment, bytes);
            }
            return;
        }
        let place = self.places.read().get(&head.to).cloned();
        if let Some(plug) = place {
            self.deliver(&plug, head, segment, bytes);
        }
    }

    fn deliver(&self, to: &Arc<Plug>, head: &Head, segment: usize, bytes: &[u8]) {
        if !self.faulty.load(Ordering::Relaxed) {
            return to.take(head, segment, bytes);
        }
        let mut trouble = self.trouble.lock();
        let mut bytes = bytes.to_vec();
        // Start of the bytes that have not been delivered yet.
        let mut start = 0;
        for at in (0..bytes.len()).step_by(segment) {
            let end = bytes.len().min(at + segment);
            let Trouble { rules, late, counts } = &mut *trouble;
            let mut fate = decide::decide(rules, &facts(head, &bytes[at..end]), 0).fate;
            if let Fate::Damaged(bit) = fate {
                // The packet keeps its position among the others.
                counts.damaged += 1;
                let bit = (bit % ((end - at) as u64 * 8)) as usize;
                bytes[at + bit / 8] ^= 1 << (bit % 8);
                fate = Fate::Good;
            }
            let packet = &bytes[at..end];
            if matches!(fate, Fate::Good | Fate::Ghost) {
                if late.is_empty() {
                    continue;
                }
                // The held-back packet comes after this one.
                to.take(head, segment, &bytes[start..at + packet.len()]);
                start = at + packet.len();
                late.retain(|(plug, late)| {
                    let ours = Arc::ptr_eq(plug, to);
                    if ours {
                        to.take(&late.head, late.bytes.len(), &late.bytes);
                    }
                    !ours
                });
                continue;
            }
            to.take(head, segment, &bytes[start..at]);
            start = at + packet.len();
            match fate {
                Fate::Good | Fate::Ghost | Fate::Damaged(_) => {}
                Fate::Lost => counts.lost += 1,
                Fate::Twice => {
                    counts.repeated += 1;
                    (0..2).for_each(|_| to.take(head, packet.len(), packet));
                }
                Fate::Late => {
                    counts.reordered += 1;
                    late.push((Arc::clone(to), Late { head: *head, bytes: packet.to_vec() }));
                }
            }
        }
        to.take(head, segment, &bytes[start..]);
    }
}

fn armed(rules: Vec<Rule>) -> Vec<Armed> {
    (1..).zip(rules).map(|(id, rule)| Armed::new(id, rule)).collect()
}

/// The facts about a packet that the rules need, as the packet itself states them.
fn facts(head: &Head, packet: &[u8]) -> Facts {
    let word = |at: usize| packet.get(at..at + 4).map_or(0, |word| u32::from_be_bytes([0, word[1], word[2], word[3]]));
    Facts {
        direction: Direction::Out,
        device: 0,
        port: 1,
        peer: head.to.0,
        qpn: word(4),
        peer_qpn: word(4),
        opcode: packet.first().copied().unwrap_or_default(),
        // The syndrome of an acknowledgement's AETH.
        syndrome: packet.get(12).copied().unwrap_or_default(),
        len: packet.len() as u32,
        management: false,
        links: 0,
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("hosts", &self.plugs.read().len()).field("counts", &self.counts()).finish()
    }
}

impl Plug {
    pub(crate) fn set(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    pub(crate) fn switch(&self) -> Option<Arc<Switch>> {
        self.switch.upgrade()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    fn take(&self, head: &Head, segment: usize, bytes: &[u8]) {
        if bytes.is_empty() || !self.is_connected() {
            return;
        }
        self.forwarder.take(&head.coming(segment, bytes));
    }
}

impl fmt::Debug for Plug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plug({:?}, {})", self.gids, if self.is_connected() { "connected" } else { "disconnected" })
    }
}

impl Network for Plug {
    fn open(&self, source: [u8; 16], _ifindex: u32, hint: u16) -> io::Result<Arc<dyn Outlet>> {
        let (Some(switch), true) = (self.switch.upgrade(), self.gids.contains(&Gid(source))) else {
            return Err(io::Error::from(io::ErrorKind::AddrNotAvailable));
        };
        let place = switch.places.read().get(&Gid(source)).cloned();
        let plug = place.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let number = switch.ports.fetch_add(1, Ordering::Relaxed);
        let port = source_port(hint, number);
        Ok(Arc::new(SwitchOutlet { switch: self.switch.clone(), plug, source: Gid(source), port }))
    }
}

/// An outlet of a host.
struct SwitchOutlet {
    switch: std::sync::Weak<Switch>,
    plug: Arc<Plug>,
    source: Gid,
    port: u16,
}

impl Outlet for SwitchOutlet {
    fn port(&self) -> u16 {
        self.port
    }

    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()> {
        if let (Some(switch), Some((head, segment))) =
            (self.switch.upgrade(), Head::leaving(self.source, self.port, out))
        {
            switch.carry(&self.plug, &head, segment, out.bytes);
        }
        Ok(())
    }
}
