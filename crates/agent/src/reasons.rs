//! Why operations failed in the programs of this agent: the answer to `softhca show --errors`.
//!
//! An engine writes its latest reasons, and what it has dropped, behind its context page. The agent
//! does not read them until a user asks or the context ends. Then it keeps the latest ones, so that
//! a program's failure can be examined after its end. All of this is the program's claim. It is
//! copied before it is parsed, clipped, and cleaned of characters that control a terminal. The
//! connection says which program it is. The amount kept is bounded for each user and in total. The
//! principal types are [`ContextReasons`] and [`EndedReasons`].

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use abi::layout::Record;
use abi::queue::{DROP_LEN, DROPS, REASON_LEN, REASONS, context_page};
use abi::reason::{DropRecord, ReasonKind, ReasonRecord, SENTENCE_MAX, clean};
use serde_json::{Value, json};

use crate::asker::Asker;
use crate::context::Context;
use crate::ids::Peer;
use crate::queue_memory::Block;
use crate::wire::Forwarder;

/// Maximum number of ended contexts whose reasons are kept, of all users and of one user.
const KEPT: usize = 64;
const KEPT_OF_ONE: usize = 16;
/// How often a record that its engine is writing is read again.
const LOOKS: u32 = 4;
/// Maximum number of bytes of a program's name.
const NAME_MAX: usize = 64;

/// One reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reason {
    record: ReasonRecord,
    sentence: String,
}

/// The failures of a context.
#[derive(Debug, Clone)]
pub(crate) struct ContextReasons {
    context: u32,
    peer: Peer,
    device: String,
    /// Oldest first.
    reasons: Vec<Reason>,
    drops: Vec<DropRecord>,
}

impl ContextReasons {
    /// The failures of a context, or `None` if nothing has failed.
    pub(crate) fn of(context: &Context, device: &str) -> Option<Self> {
        let page = context.events.as_ref()?.page();
        let (reasons, drops) = (reasons(page), drops(page));
        (!reasons.is_empty() || !drops.is_empty()).then(|| Self {
            context: context.id.0,
            peer: context.peer.clone(),
            device: device.to_owned(),
            reasons,
            drops,
        })
    }

    fn show(&self, ended: bool, asker: Asker) -> Value {
        let mut shown = json!({
            "context": self.context,
            "pid": self.peer.pid,
            "uid": self.peer.uid,
            "comm": clean(&self.peer.comm, NAME_MAX),
            "device": self.device,
            "ended": ended,
        });
        if !asker.may_see(self.peer.uid) {
            // The sentences contain keys, addresses and peers.
            shown["concealed"] = json!(self.reasons.len() + self.drops.len());
            return shown;
        }
        shown["errors"] = self.reasons.iter().map(Reason::show).collect();
        shown["drops"] = self.drops.iter().map(show_drop).collect();
        shown
    }
}

impl Reason {
    fn show(&self) -> Value {
        let ReasonRecord { kind, time, qpn, count, wr_id, has_wr_id, status, .. } = self.record;
        json!({
            "time": time,
            "count": count.max(1),
            "kind": ReasonKind::of_number(kind).word(),
            "qpn": (qpn != 0).then_some(qpn),
            "wr_id": (has_wr_id != 0).then_some(wr_id),
            "status": (status != 0).then_some(status),
            "sentence": self.sentence,
        })
    }
}

fn show_drop(record: &DropRecord) -> Value {
    json!({
        "time": record.time,
        "count": record.count,
        "cause": record.cause().map(abi::reason::Cause::word),
        "qpn": (record.qpn != 0).then_some(record.qpn),
        "sentence": record.sentence(),
    })
}

/// The failures of contexts that have ended.
#[derive(Debug, Default)]
pub(crate) struct EndedReasons {
    told: VecDeque<ContextReasons>,
}

impl EndedReasons {
    /// Keeps the failures of a context. If the user has too many, the oldest ones of this user are
    /// removed. If all users together have too many, the oldest ones of all are removed.
    pub(crate) fn keep(&mut self, told: ContextReasons) {
        let uid = told.peer.uid;
        if self.told.iter().filter(|kept| kept.peer.uid == uid).count() >= KEPT_OF_ONE {
            let oldest = self.told.iter().position(|kept| kept.peer.uid == uid);
            oldest.and_then(|place| self.told.remove(place));
        }
        if self.told.len() == KEPT {
            self.told.pop_front();
        }
        self.told.push_back(told);
    }
}

/// The failures of an ended context, by its place among the kept ones.
pub(crate) fn of_ended(ended: &EndedReasons, place: usize, asker: Asker) -> Option<Value> {
    ended.told.get(place).map(|told| told.show(true, asker))
}

/// The failures of a context, if there are any.
pub(crate) fn of_live(context: &Context, device: &str, asker: Asker) -> Option<Value> {
    ContextReasons::of(context, device).map(|told| told.show(false, asker))
}

/// The latest lost packets of other hosts. Only root sees with whom others communicate.
pub(crate) fn last_drops(forwarder: &Forwarder, asker: Asker) -> Value {
    let last = if asker == Asker::Root { forwarder.last_drops() } else { Vec::new() };
    last.into_iter().map(|(name, what)| (name.to_owned(), json!(what))).collect::<serde_json::Map<_, _>>().into()
}

/// The reasons behind a context page, oldest first.
fn reasons(page: &Block) -> Vec<Reason> {
    // Whatever the client says, at most one ring of records is read.
    let head = page.read(context_page::REASONS_HEAD);
    let first = head.wrapping_sub(REASONS.min(head));
    (0..head.min(REASONS)).filter_map(|number| reason(page, first.wrapping_add(number) % REASONS)).collect()
}

fn reason(page: &Block, place: u32) -> Option<Reason> {
    let at = context_page::REASONS + place as usize * REASON_LEN;
    for _ in 0..LOOKS {
        // Acquire pairs with the engine's release: the bytes read after it are at least as new as
        // the version.
        let version = page.word(at).load(Ordering::Acquire);
        let mut bytes = [0; REASON_LEN];
        page.copy_out(at, &mut bytes);
        // Pairs with the engine's fence: if any newer byte was read, the version is seen to have
        // changed.
        fence(Ordering::Acquire);
        if version.is_multiple_of(2) && page.word(at).load(Ordering::Relaxed) == version {
            let record = ReasonRecord::read(&bytes)?;
            let text = bytes.get(size_of::<ReasonRecord>()..)?;
            let text = &text[..(record.len as usize).min(SENTENCE_MAX)];
            let sentence = clean(&String::from_utf8_lossy(text), SENTENCE_MAX);
            return (!sentence.is_empty()).then_some(Reason { record, sentence });
        }
    }
    None
}

fn drops(page: &Block) -> Vec<DropRecord> {
    let record = |place: usize| {
        let mut bytes = [0; DROP_LEN];
        page.copy_out(context_page::DROPS + place * DROP_LEN, &mut bytes);
        DropRecord::read(&bytes)
    };
    (0..DROPS).filter_map(record).filter(|record| record.cause().is_some() && record.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closer::Closer;
    use crate::context::AsyncFile;
    use crate::host::System;
    use crate::ids::ContextId;
    use crate::queue_memory::QueueMemory;
    use std::sync::Arc;

    fn context(uid: u32) -> (Context, Block) {
        let mut memory = QueueMemory::new(Arc::new(System::default()), Closer::default());
        let page = memory.allocate_apart(abi::queue::CONTEXT_LEN).expect("a page").block;
        let peer = Peer { pid: 7, uid, comm: "evil\x1b[2J".into() };
        let mut context = Context::new(ContextId(1), 0, 0, peer, Closer::default(), memory);
        context.events = Some(AsyncFile::new(&System::default(), page.clone(), Closer::default()).expect("a file"));
        (context, page)
    }

    fn write(page: &Block, number: u32, sentence: &[u8], len: u32) {
        let at = context_page::REASONS + (number % REASONS) as usize * REASON_LEN;
        let record = ReasonRecord { version: 2, kind: 1, qpn: 0x11, len, ..ReasonRecord::default() };
        page.copy_in(at, record.bytes());
        page.copy_in(at + size_of::<ReasonRecord>(), sentence);
        page.word(context_page::REASONS_HEAD).store(number + 1, Ordering::Release);
    }

    #[test]
    fn reasons_are_told_oldest_first_and_only_the_last() {
        let (context, page) = context(1);
        assert!(ContextReasons::of(&context, "softhca0").is_none());
        for number in 0..100 {
            let sentence = format!("sentence {number}");
            write(&page, number, sentence.as_bytes(), sentence.len() as u32);
        }
        let told = ContextReasons::of(&context, "softhca0").expect("something");
        assert_eq!(told.reasons.len(), REASONS as usize);
        assert_eq!(told.reasons[0].sentence, "sentence 36");
        assert_eq!(told.reasons[63].sentence, "sentence 99");
    }

    /// A program's data never controls a terminal, is never read beyond its end, and never blocks
    /// the agent.
    #[test]
    fn a_hostile_program_is_shown_as_it_is() {
        let (context, page) = context(1);
        write(&page, 0, b"\x1b]0;title\x07\xff\xfe", u32::MAX);
        let odd = context_page::REASONS + REASON_LEN;
        page.word(odd).store(1, Ordering::Relaxed);
        page.word(context_page::REASONS_HEAD).store(u32::MAX, Ordering::Relaxed);
        for place in 0..DROPS {
            let drop =
                DropRecord { cause: place as u32 * 7, count: u64::MAX, address: [0x1b; 16], ..DropRecord::default() };
            page.copy_in(context_page::DROPS + place * DROP_LEN, drop.bytes());
        }
        let shown = ContextReasons::of(&context, "softhca0").expect("something").show(false, Asker::Root).to_string();
        let fine = |letter: char| !letter.is_control() && letter != '\u{1b}';
        assert!(shown.chars().all(fine) && !shown.contains("\\u001b"), "{shown}");
        assert!(shown.len() < 64 * 1024, "{}", shown.len());
    }

    #[test]
    fn others_see_that_there_is_something_and_not_what() {
        let (context, page) = context(1);
        write(&page, 0, b"rkey 0x123", 10);
        let told = ContextReasons::of(&context, "softhca0").expect("something");
        for (asker, seen) in [(Asker::Root, true), (Asker::User(1), true), (Asker::User(2), false)] {
            assert_eq!(told.show(false, asker).to_string().contains("0x123"), seen);
        }
        assert_eq!(told.show(true, Asker::User(2))["concealed"], json!(1));
    }

    #[test]
    fn one_user_does_not_push_out_the_others() {
        let mut ended = EndedReasons::default();
        let told = |uid| {
            let (context, page) = context(uid);
            write(&page, 0, b"something", 9);
            ContextReasons::of(&context, "softhca0").expect("something")
        };
        ended.keep(told(1));
        (0..3 * KEPT).for_each(|_| ended.keep(told(2)));
        assert_eq!(ended.told.len(), 1 + KEPT_OF_ONE);
        (3..200).for_each(|uid| ended.keep(told(uid)));
        assert_eq!(ended.told.len(), KEPT);
    }
}
