//! Attacks other users' processes through lanes. Every user may open a lane to any engine, so this
//! module writes into a lane everything that can be written.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use abi::command::{extended, number};
use abi::layout::Record;
use abi::private::{LaneOpen, LaneOut};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use shm::lane::{LANE_LEN, LaneTx, Side, ends};
use shm::region::Region;

use crate::client::Client;
use crate::{Report, Victim};

/// Opcodes of RC packets: SEND only, WRITE only, READ response, ACK (or NAK), atomic response,
/// COMPARE SWAP.
const OPCODES: [u8; 6] = [0x04, 0x0a, 0x10, 0x11, 0x12, 0x13];
/// Syndromes: ACK, RNR NAK, NAK of a sequence error, NAK of a remote access error.
const SYNDROMES: [u8; 4] = [0x1f, 0x20, 0x60, 0x62];
const ROUNDS: u32 = 400;

pub(crate) fn try_all(report: &mut Report, run_dir: &Path, victims: &[Victim]) {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for victim in victims {
        let Ok(mut client) = Client::open(run_dir) else { return report.fail("the device cannot be opened") };
        let (true, Ok(own)) = (client.hello().is_ok(), client.objects()) else { return report.fail("no objects") };
        let Some((region, mut tx)) = open(report, &client, victim.engine, 0) else { continue };
        for (qpn, peer) in &victim.qps {
            // As the QP's own peer, as the QP itself, as this program's own QP, and as QPs that do
            // not exist.
            for source in [*peer, *qpn, own.qpn, 0x00ab_cdef, 1] {
                forge(&mut tx, &mut noise, source, *qpn);
            }
        }
        random_records(&mut tx, &mut noise);
        noise.fill(&region);
        too_many(report, run_dir, victim.engine);
    }
    let client = Client::open(run_dir);
    report.attempt(
        "a lane without an engine",
        client.and_then(|client| client.call(&request(1, 0))).map_err(|e| e.reason),
    );
}

/// Opens a lane to an engine, and misuses the notifier and the wake word that come with the lane.
fn open(report: &mut Report, client: &Client, engine: u32, lane_index: u32) -> Option<(Arc<Region>, LaneTx)> {
    let answer = client.call(&request(engine, lane_index)).ok()?;
    let out = LaneOut::read(&answer.bytes)?;
    let region = Arc::new(Region::map(answer.fds[0].as_fd(), LANE_LEN).ok()?);
    let side = if out.side == 0 { Side::A } else { Side::B };
    // Makes the victim's notifier blocking and fills it up. The next process that notifies through
    // it would block for ever.
    let wake = &answer.fds[2];
    let flags = fcntl_getfl(wake).unwrap_or(OFlags::NONBLOCK);
    let _ = rustix::io::write(wake, &(u64::MAX - 1).to_ne_bytes());
    let _ = fcntl_setfl(wake, flags - OFlags::NONBLOCK);
    // The victim's wake word can be mapped read-only only.
    report.attempt("another's wake word", Region::map(answer.fds[3].as_fd(), 4096));
    let (tx, _) = ends(Arc::clone(&region), side);
    Some((region, tx))
}

fn request(engine: u32, lane_index: u32) -> Vec<u8> {
    extended(number::LANE_OPEN, &LaneOpen { engine, lane_index }, size_of::<LaneOut>(), 0)
}

/// Sends packets and notices to the QP `to` that claim to come from the QP `from`.
fn forge(tx: &mut LaneTx, noise: &mut Noise, from: u32, to: u32) {
    for round in 0..ROUNDS {
        let mut record = vec![0_u8; 16];
        record[1] = 1;
        record[8..12].copy_from_slice(&from.to_le_bytes());
        if round % 16 == 15 {
            record[7] = 4;
            record.extend(to.to_le_bytes());
            record.extend((noise.next() as u32 & 0x00ff_ffff).to_le_bytes());
        } else {
            let opcode = OPCODES[round as usize % OPCODES.len()];
            // PSNs near zero, near the end of the range, and anywhere.
            let psn = [round, 0x00ff_ffff - round, noise.next() as u32 & 0x00ff_ffff][round as usize % 3];
            record.extend([opcode, 0, 0xff, 0xff]);
            record.extend(to.to_be_bytes());
            record.extend((psn | 0x8000_0000).to_be_bytes());
            match opcode {
                0x0a => record.extend([0; 16]),
                0x10 | 0x11 => record.extend([SYNDROMES[round as usize / 6 % SYNDROMES.len()], 0, 0, 1]),
                0x12 => record.extend([0x1f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]),
                0x13 => record.extend([0; 28]),
                _ => {}
            }
        }
        // The victim may let its ring be full.
        let _ = tx.ring.push(&record);
    }
}

fn random_records(tx: &mut LaneTx, noise: &mut Noise) {
    for _ in 0..ROUNDS {
        let length = 16 + noise.next() as usize % 200;
        let record: Vec<u8> = (0..length).map(|_| noise.next() as u8).collect();
        let _ = tx.ring.push(&record);
    }
}

/// Opens lanes until the agent refuses. Each lane costs the victim descriptors.
fn too_many(report: &mut Report, run_dir: &Path, engine: u32) {
    let mut clients = Vec::new();
    for _ in 0..4 {
        let Ok(mut client) = Client::open(run_dir) else { return report.fail("the device cannot be opened") };
        report.require("an engine is welcome", client.hello().is_ok());
        let refusal = (0..64).find_map(|lane_index| client.call(&request(engine, lane_index)).err());
        clients.push(client);
        if let Some(error) = refusal {
            return report.attempt("one lane more", Err::<(), _>(error.reason));
        }
    }
    report.fail("lanes into another's process have no end");
}

/// A generator of bytes: xorshift.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, region: &Region) {
        for at in (0..region.len()).step_by(8) {
            region.write(at, &self.next());
        }
    }
}
