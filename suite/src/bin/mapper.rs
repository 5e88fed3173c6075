//! A hostile program that makes the agent map as much memory as possible. As a victim, it is a
//! program of another user that registers memory meanwhile.
//!
//! `tests/users.rs` starts it as `mapper attack SECONDS` and as `mapper victim SECONDS`, with
//! `SOFTHCA_DIR` naming the agent's run directory. Neither program runs an engine. So the agent
//! runs a proxy engine for each, and this engine maps the memory of regions. The attacker registers
//! parts of sparse files, large and small, until the agent refuses, and then continues. The victim
//! fails if the agent refuses a region.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "an intruder does more with it")]
#[path = "intruder/client.rs"]
mod client;

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use abi::Errno;
use abi::command::{legacy, number};
use abi::cq::{CreateCq, CreateCqAnswer, PollCq};
use abi::layout::Record;
use abi::mr::{DeregMr, RegMr, RegMrAnswer, access};
use abi::pd::{AllocPd, AllocPdAnswer};
use abi::queue::MrIn;
use client::Client;
use engine::Control;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The address at which the program claims that its memory is.
const BASE: u64 = 1 << 40;
/// Length and maximal number of the attacker's regions: first terabytes, at last pages.
const SIZES: [(u64, u32); 3] = [(1 << 40, 64), (1 << 30, 1_000), (4096, 10_000)];

/// A client whose engine runs in the agent, and a PD of this client.
fn open() -> Outcome<(Client, u32)> {
    let client = Client::open(&engine::rundir::default()).map_err(|error| error.reason)?;
    let call = |request: Vec<u8>| client.call(&request).map_err(|error| error.reason);
    let pd = call(legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], size_of::<AllocPdAnswer>() + 8))?;
    let queue = CreateCq { response: 1, cqe: 8, comp_channel: -1, ..CreateCq::default() };
    let cq = call(legacy(number::CREATE_CQ, &queue, &[], 8 + 56))?;
    let CreateCqAnswer { cq_handle, .. } = CreateCqAnswer::read(&cq.bytes).ok_or("a short answer")?;
    call(legacy(number::POLL_CQ, &PollCq { response: 1, cq_handle, ne: 1 }, &[], 8 + 48))?;
    let AllocPdAnswer { pd_handle } = AllocPdAnswer::read(&pd.bytes).ok_or("a short answer")?;
    Ok((client, pd_handle))
}

fn file(len: u64) -> Outcome<OwnedFd> {
    let file = memfd_create("mapped", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

fn register(client: &Client, pd_handle: u32, length: u64, memory: &OwnedFd) -> Result<u32, engine::Error> {
    let body = RegMr { response: 1, start: BASE, length, hca_va: BASE, pd_handle, access_flags: access::LOCAL_WRITE };
    let tail = MrIn { rev: 1, flags: 1, ..MrIn::default() };
    let request = legacy(number::REG_MR, &body, tail.bytes(), size_of::<RegMrAnswer>());
    let answer = client.control.call(&request, &[memory.as_fd()])?;
    Ok(RegMrAnswer::read(&answer.bytes).map_or(0, |answer| answer.mr_handle))
}

fn attack(end: Instant) -> Outcome<()> {
    let (client, pd) = open()?;
    let mut told = Vec::new();
    for (length, most) in SIZES {
        let memory = file(length)?;
        let (mut registered, mut refused) = (0, 0);
        // The last size continues until the end.
        while Instant::now() < end && (registered < most && refused < 100 || length == 4096) {
            match register(&client, pd, length, &memory) {
                Ok(_) => registered += 1,
                Err(error) if matches!(error.errno, Errno::ENOMEM | Errno::EMFILE) => refused += 1,
                Err(error) => return Err(error.reason.into()),
            }
        }
        told.push(format!("{registered} regions of {length} bytes, {refused} refused"));
    }
    println!("mapper: {}", told.join("; "));
    if told.iter().any(|told| told.ends_with(" 0 refused")) { Err("nothing was refused".into()) } else { Ok(()) }
}

fn victim(end: Instant) -> Outcome<()> {
    let (client, pd) = open()?;
    let memory = file(1 << 20)?;
    let mut times = Vec::new();
    while Instant::now() < end {
        let begun = Instant::now();
        let mr_handle = register(&client, pd, 1 << 20, &memory).map_err(|error| error.reason)?;
        times.push(begun.elapsed());
        client.call(&legacy(number::DEREG_MR, &DeregMr { mr_handle }, &[], 0)).map_err(|error| error.reason)?;
    }
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
    println!("{} regions, p50 {:?}, p99 {:?}, max {:?}", times.len(), at(50), at(99), times.last());
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(5);
    let end = Instant::now() + Duration::from_secs(seconds);
    match words.first().map(String::as_str) {
        Some("attack") => attack(end),
        Some("victim") => victim(end),
        _ => Err("usage: mapper attack|victim SECONDS".into()),
    }
}
