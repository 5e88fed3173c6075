//! One thread's share on either side: its queue pairs, completion queues and memory. The principal
//! type is [`Team`].

use softhca::{Access, Completion, Context, Cq, Endpoint, Exposed, Pd, Qp, Reliable, RemoteRegion, Unconnected};

use crate::error::{Error, Result};
use crate::place::Place;
use crate::plan::{Operation, Plan};

/// Bytes of a word.
pub(crate) const WORD: usize = 8;
/// The immediate data of a queue pair's last message.
const LAST: u32 = 0x1a57;

/// A share whose queue pairs are not connected yet.
pub(crate) struct Draft {
    qps: Vec<Unconnected<Reliable>>,
    team: Team,
}

/// One thread's share.
pub(crate) struct Team {
    pub(crate) qps: Vec<Qp<Reliable>>,
    pub(crate) sent: Cq,
    pub(crate) received: Cq,
    /// The source of messages, and the destination of READs.
    pub(crate) source: Exposed,
    /// The memory that receives messages.
    inbox: Exposed,
    /// The memory that the other side writes, reads and changes by atomics.
    pub(crate) window: Exposed,
    /// The other side's window.
    pub(crate) target: RemoteRegion,
    /// Bytes of a buffer.
    pub(crate) stride: usize,
    /// Buffers of a queue pair.
    pub(crate) slots: usize,
    receives: usize,
    /// Whether each queue pair has its own buffers.
    owned: bool,
    operation: Operation,
    _pd: Pd,
}

impl Draft {
    /// The share of thread `number`.
    pub(crate) fn new(context: &Context, place: &Place, plan: &Plan, number: u32) -> Result<Self> {
        let own = (plan.qps - number).div_ceil(plan.threads) as usize;
        let pd = context.pd()?;
        let (depth, receives) = (plan.depth(), plan.receives());
        let most = context.device()?.max_completions;
        let room = |each: u32| (each.saturating_mul(own as u32)).clamp(16, most);
        // One more completion for the last message.
        let (sent, received) = (context.cq(room(depth + 1))?, context.cq(room(receives))?);
        let stride = plan.longest().next_multiple_of(64);
        let slots = plan.slots();
        let buffers = |each: usize| if plan.has_own_buffers() { own * each } else { 1 };
        let words = own * WORD;
        let inbox = buffers(receives as usize);
        let (reads, inline) = (u8::try_from(depth.min(16)).unwrap_or(16), plan.inline);
        let team = Team {
            source: pd.expose((buffers(slots) * stride).max(words), Access::READ)?,
            inbox: pd.expose(if plan.operation == Operation::Send { inbox * stride } else { stride }, Access::READ)?,
            window: pd.expose((buffers(slots) * stride).max(words), Access::ALL)?,
            target: RemoteRegion { addr: 0, rkey: 0, len: 0 },
            qps: Vec::new(),
            sent,
            received,
            stride,
            slots,
            receives: receives as usize,
            owned: plan.has_own_buffers(),
            operation: plan.operation,
            _pd: pd.clone(),
        };
        let mut qps = Vec::with_capacity(own);
        for lane in 0..own {
            let builder = pd.reliable(&team.sent).receive_cq(&team.received);
            let builder = builder.sends(depth + 1).receives(receives).parts(1).inline(inline.max(1)).reads(reads);
            let builder = match place.gid_index {
                Some(index) => builder.address(place.port, index),
                None => builder,
            };
            let qp = builder.build()?;
            for slot in 0..receives as usize {
                qp.receive(team.receive_name(lane, slot), team.inbox.part(team.inbox_range(lane, slot, team.stride)))?;
            }
            qps.push(qp);
        }
        Ok(Self { qps, team })
    }

    pub(crate) fn ends(&self) -> impl Iterator<Item = String> {
        self.qps.iter().map(|qp| qp.endpoint().to_string())
    }

    pub(crate) fn window(&self) -> String {
        self.team.window.token().to_string()
    }

    /// Connects the queue pairs, in order, with the same number of endpoints of the other side.
    pub(crate) fn connect(self, ends: &mut impl Iterator<Item = Endpoint>, window: &str) -> Result<Team> {
        let mut team = self.team;
        team.target = window.parse()?;
        if team.target.len < team.window.len() as u64 {
            return Err(Error::Language(format!("its memory {window} is too short")));
        }
        for qp in self.qps {
            let end = ends.next().ok_or_else(|| Error::Language("it has fewer queue pairs".to_owned()))?;
            team.qps.push(qp.connect(&end)?);
        }
        Ok(team)
    }
}

impl Team {
    fn receive_name(&self, lane: usize, slot: usize) -> u64 {
        (lane as u64) << 32 | slot as u64
    }

    fn inbox_range(&self, lane: usize, slot: usize, len: usize) -> std::ops::Range<usize> {
        let own = self.owned && self.operation == Operation::Send;
        let at = if own { (lane * self.receives + slot) * self.stride } else { 0 };
        at..at + len
    }

    /// The place of message `number` of a queue pair. A message ends at the end of its buffer, so
    /// that marks keep their places.
    pub(crate) fn range(&self, lane: usize, number: u64, size: usize) -> std::ops::Range<usize> {
        let slot = if self.owned { lane * self.slots + (number % self.slots as u64) as usize } else { 0 };
        let end = (slot + 1) * self.stride;
        end - size..end
    }

    /// The word of a queue pair.
    pub(crate) fn word(&self, lane: usize) -> std::ops::Range<usize> {
        lane * WORD..(lane + 1) * WORD
    }

    /// The mark at the end of a buffer in the window.
    pub(crate) fn mark(&self, range: &std::ops::Range<usize>) -> u8 {
        self.window.load(range.end - WORD).to_ne_bytes()[WORD - 1]
    }

    /// The queue pair of a receive's completion.
    pub(crate) fn lane(completion: &Completion) -> usize {
        (completion.id() >> 32) as usize
    }

    /// Whether this is the last message of its queue pair.
    pub(crate) fn is_last(completion: &Completion) -> bool {
        completion.immediate() == Some(LAST)
    }

    /// Copies a received message.
    pub(crate) fn received(&self, completion: &Completion, into: &mut [u8]) {
        let slot = (completion.id() & 0xffff_ffff) as usize;
        self.inbox.read(self.inbox_range(Self::lane(completion), slot, into.len()).start, into);
    }

    /// Posts a receive request again.
    pub(crate) fn repost(&self, completion: &Completion) -> Result<()> {
        let (lane, slot) = (Self::lane(completion), (completion.id() & 0xffff_ffff) as usize);
        let part = self.inbox.part(self.inbox_range(lane, slot, self.stride));
        Ok(self.qps[lane].receive(completion.id(), part)?)
    }

    /// Sends the last message on every queue pair. The caller polls the completions.
    pub(crate) fn finish(&self, name: u64) -> Result<()> {
        for qp in &self.qps {
            qp.send_inline(name, b"", Some(LAST))?;
        }
        Ok(())
    }

    /// Clears the window before a size.
    pub(crate) fn clear(&self) {
        let zeros = vec![0; self.window.len().min(1 << 16)];
        for at in (0..self.window.len()).step_by(zeros.len()) {
            self.window.write(at, &zeros[..zeros.len().min(self.window.len() - at)]);
        }
    }
}
