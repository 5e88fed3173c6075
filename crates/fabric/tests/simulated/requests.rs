//! Posts an end's requests: chooses each request at random, and records its expected result at the
//! same time.

use abi::cq::opcode as done;
use abi::mr::{access, next_key};
use abi::post::{Sge, opcode, send_flags};
use engine::{Bind, Flush, SendWr};
use fabric::simulation::Simulation;
use wire::Feth;

use super::end::{AREA, Check, DEPTH, End, INLINE, Message, OPEN, Piece, QKEY, Request, Window, pattern};
use super::plan::Kind;
use super::program::SLOT;

/// The rights that a window gives to the peer.
const WINDOW: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A request before it is complete.
struct Draft {
    opcode: u32,
    done: u32,
    len: usize,
    at: usize,
    imm: u32,
    compare_add: u64,
    swap: u64,
    flags: u32,
    check: Check,
    by_window: bool,
}

/// Makes an end post its next request. Returns false if it cannot post one now.
pub(crate) fn post(simulation: &mut Simulation, ends: &mut [End], number: usize, mtu: usize) -> bool {
    let peer = ends[number].peer;
    let [a, b] = ends.get_disjoint_mut([number, peer]).expect("two ends");
    if a.failed || a.posted == a.total || a.under_way.len() == DEPTH {
        return false;
    }
    let Some(mut draft) = draft(simulation, a, b, mtu) else { return false };
    let request = u64::from(a.posted);
    let story = simulation.seed() << 20 ^ (number as u64) << 12 ^ request;
    let carries = draft.len > 0 && !matches!(draft.done, done::RDMA_READ | done::COMP_SWAP | done::FETCH_ADD);
    let mut bytes = if carries { pattern(story, draft.len) } else { Vec::new() };
    if matches!(a.kind, Kind::Uc | Kind::Ud) && bytes.len() >= 8 {
        bytes[..8].copy_from_slice(&request.to_le_bytes());
    }
    expect(a, &mut draft, request, &bytes);
    a.memory.put(End::source(request), &bytes);

    let lkey = a.mr.lkey();
    let from = if carries { End::source(request) } else { End::landing(request) };
    let mut cuts = [simulation.below(draft.len as u64 + 1) as usize, simulation.below(draft.len as u64 + 1) as usize];
    cuts.sort_unstable();
    let pieces = [(0, cuts[0]), (cuts[0], cuts[1]), (cuts[1], draft.len)];
    let whole = draft.done == done::ATOMIC_WRITE || !carries || simulation.below(2) == 0;
    let pieces = if whole { [(0, 0), (0, 0), (0, draft.len)] } else { pieces };
    let sges: Vec<Sge> = pieces
        .into_iter()
        .filter(|(from, to)| to > from)
        .map(|(begin, end)| Sge::new(a.iova + (from + begin) as u64, (end - begin) as u32, lkey))
        .collect();
    // The engine reads inline data at the program's addresses, not at those of the region.
    let signaled = simulation.below(4) > 0 || a.posted + 1 == a.total || a.under_way.len() + 1 == DEPTH;
    if signaled {
        draft.flags |= send_flags::SIGNALED;
    }
    let inline = carries && draft.len <= INLINE && simulation.below(2) == 0;
    let host: Vec<Sge> =
        sges.iter().map(|sge| Sge::new(a.memory.address() + (sge.addr - a.iova), sge.length, 0)).collect();
    let sges = if inline { host } else { sges };
    if inline {
        draft.flags |= send_flags::INLINE;
    }
    let key = match (&b.window, draft.by_window) {
        (Some((_, Window::Open(key))), true) => *key,
        _ => b.mr.rkey(),
    };
    let bind = bind(a, &draft);
    let wr = SendWr {
        wr_id: request,
        opcode: draft.opcode,
        send_flags: draft.flags,
        imm: draft.imm,
        remote_addr: b.iova + draft.at as u64,
        rkey: key,
        compare_add: draft.compare_add,
        swap: draft.swap,
        ud: a.ah.as_ref().map(|ah| (&**ah, b.qp.qpn(), QKEY)),
        xrc_srq: a.xrc_srq,
        flush: Flush { length: 64, feth: Feth { placement: 1, selectivity: 0 } },
        bind: bind.as_ref(),
        sges: &sges,
    };
    let mut batch = a.qp.send_batch().expect("a batch");
    batch.push(&wr).unwrap_or_else(|errno| panic!("request {request} of end {number}: {errno}"));
    batch.finish();

    match draft.opcode {
        opcode::SEND_WITH_INV => set(b, Window::Closing),
        opcode::BIND_MW => set(a, Window::Opening),
        opcode::LOCAL_INV => set(a, Window::Closing),
        _ => {}
    }
    let reads = (draft.done == done::RDMA_READ).then_some((draft.at, draft.at + draft.len));
    let byte_len =
        matches!(draft.done, done::RDMA_READ | done::COMP_SWAP | done::FETCH_ADD).then_some(draft.len as u32);
    let (opcode, check, by_window) = (draft.done, draft.check, draft.by_window);
    a.under_way.push_back(Request { number: request, signaled, opcode, byte_len, check, reads, by_window });
    a.posted += 1;
    true
}

fn set(end: &mut End, to: Window) {
    if let Some((_, window)) = &mut end.window {
        *window = to;
    }
}

fn bind(end: &End, draft: &Draft) -> Option<Bind> {
    let (mw, _) = end.window.as_ref()?;
    (draft.opcode == opcode::BIND_MW).then(|| Bind {
        window: mw.number(),
        rkey: next_key(mw.rkey()),
        mr: end.mr.lkey(),
        addr: end.iova,
        length: AREA as u64,
        access: WINDOW,
    })
}

/// The length of a message: many messages are short, some are empty, some are long.
fn length(simulation: &mut Simulation, least: usize, most: usize) -> usize {
    let bound = match simulation.below(8) {
        0 => return least,
        1..=4 => 200.min(most),
        5 => 5000.min(most),
        _ => most,
    };
    least + simulation.below((bound - least) as u64 + 1) as usize
}

/// Chooses a request that may be posted now.
fn draft(simulation: &mut Simulation, a: &End, b: &End, mtu: usize) -> Option<Draft> {
    let kinds: &[u32] = match a.kind {
        Kind::Ud => &[opcode::SEND, opcode::SEND_WITH_IMM],
        Kind::Uc => &[opcode::SEND, opcode::SEND_WITH_IMM, opcode::RDMA_WRITE, opcode::RDMA_WRITE_WITH_IMM],
        Kind::Rc | Kind::Xrc => &[
            opcode::SEND,
            opcode::SEND_WITH_IMM,
            opcode::RDMA_WRITE,
            opcode::RDMA_WRITE,
            opcode::RDMA_WRITE_WITH_IMM,
            opcode::RDMA_READ,
            opcode::RDMA_READ,
            opcode::ATOMIC_CMP_AND_SWP,
            opcode::ATOMIC_FETCH_AND_ADD,
            opcode::ATOMIC_WRITE,
            opcode::FLUSH,
            opcode::SEND_WITH_INV,
            opcode::BIND_MW,
            opcode::LOCAL_INV,
        ],
    };
    let mut opcode = kinds[simulation.below(kinds.len() as u64) as usize];
    let theirs = b.window.as_ref().map(|(_, window)| *window);
    let ours = a.window.as_ref().map(|(_, window)| *window);
    let (mut imm, mut check) = (simulation.below(1 << 32) as u32, Check::Nothing);
    let unreliable = matches!(a.kind, Kind::Uc | Kind::Ud);
    let least = if unreliable { 8 } else { 0 };
    let most = if a.kind == Kind::Ud { mtu } else { SLOT };
    match (opcode, theirs, ours) {
        (opcode::SEND_WITH_INV, Some(Window::Open(key)), _) => imm = key,
        (opcode::BIND_MW, _, Some(Window::Closed)) => {
            let (mw, _) = a.window.as_ref()?;
            check = Check::Bound(next_key(mw.rkey()));
        }
        // No outstanding request may use the window.
        (opcode::LOCAL_INV, _, Some(Window::Retired(key))) if b.under_way.iter().all(|one| !one.by_window) => {
            (imm, check) = (key, Check::Closed);
        }
        (opcode::SEND_WITH_INV | opcode::BIND_MW | opcode::LOCAL_INV, ..) => opcode = opcode::SEND,
        // XRC supports neither ATOMIC WRITE nor FLUSH.
        (opcode::ATOMIC_WRITE | opcode::FLUSH, ..) if a.kind == Kind::Xrc => opcode = opcode::RDMA_WRITE,
        _ => {}
    }
    let asks = a.under_way.iter().any(|one| one.byte_len.is_some());
    let by_window = matches!(theirs, Some(Window::Open(_))) && simulation.below(2) == 0;
    let mut draft =
        Draft { opcode, done: done::SEND, len: 0, at: OPEN, imm, compare_add: 0, swap: 0, flags: 0, check, by_window };
    match opcode {
        opcode::SEND | opcode::SEND_WITH_IMM | opcode::SEND_WITH_INV => {
            draft.len = length(simulation, least, most);
            draft.by_window = false;
            if opcode == opcode::SEND_WITH_INV && asks {
                // If a READ or atomic before it is repeated, it must not find the window closed.
                draft.flags = send_flags::FENCE;
            }
        }
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => {
            (draft.done, draft.len) = (done::RDMA_WRITE, length(simulation, least, most));
            if unreliable {
                // Each write has a place of its own, because it is not known which writes arrive.
                draft.at = a.pieces.last().map_or(OPEN, |last| last.at + last.bytes.len());
                draft.len = draft.len.min(800);
                draft.by_window = false;
                if draft.at + draft.len > AREA {
                    return None;
                }
            } else {
                draft.at = OPEN + simulation.below((AREA - OPEN - draft.len) as u64 + 1) as usize;
            }
        }
        opcode::RDMA_READ => {
            (draft.done, draft.len) = (done::RDMA_READ, length(simulation, 0, most));
            draft.at = simulation.below((AREA - draft.len) as u64 + 1) as usize;
        }
        opcode::ATOMIC_CMP_AND_SWP | opcode::ATOMIC_FETCH_AND_ADD | opcode::ATOMIC_WRITE => {
            draft.done = match opcode {
                opcode::ATOMIC_CMP_AND_SWP => done::COMP_SWAP,
                opcode::ATOMIC_FETCH_AND_ADD => done::FETCH_ADD,
                _ => done::ATOMIC_WRITE,
            };
            (draft.len, draft.at) = (8, 8 * simulation.below(OPEN as u64 / 8) as usize);
            draft.swap = simulation.below(u64::MAX);
            // Half of the comparisons match.
            let equal = opcode == opcode::ATOMIC_CMP_AND_SWP && simulation.below(2) == 0;
            draft.compare_add = if equal { word(&a.model, draft.at) } else { simulation.below(u64::MAX) };
        }
        opcode::FLUSH => (draft.done, draft.by_window) = (done::FLUSH, false),
        opcode::BIND_MW => (draft.done, draft.by_window) = (done::BIND_MW, false),
        _ => (draft.done, draft.by_window) = (done::LOCAL_INV, false),
    }
    let changes = matches!(draft.done, done::RDMA_WRITE | done::COMP_SWAP | done::FETCH_ADD | done::ATOMIC_WRITE)
        && draft.len > 0;
    let overlaps = |(from, to): (usize, usize)| from < draft.at + draft.len && draft.at < to;
    if changes && a.under_way.iter().filter_map(|one| one.reads).any(overlaps) {
        // A repeated READ would return the data of this later request.
        draft.flags |= send_flags::FENCE;
    }
    Some(draft)
}

fn word(model: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(model[at..at + 8].try_into().expect("eight bytes"))
}

/// Records the expected result of a request: in the peer's memory, in the peer's buffers and in
/// this end.
fn expect(a: &mut End, draft: &mut Draft, number: u64, bytes: &[u8]) {
    let range = draft.at..draft.at + draft.len;
    match draft.done {
        done::RDMA_WRITE if a.kind == Kind::Uc => {
            a.pieces.push(Piece { number, at: draft.at, bytes: bytes.to_vec(), came: false });
        }
        done::RDMA_WRITE | done::ATOMIC_WRITE => a.model[range].copy_from_slice(bytes),
        done::RDMA_READ => draft.check = Check::Landed(a.model[range].to_vec()),
        done::COMP_SWAP | done::FETCH_ADD => {
            let old = word(&a.model, draft.at);
            draft.check = Check::Landed(old.to_ne_bytes().to_vec());
            let new = match draft.done {
                done::FETCH_ADD => old.wrapping_add(draft.compare_add),
                _ if old == draft.compare_add => draft.swap,
                _ => old,
            };
            a.model[range].copy_from_slice(&new.to_ne_bytes());
        }
        _ => {}
    }
    let with_imm = matches!(draft.opcode, opcode::SEND_WITH_IMM | opcode::RDMA_WRITE_WITH_IMM);
    let is_send = draft.done == done::SEND;
    if is_send || draft.opcode == opcode::RDMA_WRITE_WITH_IMM {
        if a.kind == Kind::Uc && !is_send {
            // This number tells the receiver which message it is.
            draft.imm = number as u32;
        }
        a.messages.push_back(Message {
            number,
            opcode: if is_send { done::RECV } else { done::RECV_RDMA_WITH_IMM },
            imm: with_imm.then_some(draft.imm),
            invalidated: (draft.opcode == opcode::SEND_WITH_INV).then_some(draft.imm),
            len: draft.len,
            bytes: is_send.then(|| bytes.to_vec()),
        });
    }
}
