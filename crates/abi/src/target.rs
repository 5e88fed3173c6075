//! XRC targets that processes share: softhca's own commands XRC_FIND, XRC_ADOPT and XRC_EVENT, and
//! the state that a target's engine keeps in queue memory, so that another engine can continue it.
//! The state is its writer's claim.

use crate::qp::ModifyQp;
use crate::queue::QpOut;

record! {
    /// XRC_FIND (224), request: which engine has an SRQ of the domain of a target.
    pub struct XrcFind[8] {
        /// A handle of the target QP.
        0 => qp_handle: u32,
        /// Number of the SRQ.
        4 => srqn: u32,
    }

    /// XRC_FIND (224), answer.
    pub struct XrcFindAnswer[8] {
        /// The engine.
        0 => engine: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// XRC_ADOPT (225), request: the engine continues a target QP that the agent has offered to it.
    pub struct XrcAdopt[8] {
        /// QP number.
        0 => qpn: u32,
        /// 0.
        4 => reserved: u32,
    }

    /// XRC_ADOPT (225), answer.
    pub struct XrcAdoptAnswer[192] {
        /// The QP's attributes so far, with its state; the mask names the valid ones.
        0 => attributes: ModifyQp,
        /// Number of the QP's XRC domain.
        112 => domain: u32,
        /// 0.
        116 => reserved: u32,
        /// The current place; the region's descriptor is attached if the `Mapping` says so.
        120 => out: QpOut,
    }

    /// XRC_EVENT (226), request, no answer: reports an event of a target QP that other contexts
    /// hold too.
    pub struct XrcEvent[8] {
        /// A handle of the target QP.
        0 => qp_handle: u32,
        /// The kind of event.
        4 => event: u32,
    }

    /// A READ or an atomic that a target has carried out.
    pub struct TargetAnswer[48] {
        /// PSN of its first answer.
        0 => first: u32,
        /// Number of packets of the answer; 0: the entry is empty.
        4 => packets: u32,
        /// Where the memory is.
        8 => va: u64,
        /// The key that opened it.
        16 => rkey: u32,
        /// The SRQ on whose PD the key is.
        20 => xrc_srq: u32,
        /// Messages completed with it.
        24 => msn: u32,
        /// 0 a READ, 1 an atomic, 2 an ATOMIC WRITE, 3 a FLUSH.
        28 => kind: u32,
        /// Length of a READ, or the previous value of an atomic.
        32 => value: u64,
        /// 1: it was answered in full.
        40 => answered: u32,
        /// 0.
        44 => reserved: u32,
    }

    /// The progress of a target.
    pub struct TargetState[808] {
        /// Expected PSN.
        0 => expected: u32,
        /// Messages completed.
        4 => msn: u32,
        /// The message of which some packets have arrived: 0 none, 1 a SEND, 2 a WRITE.
        8 => message: u32,
        /// Bytes of it so far.
        12 => done: u32,
        /// Of a WRITE: all bytes.
        16 => total: u32,
        /// Of a WRITE: the key.
        20 => rkey: u32,
        /// Of a WRITE: where it goes.
        24 => va: u64,
        /// 0.
        32 => reserved: u64,
        /// The last answers, oldest first.
        40 => answers: [TargetAnswer; TARGET_ANSWERS],
    }
}

/// The number of answers that are kept.
pub const TARGET_ANSWERS: usize = 16;

/// Where the first `TargetState` of a target QP is, behind its control line; the second one
/// follows.
pub const TARGET_STATES: usize = crate::queue::CONTROL_LEN;

/// Bytes of a target QP's queue memory.
pub const TARGET_LEN: usize = TARGET_STATES + 2 * size_of::<TargetState>();

constants! {
    /// The words of a target QP's control line that other QPs use otherwise, byte offsets.
    pub mod target_word: usize {
        /// `TARGET_KNOWN`, the valid `TargetState` (bits 24, 25: 0 neither, else 1 or 2), and the
        /// expected PSN.
        EXPECTED = 16,
        /// Messages completed.
        MSN = 20,
        /// How often it was connected.
        CONNECTION = 36,
    }
}

/// `target_word::EXPECTED` bit: the QP has received.
pub const TARGET_KNOWN: u32 = 1 << 31;
