//! XRC domains: which file names which domain, and the target QPs and SRQs of each. The principal
//! type is [`Domains`].

use std::collections::{BTreeMap, BTreeSet};

use crate::foreign::Foreign;
use crate::ids::ContextId;

/// A domain.
#[derive(Debug)]
struct XrcDomain {
    device: usize,
    /// The file through which other processes find it.
    file: Option<XrcdFile>,
    handles: u32,
    /// A secret of the processes that have opened the domain; 0 for a private domain.
    token: u64,
}

/// A target QP of a domain.
#[derive(Debug)]
struct Target {
    domain: u32,
    /// The context that serves it, and its handle there.
    server: (ContextId, u32),
    /// The further handles, each with its context.
    opened: BTreeSet<(ContextId, u32)>,
}

/// The file that names a domain. It is kept open, so that no other file gets its inode.
#[derive(Debug)]
pub(crate) struct XrcdFile {
    /// Device and inode.
    pub(crate) inode: (u64, u64),
    pub(crate) _fd: Foreign,
}

/// Every domain of an agent.
#[derive(Debug, Default)]
pub struct Domains {
    last: u32,
    all: BTreeMap<u32, XrcDomain>,
    /// Domains with a file, by device and file.
    by_file: BTreeMap<(usize, (u64, u64)), u32>,
    /// The target QPs, by number.
    targets: BTreeMap<u32, Target>,
    /// The contexts of SRQs, by domain and number.
    srqs: BTreeMap<(u32, u32), ContextId>,
}

impl Domains {
    pub(crate) fn of_file(&self, device: usize, inode: (u64, u64)) -> Option<u32> {
        self.by_file.get(&(device, inode)).copied()
    }

    /// Adds a domain. One with a file has a secret. Without randomness there is no sharing: 0 is
    /// the token of a private domain.
    pub(crate) fn add(&mut self, device: usize, file: Option<XrcdFile>, secret: impl FnOnce() -> u64) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        let token = if file.is_some() { secret() } else { 0 };
        if let Some(file) = &file {
            self.by_file.insert((device, file.inode), self.last);
        }
        self.all.insert(self.last, XrcDomain { device, file, handles: 0, token });
        self.last
    }

    /// Counts one more handle of a domain.
    pub(crate) fn hold(&mut self, number: u32) {
        if let Some(domain) = self.all.get_mut(&number) {
            domain.handles += 1;
        }
    }

    /// The context that serves a target QP of a domain, and its handle there.
    pub(crate) fn target(&self, domain: u32, qpn: u32) -> Option<(ContextId, u32)> {
        self.targets.get(&qpn).filter(|target| target.domain == domain).map(|target| target.server)
    }

    /// Adds a further handle of a target QP.
    pub(crate) fn open(&mut self, qpn: u32, opened: (ContextId, u32)) {
        if let Some(target) = self.targets.get_mut(&qpn) {
            target.opened.insert(opened);
        }
    }

    /// Whether processes share the domain through a file.
    pub fn is_of_file(&self, domain: u32) -> bool {
        self.token(domain) != 0
    }

    /// The domain's secret.
    pub fn token(&self, domain: u32) -> u64 {
        self.all.get(&domain).map_or(0, |domain| domain.token)
    }

    /// Adds a target QP, or moves it to another context.
    pub fn enter(&mut self, domain: u32, qpn: u32, owner: ContextId, handle: u32) {
        let target = Target { domain, server: (owner, handle), opened: BTreeSet::new() };
        self.targets.entry(qpn).or_insert(target).server = (owner, handle);
    }

    /// The context that serves a target QP, and its handle there.
    pub fn server(&self, qpn: u32) -> Option<(ContextId, u32)> {
        self.targets.get(&qpn).map(|target| target.server)
    }

    /// The further handles of a target QP that a context has.
    pub fn opened_by(&self, qpn: u32, context: ContextId) -> impl Iterator<Item = u32> + '_ {
        let target = self.targets.get(&qpn).into_iter();
        let opened = target.flat_map(move |target| target.opened.range((context, 0)..=(context, u32::MAX)));
        opened.map(|(_, handle)| *handle)
    }

    /// All further handles of a target QP, each with its context.
    pub fn opened(&self, qpn: u32) -> impl Iterator<Item = (ContextId, u32)> + '_ {
        self.targets.get(&qpn).into_iter().flat_map(|target| target.opened.iter().copied())
    }

    /// Adds an SRQ of a domain.
    pub fn enter_srq(&mut self, domain: u32, number: u32, owner: ContextId) {
        self.srqs.insert((domain, number), owner);
    }

    /// Removes an SRQ of a domain.
    pub fn leave_srq(&mut self, domain: u32, number: u32) {
        self.srqs.remove(&(domain, number));
    }

    /// The context of an SRQ of a domain.
    pub fn srq(&self, domain: u32, number: u32) -> Option<ContextId> {
        self.srqs.get(&(domain, number)).copied()
    }

    /// Removes a target QP.
    pub fn leave(&mut self, qpn: u32) {
        self.targets.remove(&qpn);
    }

    /// Removes a further handle of a target QP.
    pub(crate) fn close(&mut self, qpn: u32, opened: (ContextId, u32)) {
        if let Some(target) = self.targets.get_mut(&qpn) {
            target.opened.remove(&opened);
        }
    }

    /// Removes a handle of a domain; with the last one the domain goes.
    pub(crate) fn let_go(&mut self, number: u32) {
        if let Some(domain) = self.all.get_mut(&number) {
            domain.handles -= 1;
            if domain.handles == 0
                && let Some(XrcDomain { device, file: Some(file), .. }) = self.all.remove(&number)
            {
                self.by_file.remove(&(device, file.inode));
            }
        }
    }
}
