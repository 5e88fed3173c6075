//! Faults on demand: which rules apply to this engine, and what they decide.
//!
//! The agent writes the rules after the context page and announces them by a push. Each queue pair
//! has a flag, `Special::RULED`, which says whether a rule may concern its packets
//! ([`Armed::may_concern`]). The flag is set again when the rules or the queue pair's attributes
//! change. The data path reads the flag under the queue pair's lock; all further code is cold. What
//! the rules decide is in `faults/rules.rs`, the effect on a packet in `faults/packets.rs`, delayed
//! packets are in `faults/delayed_packets.rs`, and losses on lanes in `faults/lossy.rs`. Principal
//! type: [`Faults`].

mod delayed_packets;
mod lossy;
pub(crate) mod packets;
mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use abi::fault::{Armed, PLACES, Rule, TEXT_MAX, VARIABLE, area};
use abi::private::hello;
use abi::queue::CONTEXT_LEN;
use abi::queue::context_page::FAULTS;
use arc_swap::ArcSwap;
use delayed_packets::DelayedPackets;

use crate::board::Board;
use crate::error::{Result, refusal};
use crate::memory::View;

pub(crate) use delayed_packets::DELAYED_PACKETS;

/// The rules that concern one engine, and the rules that concern its peers. `Q` is the type of
/// queue pairs, whose packets wait here.
pub(crate) struct Faults<Q> {
    /// Whether there are rules: then packets of the general path check their queue pair's flag.
    on: AtomicBool,
    /// The context page; `None` if the agent does not support faults.
    page: Option<View>,
    rules: ArcSwap<Vec<Arc<Armed>>>,
    losses: ArcSwap<Losses>,
    delayed: DelayedPackets<Q>,
}

impl<Q> Faults<Q> {
    pub(crate) fn new(page: View) -> Self {
        Self {
            on: AtomicBool::new(false),
            page: (page.len() >= CONTEXT_LEN).then_some(page),
            rules: ArcSwap::default(),
            losses: ArcSwap::default(),
            delayed: DelayedPackets::new(),
        }
    }

    /// Whether there are any rules.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Writes the rules of the environment to the page, before ENGINE_HELLO is sent. Returns the
    /// flags for ENGINE_HELLO.
    pub(crate) fn ask(page: &View) -> Result<u32> {
        let Some(wanted) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(0) };
        let bad = |why: String| refusal(abi::Errno::EINVAL, format!("{VARIABLE}: {why}"));
        let (text, flags) = match std::fs::read_to_string(&wanted) {
            Ok(text) => (text, hello::FAULTS | hello::TOML),
            Err(_) => (wanted.to_string_lossy().into_owned(), hello::FAULTS),
        };
        if page.len() < CONTEXT_LEN {
            return Err(bad("the agent is of a version without faults".to_owned()));
        }
        if text.len() > TEXT_MAX {
            return Err(bad(format!("{} bytes of rules exceed the limit of {TEXT_MAX} bytes", text.len())));
        }
        page.write_bytes(FAULTS + area::TEXT, text.as_bytes());
        page.word(FAULTS + area::LEN).store(text.len() as u32, Ordering::Release);
        Ok(flags)
    }

    /// The current rules: their epoch, state and text. `None` while the agent writes them.
    fn read(&self) -> Option<(u32, u32, String)> {
        let page = self.page.as_ref()?;
        // Acquire: pairs with the agent's stores, which frame the text with an odd epoch.
        let word = |at: usize| page.word(FAULTS + at).load(Ordering::Acquire);
        let epoch = word(area::EPOCH);
        let (len, bits) = (word(area::LEN).min(TEXT_MAX as u32) as usize, word(area::STATE));
        let text = (0..len).map(|at| page.read::<u8>(FAULTS + area::TEXT + at)).collect();
        fence(Ordering::Acquire);
        let is_whole = epoch.is_multiple_of(2) && word(area::EPOCH) == epoch;
        is_whole.then_some((epoch, bits, String::from_utf8(text).ok()?))
    }

    /// Publishes the counts of a rule for the agent.
    fn count(&self, armed: &Armed) {
        let Some(page) = &self.page else { return };
        let at = FAULTS + area::COUNTS + 8 * (armed.id % PLACES) as usize;
        let (seen, acted) = armed.counts();
        for (at, count) in [(at, seen), (at + 4, acted)] {
            page.word(at).store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }
}

/// Which connections over lanes may lose packets.
#[derive(Default)]
enum Losses {
    /// No connection.
    #[default]
    None,
    /// All connections.
    Everywhere,
    /// Connections that these rules may concern: rules of this engine, and of the engines at the
    /// other ends.
    Named { own: Vec<Arc<Armed>>, far: Vec<(u32, Rule)> },
}

impl Losses {
    /// Whether a connection may lose packets. `peer` is the engine at its other end, `ends` are its
    /// QP numbers, and `links` are the rules about links on its paths.
    fn concern(&self, board: &Board, peer: u32, ends: [u32; 2], links: u64) -> bool {
        let may_harm = |rule: &Rule| rule.may_harm(ends, |gid| board.find(gid).is_some());
        match self {
            Self::None => false,
            Self::Everywhere => true,
            Self::Named { own, far } => {
                own.iter().any(|armed| armed.is_on_path(links) && may_harm(&armed.rule))
                    || far.iter().any(|(engine, rule)| *engine == peer && may_harm(rule))
            }
        }
    }
}
