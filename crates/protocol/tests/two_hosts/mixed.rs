//! All operations mixed, in both directions at once, over every kind of network and packet size.
//! The results are compared with a model that has no packets. The seeds are pinned: a run that ever
//! failed stays in the table.

use crate::world::{A, B, BASE, Host, RKEY, Random, Scenario, World};
use softhca_protocol::{Operation, RecvEnd, SendOp, Status};

/// Areas of a host's memory: one that peers write, one that they read (nobody changes it), and
/// words for atomics.
pub(crate) const WRITTEN: u32 = 0;
pub(crate) const READ: u32 = 0x4_0000;
pub(crate) const WORDS: u32 = 0x8_0000;

/// The expected result of one direction.
pub(crate) struct Expectation {
    pub written: Vec<u8>,
    pub words: [u64; 4],
    pub messages: Vec<(Vec<u8>, RecvEnd)>,
    /// The expected final contents of each request's local memory.
    pub local: Vec<Vec<u8>>,
    pub atomics: u32,
    /// Local requests.
    pub carried_out: Vec<u32>,
}

fn random_length(random: &mut Random, mtu: u32) -> u32 {
    match random.below(6) {
        0 => 0,
        1 => 1 + random.below(16),
        2 => mtu,
        3 => mtu * (1 + random.below(5)),
        _ => random.below(mtu * 5),
    }
}

/// Posts one random request and updates the model.
pub(crate) fn post(random: &mut Random, mtu: u32, host: &mut Host, peer_reads: &[u8], model: &mut Expectation) -> bool {
    let length = random_length(random, mtu).min(0x3_0000);
    let at = random.below(0x4_0000 - length);
    let imm = random.next() as u32;
    let solicited = random.percent(30);
    let fence = random.percent(20);
    let mut op = SendOp { rkey: RKEY, imm, solicited, fence, ..SendOp::default() };
    let data = random.bytes(length);
    let end = RecvEnd { byte_len: length, solicited, imm: None, invalidate: None };
    let write = |model: &mut Expectation| {
        model.written[at as usize..(at + length) as usize].copy_from_slice(&data);
        BASE + u64::from(WRITTEN + at)
    };
    match random.below(10) {
        0 | 1 => {
            op.operation = Operation::Send;
            model.messages.push((data.clone(), end));
        }
        2 => {
            op.operation = Operation::SendImm;
            model.messages.push((data.clone(), RecvEnd { imm: Some(imm), ..end }));
        }
        3 => {
            op.operation = Operation::SendInv;
            model.messages.push((data.clone(), RecvEnd { invalidate: Some(imm), ..end }));
        }
        4 => {
            op.operation = Operation::Write;
            op.remote_addr = write(model);
        }
        5 => {
            op.operation = Operation::WriteImm;
            op.remote_addr = write(model);
            model.messages.push((Vec::new(), RecvEnd { imm: Some(imm), ..end }));
        }
        6 => {
            op.operation = Operation::Read;
            op.remote_addr = BASE + u64::from(READ + at);
            model.local.push(peer_reads[at as usize..(at + length) as usize].to_vec());
            host.post(op, vec![0; length as usize]);
            return false;
        }
        9 => {
            op.operation = if random.percent(50) { Operation::BindMw } else { Operation::LocalInv };
            model.local.push(Vec::new());
            let slot = host.post(op, Vec::new());
            model.carried_out.push(slot);
            return false;
        }
        kind => {
            let which = random.below(4) as usize;
            let word = &mut model.words[which];
            op.remote_addr = BASE + u64::from(WORDS) + 8 * which as u64;
            model.local.push(word.to_le_bytes().to_vec());
            model.atomics += 1;
            if kind == 7 {
                op.operation = Operation::FetchAdd;
                op.swap_add = random.next();
                *word = word.wrapping_add(op.swap_add);
            } else {
                op.operation = Operation::CmpSwap;
                op.compare = if random.percent(70) { *word } else { random.next() };
                op.swap_add = random.next();
                if *word == op.compare {
                    *word = op.swap_add;
                }
            }
            host.post(op, vec![0; 8]);
            return false;
        }
    }
    model.local.push(data.clone());
    host.post(op, data);
    matches!(op.operation, Operation::Send | Operation::SendImm | Operation::SendInv | Operation::WriteImm)
}

fn run(scenario: Scenario) {
    let mut world = World::new(scenario);
    let reads = [A, B].map(|_| world.random.bytes(0x4_0000));
    let mut models = [A, B].map(|_| Expectation {
        written: vec![0; 0x4_0000],
        words: [0; 4],
        messages: Vec::new(),
        local: Vec::new(),
        atomics: 0,
        carried_out: Vec::new(),
    });
    for host in [A, B] {
        world.hosts[host].memory[READ as usize..][..0x4_0000].copy_from_slice(&reads[host]);
    }
    // Twice as many requests as the queue holds at the first post, in two batches.
    for portion in 0..2 {
        for host in [A, B] {
            let mut receives = 0;
            for _ in 0..50 {
                let World { random, hosts, .. } = &mut world;
                let takes = post(random, scenario.mtu, &mut hosts[host], &reads[1 - host], &mut models[host]);
                receives += u32::from(takes);
            }
            // Receive requests are posted one by one, often too late.
            for number in 0..receives {
                let after = u64::from(number * world.random.below(20_000));
                world.post_receive_later(1 - host, after, 0x4_0000);
            }
        }
        world.run();
        for host in [A, B] {
            assert_eq!(world.hosts[host].completions.len(), 50 * (portion + 1), "{scenario:?}");
        }
    }
    for from in [A, B] {
        let (host, peer, model) = (&world.hosts[from], &world.hosts[1 - from], &models[from]);
        let expected: Vec<_> = (0..100).map(|slot| (slot, Status::Success)).collect();
        assert!(host.completions == expected, "completions of {from}: {:?} {scenario:?}", host.completions);
        assert!(peer.memory[..0x4_0000] == model.written, "memory written by {from}: {scenario:?}");
        let words: Vec<_> = (0..4).map(|which| peer.word(WORDS as usize + 8 * which)).collect();
        assert_eq!(words, model.words, "atomics by {from}: {scenario:?}");
        assert_eq!(peer.atomics, model.atomics, "each atomic once: {scenario:?}");
        assert!(host.local == model.local, "data read by {from}: {scenario:?}");
        assert!(peer.received == model.messages, "messages from {from}: {scenario:?}");
        assert_eq!(peer.responder.dead(), None, "{scenario:?}");
        // The responder counts each piece as a message.
        let messages = peer.responder.msn() + model.carried_out.len() as u32;
        let carried_out: Vec<_> = host.carried_out.iter().map(|done| done.0).collect();
        assert_eq!(carried_out, model.carried_out, "once and in order: {scenario:?}");
        assert!(messages == 100 || scenario.read_piece != 0, "{messages} {scenario:?}");
        assert_eq!(host.requester.sq_psn(), peer.responder.expected_psn(), "{scenario:?}");
        assert_eq!(host.requester.poll_timeout(), None, "{scenario:?}");
    }
}

const MTUS: [u32; 6] = [256, 512, 1024, 2048, 4096, 32768];

/// (loss, duplication, reordering, path full), in percent.
fn sweep(faults: (u32, u32, u32, u32)) {
    let (loss, duplication, reordering, path_full) = faults;
    for mtu in MTUS {
        for seed in 1..=12 {
            // Half of the runs wrap the packet numbers.
            let psn = if seed % 2 == 0 { 0xff_ffe0 } else { 100 };
            // A responder may remember one request or many. READs may have one piece or several.
            let rd_atomic = [1, 4, 16][seed as usize % 3];
            let read_piece = [0, 0, 1, 3][seed as usize % 4];
            let window = if seed % 5 == 0 { 1 + seed as u32 } else { u32::MAX };
            let probe_after = if seed % 3 == 0 { 100_000 } else { 0 };
            let base = Scenario { seed, mtu, psn, rd_atomic, read_piece, window, probe_after, ..Scenario::default() };
            run(Scenario { loss, duplication, reordering, path_full, ..base });
        }
    }
}

#[test]
fn a_perfect_network_delivers_everything_in_order() {
    sweep((0, 0, 0, 0));
}

#[test]
fn a_path_that_is_often_full_delivers_everything_in_order() {
    sweep((0, 0, 0, 40));
}

#[test]
fn some_loss_is_repaired_by_retransmission() {
    sweep((2, 0, 0, 0));
}

#[test]
fn heavy_loss_is_repaired_by_retransmission() {
    sweep((12, 0, 0, 10));
}

#[test]
fn duplicates_are_not_executed_twice() {
    sweep((0, 20, 0, 0));
}

#[test]
fn reordered_packets_are_executed_in_order() {
    sweep((0, 0, 5, 0));
}

#[test]
fn all_faults_together_lose_and_repeat_nothing() {
    sweep((3, 10, 3, 10));
}

#[test]
fn a_path_that_loses_nothing_runs_no_timer() {
    for mtu in MTUS {
        let psn = 0xff_fff0;
        // With a timeout of 8 µs and no retries, a single expiry would end the connection.
        run(Scenario { mtu, psn, lossless: true, timeout: 1, retry_cnt: 0, path_full: 20, ..Scenario::default() });
    }
}
