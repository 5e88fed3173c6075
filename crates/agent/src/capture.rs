//! Captures: the clients that want copies of packets, and the capture rings to which engines write
//! the copies.
//!
//! Packets between engines do not pass through the agent, so each engine copies its own packets.
//! For each capture, the agent creates one capture ring per engine. It pushes one end to the
//! engine, and gives the other end to the capturing client when the client asks. A user gets the
//! capture rings of their own programs. Root and the agent's own user get all. The datagrams of the
//! connection manager belong to the agent, so each capture has a capture ring for them too;
//! [`watchers`] decides what goes there. If a capture does not see every engine, its engines also
//! copy packets that arrive over lanes. The principal type is [`Captures`].

pub(crate) mod watchers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use abi::capture::{PACKET_MAX, flag};
use abi::private::{LaneOut, Push, push};
use serde_json::{Value, json};
use shm::capture_ring::CAPTURE_RING_MIN;
use shm::socket::FDS_MAX;

use crate::asker::Asker;
use crate::context::Context;
use crate::devices::Devices;
use crate::foreign::Foreign;
use crate::host::Host;
use crate::ids::ContextId;
use watchers::Watchers;

/// Maximum number of captures at a time: of all users, and of one user who is not root.
const CAPTURES_MAX: usize = 12;
const USER_CAPTURES_MAX: usize = 3;
/// The largest capture ring that a client may ask for.
const ROOM_MAX: usize = 64 << 20;
/// The size of a capture ring if the client asks for none.
const ROOM: usize = 4 << 20;
/// Maximum number of capture rings that wait for a client, for any number of descriptors. Further
/// engines are not captured.
const WAITING_MAX: usize = 1024;
/// How many capture rings may wait for each capture of a user whose share is this many descriptors.
pub(crate) fn waiting(descriptors: u64) -> usize {
    usize::try_from(descriptors / USER_CAPTURES_MAX as u64).unwrap_or(usize::MAX).clamp(4, WAITING_MAX)
}

/// The running captures, by the number of the connection that asked for each.
pub(crate) struct Captures {
    host: Arc<dyn Host>,
    running: BTreeMap<u32, Capture>,
    /// How many capture rings of each capture may wait for the client.
    pub(crate) waiting: usize,
    /// The captures that see the agent's own packets.
    watchers: Watchers,
}

struct Capture {
    asker: Asker,
    room: usize,
    most: u32,
    /// Capture rings that the client has not asked for yet, each with its description.
    waiting: VecDeque<(Value, OwnedFd)>,
    /// The limit of `waiting`.
    waiting_max: usize,
    engines: BTreeSet<ContextId>,
    /// Engines that have ended since the client last asked.
    ended: Vec<u32>,
    /// How many engines are not captured, because there were too many.
    unseen: u32,
}

impl Captures {
    /// No captures yet; their rings will be memory of `host`.
    pub(crate) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, running: BTreeMap::new(), waiting: WAITING_MAX, watchers: Watchers::default() }
    }

    pub(crate) fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Handles the end of an engine. Its capture ring can still be read.
    pub(crate) fn forget(&mut self, engine: ContextId) {
        for capture in self.running.values_mut() {
            if capture.engines.remove(&engine) {
                capture.ended.push(engine.0);
            }
        }
    }
}

impl Capture {
    fn wanted(&self, number: u32) -> LaneOut {
        let side = if self.asker == Asker::Root { 0 } else { flag::LANES_IN };
        LaneOut { lane: number, side, lane_index: self.most, len: self.room as u32, ..LaneOut::default() }
    }

    /// Gives an engine a capture ring.
    fn add(
        &mut self,
        host: &Arc<dyn Host>,
        number: u32,
        id: ContextId,
        context: &mut Context,
        device: &str,
    ) -> io::Result<()> {
        let wanted = self.wanted(number);
        let Some(link) = context.engine.as_mut().filter(|_| self.asker.may_see(context.peer.uid)) else {
            return Ok(());
        };
        if self.waiting.len() >= self.waiting_max || self.waiting.try_reserve(1).is_err() {
            self.unseen += 1;
            return Ok(());
        }
        let ring = host.capture_ring(self.room)?;
        let theirs = Foreign::memory(host.duplicate(ring.as_fd())?, Arc::clone(host));
        link.push(Push { kind: push::CAPTURE, reserved: 0, lane: wanted }, vec![Arc::new(theirs)]);
        let about = json!({
            "engine": id.0,
            "pid": context.peer.pid,
            "comm": context.peer.comm,
            "uid": context.peer.uid,
            "device": device,
            "room": self.room,
        });
        self.waiting.push_back((about, ring));
        self.engines.insert(id);
        Ok(())
    }
}

impl Captures {
    /// Starts a capture for the connection `number`, which has none yet.
    pub(crate) fn begin(
        &mut self,
        (contexts, devices): (&mut Contexts, &Devices),
        number: u32,
        asker: Asker,
        question: &Value,
    ) -> Value {
        let captures = &self.running;
        let of_his = captures.values().filter(|capture| capture.asker == asker).count();
        if captures.contains_key(&number) {
            return json!({"error": "this connection captures already"});
        }
        if captures.len() >= CAPTURES_MAX || (asker != Asker::Root && of_his >= USER_CAPTURES_MAX) {
            return json!({"error": "there are too many captures at a time; end one of them"});
        }
        let asked = |name: &str| question[name].as_u64().and_then(|value| usize::try_from(value).ok());
        let room = asked("room").unwrap_or(ROOM).clamp(CAPTURE_RING_MIN, ROOM_MAX).next_power_of_two();
        let most = asked("most").filter(|most| *most > 0).unwrap_or(PACKET_MAX).min(PACKET_MAX) as u32;
        let mut capture = Capture {
            asker,
            room,
            most,
            waiting: VecDeque::new(),
            waiting_max: self.waiting,
            engines: BTreeSet::new(),
            ended: Vec::new(),
            unseen: 0,
        };
        let begun = self.hook_agent(number, &mut capture).and_then(|()| {
            contexts.iter_mut().try_for_each(|(id, context)| {
                capture.add(&self.host, number, *id, context, &devices[context.device].name)
            })
        });
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let ports = ports_of(devices);
        let everything = asker == Asker::Root;
        let answer =
            json!({"capture": number, "everything": everything, "room": room, "devices": names, "ports": ports});
        self.running.insert(number, capture);
        match begun {
            Ok(()) => answer,
            Err(error) => {
                self.end(contexts, number);
                json!({"error": format!("no capture ring could be made: {error}")})
            }
        }
    }

    /// Captures the agent's own packets, as far as the asker may see them.
    fn hook_agent(&self, number: u32, capture: &mut Capture) -> io::Result<()> {
        let ring = self.host.capture_ring(capture.room)?;
        self.watchers.begin(capture.asker, &capture.wanted(number), &ring)?;
        let about = json!({"engine": 0, "pid": std::process::id(), "comm": "the agent", "room": capture.room});
        capture.waiting.push_back((about, ring));
        Ok(())
    }

    /// Handles ENGINE_HELLO: captures see the engine from its first packet on.
    pub(crate) fn greet(&mut self, context: &mut Context, device: &str) {
        for (number, capture) in &mut self.running {
            if let Err(error) = capture.add(&self.host, *number, context.id, context, device) {
                tracing::warn!(%error, "an engine's packets are not captured");
                capture.unseen += 1;
            }
        }
    }

    /// The news since the connection `number` last asked: capture rings, and engines that have
    /// ended.
    pub(crate) fn news(&mut self, number: u32) -> (Value, Vec<OwnedFd>) {
        let Some(capture) = self.running.get_mut(&number) else {
            return (json!({"error": "this connection captures nothing: ask for \"capture\" first"}), Vec::new());
        };
        let count = capture.waiting.len().min(FDS_MAX);
        let (rings, fds): (Vec<Value>, Vec<OwnedFd>) = capture.waiting.drain(..count).unzip();
        // The client must know an engine before it learns of the engine's end.
        let ended = if capture.waiting.is_empty() { std::mem::take(&mut capture.ended) } else { Vec::new() };
        let more = !capture.waiting.is_empty();
        (json!({"rings": rings, "ended": ended, "more": more, "unseen": capture.unseen}), fds)
    }

    /// Ends the capture of a connection that has ended, if it has one.
    pub(crate) fn end(&mut self, contexts: &mut Contexts, number: u32) {
        let Some(mut capture) = self.running.remove(&number) else { return };
        // Engines may have written megabytes to each ring, so another thread frees them.
        let waiting = std::mem::take(&mut capture.waiting);
        if !waiting.is_empty() {
            self.host.later(Box::new(move || drop(waiting)));
        }
        self.watchers.end(capture.asker, number);
        let goodbye =
            Push { kind: push::CAPTURE_END, lane: LaneOut { lane: number, ..LaneOut::default() }, ..Push::default() };
        for engine in capture.engines {
            if let Some(link) = contexts.get_mut(&engine).and_then(|context| context.engine.as_mut()) {
                link.push(goodbye, Vec::new());
            }
        }
    }
}

/// What a client must know of each port.
fn ports_of(devices: &Devices) -> Vec<Value> {
    let mut all = Vec::new();
    for device in devices {
        for (number, port) in (1_u8..).zip(&device.ports) {
            let link = if port.is_infiniband() { "InfiniBand" } else { "Ethernet" };
            all.push(json!({"device": device.name, "index": device.index, "port": number, "link": link}));
        }
    }
    all
}

/// All contexts.
type Contexts = BTreeMap<ContextId, Context>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capture_rings_that_wait_for_a_user_are_descriptors_of_its_share() {
        assert_eq!([0, 128, 3000, u64::MAX].map(waiting), [4, 42, 1000, WAITING_MAX]);
    }
}
