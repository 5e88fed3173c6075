//! Compares completions with the expected results, and the memory at the end.

use abi::cq::{Wc, opcode as done, status, wc_flags};

use super::Story;
use super::end::{AREA, Check, End, OPEN, Window};
use super::plan::Kind;
use super::program::{EMPTY, RECEIVE, SHARED, SLOT, Slots, XRC};

/// Bytes of the GRH in front of a datagram.
const GRH: usize = 40;
/// The least number of harmed packets before a connection may give up: one for each try except the
/// first. The first may have been harmed before the program saw the last progress.
const TRIES: u64 = 7;

impl Story {
    /// Polls a program's queues, and returns whether there was a completion.
    pub(super) fn poll(&mut self, program: usize) -> Result<bool, String> {
        let mut worked = false;
        loop {
            let wcs = self.programs[program].poll();
            if wcs.is_empty() {
                return Ok(worked);
            }
            worked = true;
            for wc in wcs {
                let noted = [wc.wr_id, wc.status.into(), wc.opcode.into(), wc.byte_len.into(), wc.imm_data.into()];
                self.simulation.note(&noted);
                self.simulation.note(&[program as u64, wc.qp_num.into()]);
                self.completed(program, &wc).map_err(|why| format!("program {program}: {why}, by {}", show(&wc)))?;
            }
        }
    }

    fn completed(&mut self, program: usize, wc: &Wc) -> Result<(), String> {
        let ours = |end: &End| end.program == program && end.qp.qpn() == wc.qp_num;
        let number = self.ends.iter().position(ours).ok_or("a completion of nobody's QP")?;
        if wc.wr_id & RECEIVE == 0 { self.sent(number, wc) } else { self.received(program, number, wc) }
    }

    fn sent(&mut self, number: usize, wc: &Wc) -> Result<(), String> {
        if wc.status != status::SUCCESS && !self.ends[number].failed {
            self.judge(number, wc)?;
        }
        let harm = self.harm(number);
        let end = &mut self.ends[number];
        loop {
            let request =
                end.under_way.pop_front().ok_or("it is not under way: it completes twice, or was never posted")?;
            let this = request.number == wc.wr_id;
            if !this && request.signaled {
                return Err(format!("request {} has not completed, and one behind it does", request.number));
            }
            if this && !request.signaled && wc.status == status::SUCCESS {
                return Err("it was not to complete, for it is not signaled".into());
            }
            if !this || wc.status == status::SUCCESS {
                if this && (wc.opcode != request.opcode || request.byte_len.is_some_and(|len| len != wc.byte_len)) {
                    return Err(format!("it was opcode {} of {:?} bytes", request.opcode, request.byte_len));
                }
                match request.check {
                    Check::Landed(expected) => {
                        let landed = end.memory.bytes(End::landing(request.number), expected.len());
                        differ(&landed, &expected)
                            .map_err(|why| format!("what request {} read: {why}", request.number))?;
                    }
                    Check::Bound(key) => set(end, Window::Open(key)),
                    Check::Closed => set(end, Window::Closed),
                    Check::Nothing => {}
                }
            }
            if this {
                break;
            }
        }
        end.harm = harm;
        Ok(())
    }

    /// Checks that a request was allowed to fail.
    fn judge(&mut self, number: usize, wc: &Wc) -> Result<(), String> {
        let (harm, end) = (self.harm(number), &self.ends[number]);
        let suffered = harm - end.harm;
        let peer = end.peer;
        // A port that is down takes at most two tries, and the network does not count them.
        let tries = if self.plan.down.is_some() { TRIES - 2 } else { TRIES };
        let deserved = wc.status == status::RETRY_EXC_ERR && suffered >= tries;
        // The peer's end has failed, and its requests with it.
        let followed = self.ends[peer].failed && wc.status == status::RETRY_EXC_ERR;
        if !matches!(end.kind, Kind::Rc | Kind::Xrc) || !(deserved || followed) {
            let why = end.qp.why(wc.wr_id).unwrap_or_default();
            return Err(format!("end {number} fails, {suffered} packets came to harm since it got on ({why})"));
        }
        self.ends[number].failed = true;
        self.ends[peer].failed = true;
        Ok(())
    }

    /// The number of harmed packets of an end's connection so far.
    fn harm(&self, number: usize) -> u64 {
        let of = |end: &End| self.simulation.harmed(self.simulation.host_of(end.program), end.qp.qpn());
        of(&self.ends[number]) + of(&self.ends[self.ends[number].peer])
    }

    fn received(&mut self, program: usize, number: usize, wc: &Wc) -> Result<(), String> {
        let peer = self.ends[number].peer;
        let [end, from] = self.ends.get_disjoint_mut([number, peer]).map_err(|_| "one end")?;
        let owner = &mut self.programs[program];
        let shared = if wc.wr_id & XRC != 0 { &mut owner.xrc_slots } else { &mut owner.slots };
        let slots = if wc.wr_id & SHARED != 0 { Some(shared) } else { end.slots.as_mut() };
        let slots = slots.ok_or("it has no buffers")?;
        let slot = slots.take_back(wc.wr_id)?;
        if end.failed {
            return Ok(());
        }
        if wc.status == status::WR_FLUSH_ERR {
            // The failed request that caused this flush may complete in a queue that is polled
            // later. At the end it must have completed.
            end.flushed = true;
            return Ok(());
        }
        if wc.status != status::SUCCESS {
            return Err("a receive fails".into());
        }
        let front = if end.kind == Kind::Ud { GRH } else { 0 };
        let unreliable = matches!(end.kind, Kind::Uc | Kind::Ud);
        let index = if unreliable { which(from, slots, slot, wc)? } else { 0 };
        let message = from.messages.get(index).ok_or("a message that nobody sent, or one that came before")?;
        if wc.opcode != message.opcode || wc.byte_len as usize != message.len + front {
            return Err(format!(
                "message {} is opcode {} of {} bytes",
                message.number,
                message.opcode,
                message.len + front
            ));
        }
        let flags = wc.wc_flags & (wc_flags::WITH_IMM | wc_flags::WITH_INV);
        let expected = match (message.imm, message.invalidated) {
            (Some(imm), _) => (wc_flags::WITH_IMM, imm),
            (_, Some(key)) => (wc_flags::WITH_INV, key),
            _ => (0, wc.imm_data),
        };
        if (flags, wc.imm_data) != expected {
            return Err(format!("message {} has {expected:x?} beside it", message.number));
        }
        let mut whole = 0;
        if let Some(bytes) = &message.bytes {
            let landed = slots.bytes(slot, front, bytes.len());
            differ(&landed, bytes).map_err(|why| format!("message {}: {why}", message.number))?;
            whole = front + bytes.len();
        }
        // A message that was lost on an unreliable service may have written part of the buffer
        // before.
        if !unreliable && slots.bytes(slot, whole, SLOT).iter().any(|byte| *byte != EMPTY) {
            return Err(format!("message {} left something behind its end", message.number));
        }
        if message.invalidated.is_some() {
            set(end, Window::Closed);
        }
        let (number, written) = (message.number, message.opcode == done::RECV_RDMA_WITH_IMM);
        if written && let Some(piece) = from.pieces.iter_mut().find(|piece| piece.number == number) {
            piece.came = true;
        }
        let conditions = &self.plan.conditions;
        match unreliable {
            // The network may duplicate the message, and the receiver cannot notice.
            true if conditions.duplication > 0.0 => {}
            // Messages that were sent earlier may still arrive.
            true if conditions.reordering > 0.0 => drop(from.messages.remove(index)),
            _ => drop(from.messages.drain(..=index)),
        }
        Ok(())
    }

    /// Compares the memory with the model, and checks for flushed receives without a failure.
    pub(super) fn compare(&mut self) -> Result<(), String> {
        for (number, end) in self.ends.iter().enumerate().filter(|(_, end)| !end.failed) {
            if end.flushed {
                return Err(format!("receives of end {number} were flushed, and nothing has failed"));
            }
            let area = self.ends[end.peer].memory.bytes(0, AREA);
            if end.kind != Kind::Uc {
                differ(&area, &end.model).map_err(|why| format!("what end {number} wrote: {why}"))?;
                continue;
            }
            // Any part of a lost piece may have arrived. The memory around it is unchanged.
            let mut model = end.model.clone();
            for piece in &end.pieces {
                let range = piece.at..piece.at + piece.bytes.len();
                for at in range {
                    let (new, old) = (piece.bytes[at - piece.at], end.model[at]);
                    if area[at] == new || (!piece.came && area[at] == old) {
                        model[at] = area[at];
                    } else {
                        model[at] = new;
                    }
                }
            }
            differ(&area, &model).map_err(|why| format!("what end {number} wrote: {why}"))?;
            debug_assert!(end.pieces.iter().all(|piece| piece.at >= OPEN));
        }
        Ok(())
    }
}

/// Finds the unreliable message that this completion belongs to. The message contains its number.
fn which(from: &End, slots: &Slots, slot: usize, wc: &Wc) -> Result<usize, String> {
    let front = if from.kind == Kind::Ud { GRH } else { 0 };
    let number = if wc.opcode == done::RECV_RDMA_WITH_IMM {
        u64::from(wc.imm_data)
    } else {
        let bytes = slots.bytes(slot, front, 8);
        u64::from_le_bytes(bytes.try_into().map_err(|_| "no number")?)
    };
    let index = from.messages.iter().position(|message| message.number == number);
    index.ok_or_else(|| format!("message {number} was never sent, or has come before"))
}

fn set(end: &mut End, to: Window) {
    if let Some((_, window)) = &mut end.window {
        *window = to;
    }
}

/// Finds the first difference between two byte sequences.
fn differ(is: &[u8], should: &[u8]) -> Result<(), String> {
    match is.iter().zip(should).position(|(is, should)| is != should) {
        None if is.len() == should.len() => Ok(()),
        None => Err(format!("{} bytes instead of {}", is.len(), should.len())),
        Some(at) => {
            let wrong = is.iter().zip(should).filter(|(is, should)| is != should).count();
            Err(format!(
                "byte {at} is {:#x} and should be {:#x}, {wrong} of {} are wrong",
                is[at],
                should[at],
                is.len()
            ))
        }
    }
}

fn show(wc: &Wc) -> String {
    format!(
        "wr_id {:#x} status {} opcode {} len {} qp {:#x} imm {:#x}",
        wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.qp_num, wc.imm_data
    )
}
