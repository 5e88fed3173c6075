//! What the rules decide, and their effect on queue pairs. Adds to [`Qp`] and [`Engine`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::fault::{Armed, Direction, Facts, Fate, FaultKind, Pair, Verdict, area, decide, state};
use abi::queue::context_page::FAULTS;
use abi::reason::{Cause, DropRecord};
use protocol::Service;
use wire::{Headers, Opcode, Operation, Qpn};

use super::{Faults, Losses};
use crate::engine::Engine;
use crate::qp::{Inner, Qp};
use crate::reason::{Note, ReasonKind, note};
use crate::special::Special;

impl Faults<Qp> {
    /// Decides what happens to a packet, and reports the fault.
    pub(super) fn decide(&self, engine: &Engine, facts: &Facts, headers: &Headers) -> Verdict {
        let (verdict, armed) = self.decided(engine, facts, headers);
        if let Some(armed) = armed
            && engine.is_capturing()
        {
            engine.show_fault(&armed, facts, &verdict, headers);
        }
        verdict
    }

    /// Decides what happens to a frame of an iWARP connection, and reports the fault. Returns also
    /// the words for captures.
    #[cold]
    pub(crate) fn decide_frame(&self, engine: &Engine, facts: &Facts, what: &dyn fmt::Display) -> (Verdict, String) {
        let (verdict, armed) = self.decided(engine, facts, what);
        (verdict, armed.map_or_else(String::new, |armed| words(&armed)))
    }

    fn decided(&self, engine: &Engine, facts: &Facts, what: &dyn fmt::Display) -> (Verdict, Option<Arc<Armed>>) {
        let rules = self.rules.load();
        let verdict = decide::decide(&rules, facts, engine.now().0);
        rules.iter().filter(|armed| armed.is_for(facts)).for_each(|armed| self.count(armed));
        let armed = verdict.by.and_then(|by| rules.get(by)).cloned();
        if let Some(armed) = &armed {
            engine.injected(armed, facts, what);
        }
        (verdict, armed)
    }

    /// Whether a request must find no receive request.
    pub(super) fn withholds_receive(&self, engine: &Engine, facts: &Facts, headers: &Headers) -> bool {
        let rules = self.rules.load();
        let mut withheld = false;
        for armed in rules.iter().filter(|armed| armed.rule.kind == FaultKind::Rnr && armed.is_for(facts)) {
            let acts = !withheld && armed.acts().is_some();
            self.count(armed);
            if acts {
                withheld = true;
                engine.injected(armed, facts, headers);
                if engine.is_capturing() {
                    let answer = Headers {
                        opcode: Opcode { operation: Operation::Acknowledge, ..headers.opcode },
                        dest_qp: Qpn::new(facts.peer_qpn),
                        ..*headers
                    };
                    engine.capture.note(&answer, words(armed));
                }
            }
        }
        withheld
    }
}

impl Qp {
    /// The rules have changed: updates the flags of this queue pair.
    fn heed_rules(&self) {
        let mut inner = self.lock();
        if !inner.is_dead() {
            self.look_for_rules(&mut inner);
            self.look_for_losses(&mut inner);
        }
    }

    /// Decides whether a rule may concern packets of this queue pair. Called when the rules or the
    /// attributes change.
    pub(crate) fn look_for_rules(&self, inner: &mut Inner) {
        let engine = self.engine();
        let a = &inner.attributes;
        let is_connected = self.service != Service::Ud;
        let path = |port: u8, dest: &abi::qp::Dest| (u32::from(port), dest.dgid);
        let pair = Pair {
            device: engine.device(),
            qpn: self.qpn(),
            peer_qpn: is_connected.then_some(a.dest_qp_num),
            paths: is_connected.then(|| [path(a.port_num, &a.dest), path(a.alt_port_num, &a.alt_dest)]),
            links: is_connected.then_some(inner.link.links.there),
        };
        let is_ruled = engine.faults.rules.load().iter().any(|armed| armed.may_concern(&pair));
        inner.link.special.set(Special::RULED, is_ruled);
    }

    /// Whether a rule of this engine may concern packets of this queue pair.
    #[doc(hidden)]
    #[must_use]
    pub fn is_ruled(&self) -> bool {
        self.lock().link.is_ruled()
    }
}

impl Engine {
    /// Applies the changed rules.
    pub(crate) fn take_faults(self: &Arc<Self>) {
        let faults = &self.faults;
        // The agent announces every write, so a failed read is repeated at the next push.
        let Some((epoch, bits, text)) = (0..1000).find_map(|_| faults.read()) else { return };
        let before = faults.rules.load_full();
        let (mut rules, mut far) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let Some((id, rule)) = line.split_once(' ') else { continue };
            let Ok(rule) = abi::fault::text::parse(rule) else { continue };
            if let Some(Ok(engine)) = id.strip_prefix('@').map(str::parse) {
                far.push((engine, rule));
                continue;
            }
            let Ok(id) = id.parse() else { continue };
            let known = before.iter().find(|armed| armed.id == id).cloned();
            rules.push(known.unwrap_or_else(|| Arc::new(Armed::new(id, rule))));
        }
        rules.iter().for_each(|armed| faults.count(armed));
        let losses = match (bits & state::LOSSY != 0, bits & state::NAMED != 0) {
            (false, _) => Losses::None,
            (true, false) => Losses::Everywhere,
            (true, true) => Losses::Named { own: rules.clone(), far },
        };
        let about_links = |rules: &[Arc<Armed>]| {
            let links = rules.iter().filter(|armed| armed.rule.select.link.is_some());
            links.map(|armed| armed.id).collect::<Vec<_>>()
        };
        let links_changed = about_links(&before) != about_links(&rules);
        let is_lossy = !matches!(losses, Losses::None);
        faults.on.store(!rules.is_empty(), Ordering::Relaxed);
        self.agent.may_refuse.store(bits & state::COMMANDS != 0, Ordering::Relaxed);
        faults.rules.store(Arc::new(rules));
        // Before the queue pairs look: one that gets its route or state meanwhile looks by itself,
        // under its lock.
        faults.losses.store(Arc::new(losses));
        self.qps.all().iter().for_each(|qp| qp.heed_rules());
        if links_changed {
            // Which connections they concern is what the agent says of paths.
            self.paths_changed();
        }
        if is_lossy {
            self.timers_changed();
        }
        if let Some(page) = &faults.page {
            page.word(FAULTS + area::TAKEN).store(epoch, Ordering::Release);
        }
    }

    /// Reports that a rule has acted: each time in the log, and now and then in the reasons.
    fn injected(&self, armed: &Armed, facts: &Facts, what: &dyn fmt::Display) {
        let (id, rule, done) = (armed.id, &armed.rule, armed.rule.kind.done());
        tracing::debug!(target: "softhca::fault", "rule {id} ({rule}): {done}: {what} of QP {:#x}", facts.qpn);
        let (_, acted) = armed.counts();
        if acted.checked_ilog10().is_some_and(|digits| 10_u64.pow(digits) == acted) {
            let about = Note { qpn: facts.qpn, ..self.reasons.note(ReasonKind::Noted) };
            let packets = if acted == 1 { "packet was" } else { "packets were" };
            note(
                about,
                format_args!(
                    "fault: by rule {id} ({rule}) {acted} {packets} {done}; the last: {what} of QP {:#x}",
                    facts.qpn
                ),
            );
        }
    }

    /// Shows a packet in the capture, with the fault.
    #[cold]
    fn show_fault(&self, armed: &Armed, facts: &Facts, verdict: &Verdict, headers: &Headers) {
        let is_lost = matches!(verdict.fate, Fate::Lost | Fate::Damaged(_));
        if facts.direction == Direction::Out {
            self.capture.note(headers, words(armed));
        } else if is_lost {
            let dropped = DropRecord {
                qpn: facts.qpn,
                src_qp: facts.peer_qpn,
                dest_qp: headers.dest_qp.value(),
                psn: headers.psn.value(),
                opcode: headers.opcode.as_u8().into(),
                got: armed.id,
                ..DropRecord::default()
            };
            self.capture_drop(Cause::Fault, &dropped);
        }
    }

    /// Drops the delayed packets.
    pub(crate) fn forget_delayed_packets(&self) {
        self.faults.delayed.clear();
    }
}

/// The comment of a captured packet.
fn words(armed: &Armed) -> String {
    format!("fault: {} by rule {} ({})", armed.rule.kind.done(), armed.id, armed.rule)
}
