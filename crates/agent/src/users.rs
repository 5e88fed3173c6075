//! What each user has of an agent, counted as objects come and go, and how large a share of everything is. Whether a user may have one
//! more is said in [`crate::shares`]. The principal types are [`User`] and [`Tally`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::device::Device;
use crate::ids::ContextId;
use crate::mapped::Mapped;
use crate::objects::{Ah, Channel, Cq, Dm, Mr, Mw, Opened, Pd, Qp, Srq, Xrcd};
use crate::table::{Kind, Table};

/// One user has at most one part in so many.
pub(crate) const PARTS: u32 = 4;

/// Descriptors that the agent keeps for a context with an engine and a few lanes.
const CONTEXT_DESCRIPTORS: u64 = 32;

/// Bytes of the agent's memory for the objects of one user: enough for all that a device has by default.
pub const USER_BYTES: u64 = 512 << 20;

/// Mappings of the agent for a context whose engine it runs, beside memory that is counted apart.
const CONTEXT_MAPPINGS: u64 = 14;

/// The most contexts of one user, however many descriptors there are.
const CONTEXTS_MAX: u32 = 4096;

/// The most that may wait to be closed of one user, however many descriptors there are.
const WAITING_MAX: usize = 1024;

/// The most engines that the agent runs for programs of one user: each is two threads.
const PROXIES_MAX: u32 = 256;

/// The contexts that one user may have where a process may have so many descriptors and mappings.
pub fn contexts(descriptors: Option<u64>, mappings: u64) -> u32 {
    let possible = descriptors.unwrap_or(u64::MAX) / u64::from(PARTS) / CONTEXT_DESCRIPTORS;
    let possible = possible.min(mappings / u64::from(PARTS) / CONTEXT_MAPPINGS);
    u32::try_from(possible).unwrap_or(u32::MAX).clamp(4, CONTEXTS_MAX)
}

/// The engines that the agent may run for programs of one user who may have so many contexts.
pub fn proxies(contexts: u32) -> u32 {
    (contexts / 2).clamp(1, PROXIES_MAX)
}

/// The channels and regions with memfd that one user may have where a process may have `descriptors`. `alone`: the agent serves no
/// other user.
pub fn descriptors(descriptors: Option<u64>, alone: bool) -> u64 {
    descriptors.unwrap_or(u64::MAX) / if alone { 2 } else { u64::from(PARTS) * 2 }
}

/// How much of one user may wait to be closed where a process may have `descriptors`, while its messages are read.
pub fn waiting(descriptors: Option<u64>) -> usize {
    let part = descriptors.unwrap_or(u64::MAX) / u64::from(PARTS) / 4;
    usize::try_from(part).unwrap_or(usize::MAX).clamp(4, WAITING_MAX)
}

/// The regions that one user may have the agent map where a process may have `mappings`: so many of its
/// memory, and so many of queue memory, which the engine that the agent runs for a client maps once more.
pub fn regions(mappings: u64) -> u64 {
    (mappings / u64::from(PARTS) / 4).max(64)
}

/// The lanes that one user's engines may open where a process may have so many descriptors and mappings. A lane between programs costs
/// the agent a descriptor and no mapping; the number of mappings bounds what the kernel keeps for lanes where there are many descriptors.
pub fn lanes(possible: Option<u64>, mappings: u64) -> u64 {
    descriptors(possible, false).min(mappings / u64::from(PARTS))
}

/// Those of them that may have an end which the agent runs: each end is two mappings of the agent.
pub fn proxy_lanes(mappings: u64) -> u64 {
    (regions(mappings) / 8).max(64)
}

/// One part of what there is.
pub fn part(most: u32) -> u32 {
    (most / PARTS).max(1)
}

/// All users.
#[derive(Debug)]
pub struct Users {
    /// Whether many are served and kept apart.
    pub apart: bool,
    /// What each has.
    pub all: BTreeMap<u32, User>,
    /// How much memory of clients the agent may have mapped.
    pub mapped: Mapped,
    /// How many contexts one user may have, where users are kept apart.
    pub contexts: u32,
    /// How many channels and regions with memfd one user may have; all programs together where users are not kept apart.
    pub descriptors: u64,
    /// How many bytes of the agent's memory the objects of one user may take, where users are kept apart.
    pub bytes: u64,
    /// How many regions of one user the agent may have mapped, where users are kept apart.
    pub regions: u64,
    /// How many lanes one user's engines may have opened, where users are kept apart.
    pub lanes: u64,
    /// How many of them may have an end which the agent runs.
    pub proxy_lanes: u64,
    /// How many engines the agent runs for programs of one user, where users are kept apart.
    pub proxies: u32,
    /// A copy for each engine that the agent runs for a program of a user, until its threads have ended.
    running: BTreeMap<u32, Arc<()>>,
}

impl Users {
    /// Nobody yet, and as much for each as there can be. `apart`: many are served, and kept apart.
    pub fn new(apart: bool) -> Self {
        Self {
            apart,
            all: BTreeMap::new(),
            mapped: Mapped::default(),
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

    /// Each user has a share of so many descriptors and mappings.
    pub(crate) fn share(&mut self, possible: Option<u64>, mappings: u64) {
        self.contexts = contexts(possible, mappings);
        self.descriptors = descriptors(possible, !self.apart);
        self.regions = regions(mappings);
        self.lanes = lanes(possible, mappings);
        self.proxy_lanes = proxy_lanes(mappings);
        self.proxies = proxies(self.contexts);
    }

    /// How many engines run here for programs of a user, those that end included.
    pub(crate) fn running(&self, uid: u32) -> usize {
        self.running.get(&uid).map_or(0, |running| Arc::strong_count(running) - 1)
    }

    /// One more runs, as long as what this gives is kept.
    pub(crate) fn run(&mut self, uid: u32) -> Arc<()> {
        self.running.retain(|_, running| Arc::strong_count(running) > 1);
        Arc::clone(self.running.entry(uid).or_default())
    }

    /// A context of a user is gone.
    pub(crate) fn forget(&mut self, uid: u32, context: ContextId) {
        if let Some(user) = self.all.get_mut(&uid) {
            user.contexts.remove(&context);
            if user.contexts.is_empty() {
                self.all.remove(&uid);
            }
        }
    }
}

/// What one user has.
#[derive(Debug, Default)]
pub struct User {
    /// Its contexts, those that end included.
    pub contexts: BTreeSet<ContextId>,
    /// Its objects, by kind, of each device.
    objects: Vec<[u32; KINDS]>,
    /// Bytes of device memory, of each device.
    pub(crate) memory: Vec<u64>,
    /// Bytes of the agent that its objects take.
    pub(crate) bytes: u64,
}

/// Kinds are numbers below this.
const KINDS: usize = 16;

impl User {
    /// How many objects of a kind it has of the device with this index.
    pub(crate) fn count(&self, device: usize, kind: Kind) -> u32 {
        self.objects.get(device).map_or(0, |objects| objects[kind as usize])
    }
}

/// A device and the user of a context, to count what comes and goes.
pub struct Tally<'w> {
    device: &'w mut Device,
    user: Option<&'w mut User>,
}

impl<'w> Tally<'w> {
    pub(crate) fn new(device: &'w mut Device, user: Option<&'w mut User>) -> Self {
        Self { device, user }
    }

    /// Counts an object that was made.
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

    /// Counts device memory that is free again.
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

impl DerefMut for Tally<'_> {
    fn deref_mut(&mut self) -> &mut Device {
        self.device
    }
}

/// Bytes of the agent for one object of a kind: its place in the table, what belongs to it alone, and where it has queues,
/// the page of queue memory that the agent is the first to write to.
pub(crate) const fn weight(kind: Kind) -> u64 {
    const PAGE: usize = 4096;
    /// A descriptor of the system's, with what is behind it.
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
        Kind::Channel => Table::<Channel>::EACH + DESCRIPTOR,
        Kind::Xrcd => Table::<Xrcd>::EACH + DESCRIPTOR,
        Kind::Opened => Table::<Opened>::EACH,
    };
    bytes as u64
}
