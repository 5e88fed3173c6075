//! Compares random requests with a model of the peer's memory: lengths around every limit,
//! scattered lists, everything pipelined.

use crate::common::stranger::Noise;
use crate::common::{Fabric, Plan, Side};
use abi::cq::{Wc, opcode as wc_opcode};
use abi::post::{Sge, opcode, send_flags};
use engine::{RecvWr, SendWr};

/// Outstanding requests.
const BATCH: usize = 16;
/// Bytes of a slot, which holds one request's data.
const SLOT: usize = 64 * 1024;
/// Bytes of the memory that requests write to and read from.
const TARGET: usize = 128 * 1024;

/// The expected results of a request, besides its effect on the target.
struct Expected {
    code: u32,
    len: usize,
    /// The data that a READ or an atomic returns.
    brought: Option<Vec<u8>>,
    /// The data in the receive buffer.
    received: Option<Vec<u8>>,
    imm: u32,
}

fn length(noise: &mut Noise) -> usize {
    let near = [0, 1, 8, 60, 236, 300, 4096, 32 * 1024, SLOT];
    let near = near[noise.next() as usize % near.len()];
    match noise.next() % 4 {
        0 => near,
        1 => near.saturating_sub(noise.next() as usize % 5),
        2 => (near + noise.next() as usize % 5).min(SLOT),
        _ => noise.next() as usize % (SLOT / 8),
    }
}

/// Splits a slot's first `len` bytes into up to four elements, which may be empty.
fn pieces(side: &Side, at: usize, len: usize, noise: &mut Noise) -> Vec<Sge> {
    let mut cuts = vec![0, len];
    for _ in 0..noise.next() % 4 {
        cuts.push(noise.next() as usize % (len + 1));
    }
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| side.sge(at + cut[0], cut[1] - cut[0])[0]).collect()
}

/// Posts one batch to `to` and returns the expected results. `model` becomes the target's memory
/// after the batch.
fn post(from: &Side, to: &Side, model: &mut [u8], noise: &mut Noise) -> Vec<Expected> {
    let mut batch = from.qp.send_batch().expect("a batch");
    let mut fence = 0;
    let mut all = Vec::new();
    for slot in 0..BATCH {
        let code = (noise.next() % 7) as u32;
        let is_atomic = code >= opcode::ATOMIC_CMP_AND_SWP;
        let len = if is_atomic { 8 } else { length(noise) };
        let target = noise.next() as usize % (TARGET - len + 1);
        let target = if is_atomic { target & !7 } else { target };
        let at = slot * SLOT;
        from.memory.pattern(at, len, noise.next() as usize);
        let local = from.memory.get(at, len);
        let word = u64::from_ne_bytes(model[target & !7..][..8].try_into().expect("eight"));
        let mut wr = SendWr {
            wr_id: slot as u64,
            opcode: code,
            send_flags: send_flags::SIGNALED | fence,
            imm: noise.next() as u32,
            remote_addr: to.memory.addr(target),
            rkey: to.mr.rkey(),
            // Half of the comparisons match.
            compare_add: if noise.next() & 1 == 0 { word } else { noise.next() },
            swap: noise.next(),
            ..SendWr::default()
        };
        let sges = pieces(from, at, len, noise);
        wr.sges = &sges;
        // Later requests may overtake a READ (V-68). The fence prevents this, so that the model
        // knows the READ's result.
        fence = if code == opcode::RDMA_READ { send_flags::FENCE } else { 0 };
        let mut expected = Expected { code, len, brought: None, received: None, imm: wr.imm };
        match code {
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => model[target..target + len].copy_from_slice(&local),
            opcode::SEND | opcode::SEND_WITH_IMM => expected.received = Some(local),
            opcode::RDMA_READ => expected.brought = Some(model[target..target + len].to_vec()),
            _ => {
                let new = match code {
                    opcode::ATOMIC_FETCH_AND_ADD => word.wrapping_add(wr.compare_add),
                    _ if word == wr.compare_add => wr.swap,
                    _ => word,
                };
                expected.brought = Some(word.to_ne_bytes().to_vec());
                model[target..target + 8].copy_from_slice(&new.to_ne_bytes());
            }
        }
        if expected.received.is_some() || code == opcode::RDMA_WRITE_WITH_IMM {
            let place = TARGET + slot * SLOT;
            let sges = pieces(to, place, SLOT, noise);
            to.qp.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges }).expect("a receive");
        }
        batch.push(&wr).expect("room");
        all.push(expected);
    }
    batch.finish();
    all
}

fn check(from: &Side, to: &Side, model: &[u8], all: &[Expected]) {
    for (slot, expected) in all.iter().enumerate() {
        let wc = from.sent();
        assert_eq!((wc.wr_id, wc.status), (slot as u64, 0), "{:?}", engine::reason::last(3));
        if let Some(brought) = &expected.brought {
            assert!(from.memory.get(slot * SLOT, expected.len) == *brought, "what {} brought", expected.code);
        }
        let is_write = expected.code == opcode::RDMA_WRITE_WITH_IMM;
        if expected.received.is_none() && !is_write {
            continue;
        }
        let wc = to.received();
        let code = if is_write { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV };
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (slot as u64, 0, code));
        assert_eq!(wc.byte_len as usize, expected.len);
        if expected.code != opcode::SEND {
            assert_eq!(wc.imm_data, expected.imm);
        }
        if let Some(received) = &expected.received {
            assert!(to.memory.get(TARGET + slot * SLOT, expected.len) == *received, "what {} sent", expected.code);
        }
    }
    assert!(to.memory.get(0, TARGET) == model, "the target");
    assert_eq!(to.rcq.poll(&mut [Wc::default()]), Ok(0));
}

fn everything_is_as_the_model_says(fabric: &Fabric) {
    let engines = [fabric.engine(), fabric.engine()];
    let plan = Plan { memory: TARGET + BATCH * SLOT, ..Plan::rc() };
    std::thread::scope(|scope| {
        // Between two engines, in both directions, and within one.
        for (seed, (a, b)) in (1..).zip([(0, 1), (1, 0), (0, 0)]) {
            let (from, to) = (Side::new(&engines[a], &plan), Side::new(&engines[b], &plan));
            scope.spawn(move || {
                crate::common::connect(&from, &to);
                let mut noise = Noise(seed * 0x1234_5678_9abc);
                let mut model = to.memory.get(0, TARGET);
                for _ in 0..200 {
                    let all = post(&from, &to, &mut model, &mut noise);
                    check(&from, &to, &model, &all);
                }
            });
        }
    });
}

crate::common::even_with_losses! {
    everything_is_as_the_model_says
}
