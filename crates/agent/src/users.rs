//! What each user holds of an agent, counted as objects come and go, and the size of a share.
//! [`crate::shares`] decides whether a user may have one more. The principal types are [`User`] and
//! [`Tally`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use crate::device::Device;
use crate::ids::ContextId;
use crate::mapped::Mapped;
use crate::objects::{Ah, CompletionChannel, Cq, Dm, Mr, Mw, OpenedQp, Pd, Qp, Srq, Xrcd};
use crate::table::{Kind, Table};

/// One user gets at most one of this many parts.
pub(crate) const PARTS: u32 = 4;

/// Descriptors that the agent keeps for a context with an engine and a few lanes.
const CONTEXT_DESCRIPTORS: u64 = 32;

/// Bytes of the agent's memory for the objects of one user. The objects of a whole device with
/// default limits fit.
pub const USER_BYTES: u64 = 512 << 20;

/// Mappings of the agent for a context with a proxy engine, without memory that is counted
/// separately.
const CONTEXT_MAPPINGS: u64 = 14;

/// Maximum number of contexts of one user, for any number of descriptors.
const CONTEXTS_MAX: u32 = 4096;

/// Maximum number of descriptors of one user that may wait to be closed, for any number of
/// descriptors.
const WAITING_MAX: usize = 1024;

/// Maximum number of proxy engines for programs of one user; each is two threads.
const PROXIES_MAX: u32 = 256;

/// How many contexts one user may have, if a process may have this many descriptors and mappings.
pub fn contexts(descriptors: Option<u64>, mappings: u64) -> u32 {
    let possible = descriptors.unwrap_or(u64::MAX) / u64::from(PARTS) / CONTEXT_DESCRIPTORS;
    let possible = possible.min(mappings / u64::from(PARTS) / CONTEXT_MAPPINGS);
    u32::try_from(possible).unwrap_or(u32::MAX).clamp(4, CONTEXTS_MAX)
}

/// How many proxy engines the agent may run for a user who may have this many contexts.
pub fn proxies(contexts: u32) -> u32 {
    (contexts / 2).clamp(1, PROXIES_MAX)
}

/// How many channels and regions with memfd one user may have, if a process may have `descriptors`.
/// `alone`: the agent serves no other user.
pub fn descriptors(descriptors: Option<u64>, alone: bool) -> u64 {
    descriptors.unwrap_or(u64::MAX) / if alone { 2 } else { u64::from(PARTS) * 2 }
}

/// How much of one user may wait to be closed while the agent still reads the user's messages, if a
/// process may have `descriptors`.
pub fn waiting(descriptors: Option<u64>) -> usize {
    let part = descriptors.unwrap_or(u64::MAX) / u64::from(PARTS) / 4;
    usize::try_from(part).unwrap_or(usize::MAX).clamp(4, WAITING_MAX)
}

/// How many regions of one user the agent may map, if a process may have `mappings`. This counts
/// for regions of memory, and again for regions of queue memory, which a proxy engine maps once
/// more.
pub fn regions(mappings: u64) -> u64 {
    (mappings / u64::from(PARTS) / 4).max(64)
}

/// How many lanes the engines of one user may open, if a process may have this many descriptors and
/// mappings. A lane between programs costs the agent a descriptor and no mapping. If there are many
/// descriptors, the number of mappings bounds what the kernel keeps for lanes.
pub fn lanes(possible: Option<u64>, mappings: u64) -> u64 {
    descriptors(possible, false).min(mappings / u64::from(PARTS))
}

/// How many of these lanes may have an end at a proxy engine. Each such end costs the agent two
/// mappings.
pub fn proxy_lanes(mappings: u64) -> u64 {
    (regions(mappings) / 8).max(64)
}

/// One part of `most`.
pub fn part(most: u32) -> u32 {
    (most / PARTS).max(1)
}

/// All users.
#[derive(Debug)]
pub struct Users {
    /// Whether the agent serves many users and keeps them apart.
    pub apart: bool,
    /// Whether `softhca run` gives programs shared memory, unless the user decides otherwise.
    pub(crate) shared_memory: bool,
    /// What each user holds.
    pub all: BTreeMap<u32, User>,
    /// How much memory of clients the agent may have mapped.
    pub mapped: Mapped,
    /// How many contexts one user may have, if users are kept apart.
    pub contexts: u32,
    /// How many channels and regions with memfd one user may have. If users are not kept apart, it
    /// holds for all programs together.
    pub descriptors: u64,
    /// How many bytes of the agent's memory the objects of one user may take, if users are kept
    /// apart.
    pub bytes: u64,
    /// How many regions of one user the agent may map, if users are kept apart.
    pub regions: u64,
    /// How many lanes the engines of one user may have open, if users are kept apart.
    pub lanes: u64,
    /// How many of these lanes may have an end at a proxy engine.
    pub proxy_lanes: u64,
    /// The users who may send and receive MADs, besides root and the agent's own user.
    pub mads: BTreeSet<u32>,
    /// How many proxy engines the agent runs for programs of one user, if users are kept apart.
    pub proxies: u32,
    /// Each proxy engine holds a clone of its user's entry until its threads have ended.
    running: BTreeMap<u32, Arc<()>>,
}

impl Users {
    /// Creates the table without users and without limits. `apart`: the agent serves many users and
    /// keeps them apart.
    pub fn new(apart: bool) -> Self {
        Self {
            apart,
            shared_memory: false,
            all: BTreeMap::new(),
            mapped: Mapped::default(),
            mads: BTreeSet::new(),
            contexts: contexts(None, u64::MAX),
            descriptors: descriptors(None, true),
            bytes: USER_BYTES,
            regions: regions(u64::MAX),
            lanes: lanes(None, u64::MAX),
            proxy_lanes: proxy_lanes(u64::MAX),
            proxies: PROXIES_MAX,
            running: BTreeMap::new(),
        }
    }

    /// Lets these users send and receive MADs.
    pub(crate) fn with_mads(mut self, users: &[u32]) -> Self {
        self.mads.extend(users);
        self
    }

    pub(crate) fn with_shared_memory(mut self, shared: bool) -> Self {
        self.shared_memory = shared;
        self
    }

    /// Divides this many descriptors and mappings among users.
    pub(crate) fn share(&mut self, possible: Option<u64>, mappings: u64) {
        self.contexts = contexts(possible, mappings);
        self.descriptors = descriptors(possible, !self.apart);
        self.regions = regions(mappings);
        self.lanes = lanes(possible, mappings);
        self.proxy_lanes = proxy_lanes(mappings);
        self.proxies = proxies(self.contexts);
    }

    /// How many proxy engines run for programs of a user, including those that are ending.
    pub(crate) fn running(&self, uid: u32) -> usize {
        self.running.get(&uid).map_or(0, |running| Arc::strong_count(running) - 1)
    }

    /// Counts one more proxy engine until the returned value is dropped.
    pub(crate) fn run(&mut self, uid: u32) -> Arc<()> {
        self.running.retain(|_, running| Arc::strong_count(running) > 1);
        Arc::clone(self.running.entry(uid).or_default())
    }

    /// Removes a context of a user.
    pub(crate) fn forget(&mut self, uid: u32, context: ContextId) {
        if let Some(user) = self.all.get_mut(&uid) {
            user.contexts.remove(&context);
            if user.contexts.is_empty() {
                self.all.remove(&uid);
            }
        }
    }
}

/// What one user holds.
#[derive(Debug, Default)]
pub struct User {
    /// Its contexts, including those that are ending.
    pub contexts: BTreeSet<ContextId>,
    /// Its objects, by kind, of each device.
    objects: Vec<[u32; KINDS]>,
    /// Bytes of device memory of each device.
    pub(crate) memory: Vec<u64>,
    /// Bytes of the agent that its objects take.
    pub(crate) bytes: u64,
}

/// All kinds are below this number.
const KINDS: usize = 16;

impl User {
    /// How many objects of a kind it has at the device with this index.
    pub(crate) fn count(&self, device: usize, kind: Kind) -> u32 {
        self.objects.get(device).map_or(0, |objects| objects[kind as usize])
    }
}

/// A device and the user of a context, to count objects at both.
pub struct Tally<'w> {
    device: &'w mut Device,
    user: Option<&'w mut User>,
}

impl<'w> Tally<'w> {
    pub(crate) fn new(device: &'w mut Device, user: Option<&'w mut User>) -> Self {
        Self { device, user }
    }

    /// Counts an object that was created.
    pub fn count_up(&mut self, kind: Kind) {
        self.device.count_up(kind);
        if let Some(user) = &mut self.user {
            if user.objects.len() <= self.device.index {
                user.objects.resize(self.device.index + 1, [0; KINDS]);
            }
            user.objects[self.device.index][kind as usize] += 1;
            user.bytes += weight(kind);
        }
    }

    /// Counts an object that is gone.
    pub fn count_down(&mut self, kind: Kind) {
        self.device.count_down(kind);
        if let Some(user) = &mut self.user
            && let Some(count) = user.objects.get_mut(self.device.index).map(|objects| &mut objects[kind as usize])
            && *count > 0
        {
            *count -= 1;
            user.bytes = user.bytes.saturating_sub(weight(kind));
        }
    }

    /// Counts device memory that was allocated.
    pub fn take_memory(&mut self, bytes: u64) {
        self.device.dm_used += bytes;
        if let Some(user) = &mut self.user {
            if user.memory.len() <= self.device.index {
                user.memory.resize(self.device.index + 1, 0);
            }
            user.memory[self.device.index] += bytes;
        }
    }

    /// Counts device memory that was freed.
    pub fn give_memory(&mut self, bytes: u64) {
        self.device.dm_used = self.device.dm_used.saturating_sub(bytes);
        if let Some(held) = self.user.as_mut().and_then(|user| user.memory.get_mut(self.device.index)) {
            *held = held.saturating_sub(bytes);
        }
    }
}

impl Deref for Tally<'_> {
    type Target = Device;

    fn deref(&self) -> &Device {
        self.device
    }
}

/// Bytes of the agent for one object of a kind: its slot in the table and what belongs to it alone.
/// An object with queues also costs the page of queue memory that the agent writes first.
pub(crate) const fn weight(kind: Kind) -> u64 {
    const PAGE: usize = 4096;
    /// A descriptor, with the kernel's memory for it.
    const DESCRIPTOR: usize = 1024;
    let bytes = match kind {
        Kind::Pd => Table::<Pd>::EACH,
        Kind::Mr => Table::<Mr>::EACH + size_of::<u32>() + 1,
        Kind::Mw => Table::<Mw>::EACH + size_of::<u32>() + 1,
        Kind::Dm => Table::<Dm>::EACH + DESCRIPTOR,
        Kind::Cq => Table::<Cq>::EACH + PAGE,
        Kind::Qp => Table::<Qp>::EACH + PAGE,
        Kind::Srq => Table::<Srq>::EACH + PAGE,
        Kind::Ah => Table::<Ah>::EACH,
        Kind::Channel => Table::<CompletionChannel>::EACH + DESCRIPTOR,
        Kind::Xrcd => Table::<Xrcd>::EACH + DESCRIPTOR,
        Kind::Opened => Table::<OpenedQp>::EACH,
    };
    bytes as u64
}
