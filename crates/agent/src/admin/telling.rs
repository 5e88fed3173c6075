//! Long answers of the admin node, made and sent in pieces: `show`, `errors`, and every answer that
//! is longer than a message.
//!
//! A [`Telling`] continues when its account is served and its client has room. It keeps its
//! position, and at most one message of text. Objects may be created and destroyed meanwhile. Each
//! piece looks at a bounded number of objects. The principal type is [`Telling`].

use std::collections::BTreeMap;
use std::ops::Bound;

use serde_json::{Value, json};

use super::{INLINE_MAX, LAST, MORE};
use crate::asker::Asker;
use crate::cm::Manager;
use crate::cm::show::SHOWN as IDS_SHOWN;
use crate::ids::ContextId;
use crate::mads::Mads;
use crate::reasons;
use crate::show::{self, LISTS};
use crate::table::Kind;
use crate::world::World;

/// Maximum number of objects that are shown to an ordinary user, who could otherwise keep the agent
/// busy.
const SHOWN: usize = 10_000;
/// Maximum number of objects of one piece. A context costs as much as several objects.
const PIECE: usize = 64;
const CONTEXT_WORK: usize = 4;
/// Maximum number of slots of ids that one piece looks at.
const PLACES: usize = 256;

/// An answer that is made and sent in pieces.
pub(crate) trait Tell: Send {
    /// Makes one more piece. Returns true if there is a message to send.
    fn go_on(&mut self, world: &World, parts: (&Manager, &Mads)) -> bool;
    /// The message to send.
    fn message(&self) -> Vec<u8>;
    /// The message has been sent. Returns true if it was the last one.
    fn sent(&mut self) -> bool;
}

/// An answer of the admin node.
pub(crate) struct Telling {
    asker: Asker,
    text: String,
    /// How much of the text has been sent.
    said: usize,
    /// Some messages have been sent.
    is_begun: bool,
    part: ReportPart,
}

/// The next part of the answer.
enum ReportPart {
    /// Contexts after this one, with room for this many objects. `more` contexts were left out.
    Contexts { after: Option<ContextId>, first: bool, room: usize, more: usize },
    /// The objects of a context.
    Objects { context: ContextId, list: usize, handles: std::vec::IntoIter<u32>, first: bool, room: usize, more: usize },
    /// Ids of the connection manager, from this slot on.
    Ids { start: usize, shown: usize },
    /// Reasons of contexts that have ended, from this place on.
    Ended { place: usize, first: bool },
    /// Reasons of contexts after this one.
    Live { after: Option<ContextId>, first: bool },
    /// No more.
    Done,
}

impl Tell for Telling {
    fn go_on(&mut self, world: &World, (manager, mads): (&Manager, &Mads)) -> bool {
        if self.is_ready() {
            return true;
        }
        let part = std::mem::replace(&mut self.part, ReportPart::Done);
        self.part = match part {
            ReportPart::Contexts { after, first, room, more } => self.contexts(world, after, first, (room, more)),
            ReportPart::Objects { context, list, handles, first, room, more } => {
                self.objects((world, mads), context, (list, handles, first), (room, more))
            }
            ReportPart::Ids { start, shown } => self.ids(manager, start, shown),
            ReportPart::Ended { place, first } => self.ended(world, place, first),
            ReportPart::Live { after, first } => self.live(world, after, first),
            ReportPart::Done => ReportPart::Done,
        };
        self.is_ready()
    }

    fn message(&self) -> Vec<u8> {
        let rest = &self.text.as_bytes()[self.said..];
        if !self.is_begun && self.is_whole() && rest.len() <= INLINE_MAX {
            return rest.to_vec();
        }
        let piece = &rest[..rest.len().min(INLINE_MAX)];
        let mark = if self.is_whole() && piece.len() == rest.len() { LAST } else { MORE };
        [&[mark], piece].concat()
    }

    fn sent(&mut self) -> bool {
        self.is_begun = true;
        self.said = self.text.len().min(self.said + INLINE_MAX);
        if self.said == self.text.len() {
            self.text.clear();
            self.said = 0;
        }
        self.is_whole() && self.text.is_empty()
    }
}

impl Telling {
    /// Every context with every object, and every id. Ordinary users see at most [`SHOWN`] objects.
    pub(crate) fn show(asker: Asker) -> Self {
        let room = if asker == Asker::Root { usize::MAX } else { SHOWN };
        Self::new(asker, "{\"contexts\":[", ReportPart::Contexts { after: None, first: true, room, more: 0 })
    }

    /// Why operations failed.
    pub(crate) fn errors(asker: Asker) -> Self {
        Self::new(asker, "{\"programs\":[", ReportPart::Ended { place: 0, first: true })
    }

    /// An answer that already exists.
    pub(crate) fn text(answer: &Value) -> Self {
        Self::new(Asker::Root, &answer.to_string(), ReportPart::Done)
    }

    fn new(asker: Asker, begin: &str, part: ReportPart) -> Self {
        Self { asker, text: begin.to_owned(), said: 0, is_begun: false, part }
    }

    fn is_ready(&self) -> bool {
        self.is_whole() || self.text.len() - self.said > INLINE_MAX
    }

    fn is_whole(&self) -> bool {
        matches!(self.part, ReportPart::Done)
    }

    fn item(&mut self, first: &mut bool, item: &str) {
        if !std::mem::replace(first, false) {
            self.text.push(',');
        }
        self.text.push_str(item);
    }

    fn contexts(
        &mut self,
        world: &World,
        mut after: Option<ContextId>,
        mut first: bool,
        (room, mut more): (usize, usize),
    ) -> ReportPart {
        for _ in 0..PIECE / CONTEXT_WORK {
            let Some(context) = next_context(&world.contexts, after) else {
                let rest =
                    json!({ "more": more, "lanes": world.lanes.len(), "groups": show::groups(world) }).to_string();
                self.text.push_str("],");
                self.text.push_str(&rest[1..rest.len() - 1]);
                self.text.push_str(",\"manager\":{\"ids\":[");
                return ReportPart::Ids { start: 0, shown: 0 };
            };
            after = Some(context.id);
            let kinds =
                [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Qp, Kind::Srq, Kind::Ah, Kind::Channel, Kind::Mw, Kind::Dm];
            let objects: usize = kinds.iter().map(|kind| world.tables.objects_of(context.id, *kind)).sum();
            let Some(rest) = room.checked_sub(objects + 1) else {
                more += 1;
                continue;
            };
            let head = show::context(world, context).to_string();
            self.item(&mut first, &head[..head.len() - 1]);
            let handles = Vec::new().into_iter();
            return ReportPart::Objects { context: context.id, list: 0, handles, first: true, room: rest, more };
        }
        ReportPart::Contexts { after, first, room, more }
    }

    /// The lists of objects are opened one after the other; `list` counts the opened ones.
    fn objects(
        &mut self,
        (world, mads): (&World, &Mads),
        context: ContextId,
        (mut list, mut handles, mut first): (usize, std::vec::IntoIter<u32>, bool),
        (room, more): (usize, usize),
    ) -> ReportPart {
        let conceal = world.contexts.get(&context).is_none_or(|found| !self.asker.may_see(found.peer.uid));
        for _ in 0..PIECE {
            if let Some(handle) = handles.next() {
                let (kind, _) = LISTS[list - 1];
                if let Some(mut object) = show::object(world, context, kind, handle, conceal) {
                    if kind == Kind::Qp {
                        object["subnet_path"] = mads.way_of(world, context, handle).into();
                    }
                    self.item(&mut first, &object.to_string());
                }
                continue;
            }
            self.text.push_str(if list == 0 { "," } else { "]," });
            let Some((kind, name)) = LISTS.get(list) else {
                self.text.pop();
                self.text.push('}');
                return ReportPart::Contexts { after: Some(context), first: false, room, more };
            };
            self.text.push_str(&format!("\"{name}\":["));
            (list, first) = (list + 1, true);
            handles = world.tables.handles_of(context, *kind).into_iter();
        }
        ReportPart::Objects { context, list, handles, first, room, more }
    }

    fn ids(&mut self, manager: &Manager, start: usize, mut shown: usize) -> ReportPart {
        let (ids, next) = manager.show(self.asker, start, PLACES.min(IDS_SHOWN - shown));
        for id in ids {
            self.item(&mut (shown == 0), &id.to_string());
            shown += 1;
        }
        if let Some(start) = next.filter(|_| shown < IDS_SHOWN) {
            return ReportPart::Ids { start, shown };
        }
        self.text.push_str(&format!("],\"more\":{}}}}}", manager.ids().saturating_sub(shown)));
        ReportPart::Done
    }

    fn ended(&mut self, world: &World, place: usize, mut first: bool) -> ReportPart {
        match reasons::of_ended(&world.ended, place, self.asker) {
            Some(told) => {
                self.item(&mut first, &told.to_string());
                ReportPart::Ended { place: place + 1, first }
            }
            None => ReportPart::Live { after: None, first },
        }
    }

    fn live(&mut self, world: &World, mut after: Option<ContextId>, mut first: bool) -> ReportPart {
        for _ in 0..PIECE / CONTEXT_WORK {
            let Some(context) = next_context(&world.contexts, after) else {
                let last = reasons::last_drops(world.wire.forwarder(), self.asker);
                let rest = json!({ "drops": show::wire_drops(&world.wire), "last_drops": last }).to_string();
                self.text.push_str("],");
                self.text.push_str(&rest[1..]);
                return ReportPart::Done;
            };
            after = Some(context.id);
            if let Some(told) = reasons::of_live(context, &world.devices[context.device].name, self.asker) {
                self.item(&mut first, &told.to_string());
                break;
            }
        }
        ReportPart::Live { after, first }
    }
}

fn next_context(
    contexts: &BTreeMap<ContextId, crate::context::Context>,
    after: Option<ContextId>,
) -> Option<&crate::context::Context> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    contexts.range((from, Bound::Unbounded)).next().map(|(_, context)| context)
}
