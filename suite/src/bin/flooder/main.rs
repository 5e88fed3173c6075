//! A hostile program that tries to make other users wait. As a victim, it is the program of another
//! user.
//!
//! `tests/users.rs` starts it as `flooder FLOOD SECONDS`, with `SOFTHCA_DIR` naming the agent's run
//! directory. It repeats one action in a few threads as often as possible, and prints how often it
//! has done so. As `flooder victim SECONDS`, it sends simple commands one after the other and
//! prints how long the agent took. Both roles survive refusals by the agent.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "an intruder does more with it")]
#[path = "../intruder/client.rs"]
mod client;

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abi::command::{extended, legacy, number};
use abi::device::{QueryGid, QueryGidAnswer};
use abi::dm::{ImportContext, ImportContextAnswer};
use abi::mr::{AllocMw, AllocMwAnswer, RegMr, RegMrAnswer, mw_type};
use abi::netlink;
use abi::pd::{AllocPd, AllocPdAnswer};
use client::Client;
use engine::Control;
use shm::{Region, Socket};

const THREADS: usize = 4;
/// Number of regions that a flooder registers for a flood of long lists.
const MANY: u64 = 9_500;

type Flood = fn(&Path, Instant, &AtomicU64);

const FLOODS: [(&str, Flood); 8] = [
    ("show", show),
    ("lists", lists),
    ("ends", ends),
    ("connections", connections),
    ("commands", commands),
    ("objects", objects),
    ("imports", imports),
    ("captures", captures),
];

fn main() -> ExitCode {
    let run_dir = engine::rundir::default();
    let mut words = std::env::args().skip(1);
    let what = words.next().unwrap_or_default();
    let seconds = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    if what == "victim" {
        return victim(&run_dir, end);
    }
    let Some((_, flood)) = FLOODS.iter().find(|(name, _)| *name == what) else {
        eprintln!("{what:?} is no flood");
        return ExitCode::FAILURE;
    };
    let done = AtomicU64::new(0);
    // Objects that the agent lists again and again.
    let rich = matches!(what.as_str(), "show" | "lists").then(|| rich(&run_dir));
    println!("begun");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| flood(&run_dir, end, &done));
        }
    });
    drop(rich);
    println!("{what}: done {} times", done.load(Ordering::Relaxed));
    ExitCode::SUCCESS
}

/// Queries a GID again and again. Every 100th time it opens the device again.
fn victim(run_dir: &Path, end: Instant) -> ExitCode {
    let mut times = Vec::new();
    while Instant::now() < end {
        let client = match Client::open(run_dir) {
            Ok(client) => client,
            Err(error) => {
                eprintln!("the device cannot be opened: {}", error.reason);
                return ExitCode::FAILURE;
            }
        };
        for _ in 0..100 {
            let query = QueryGid { response: 1, port_num: 1, ..QueryGid::default() };
            let began = Instant::now();
            if let Err(error) = client.call(&legacy(number::QUERY_GID, &query, &[], size_of::<QueryGidAnswer>())) {
                eprintln!("a command is refused: {}", error.reason);
                return ExitCode::FAILURE;
            }
            times.push(began.elapsed());
        }
    }
    times.sort_unstable();
    let part = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("{} commands: p50 {:?}, p99 {:?}, max {:?}", times.len(), part(50), part(99), part(100));
    ExitCode::SUCCESS
}

fn alloc_pd(client: &Client) -> Option<u32> {
    let command = legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], size_of::<AllocPdAnswer>() + 8);
    abi::layout::Record::read(&client.call(&command).ok()?.bytes).map(|answer: AllocPdAnswer| answer.pd_handle)
}

/// A client with many memory regions.
fn rich(run_dir: &Path) -> Option<Client> {
    let client = Client::open(run_dir).ok()?;
    let pd_handle = alloc_pd(&client)?;
    (1..MANY).try_for_each(|page| register(&client, pd_handle, page))?;
    Some(client)
}

fn register(client: &Client, pd_handle: u32, page: u64) -> Option<()> {
    let body = RegMr { response: 1, start: page << 12, hca_va: page << 12, length: 10, pd_handle, ..RegMr::default() };
    client.call(&legacy(number::REG_MR, &body, &[], size_of::<RegMrAnswer>())).ok().map(drop)
}

/// Requests all objects, on many connections at a time.
fn show(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let connect = |_| Socket::connect(&engine::rundir::admin(run_dir)).ok();
    let sockets: Vec<Socket> = (0..10).map_while(connect).collect();
    let mut buffer = vec![0; 128 << 10];
    while Instant::now() < end {
        for socket in &sockets {
            let _ = socket.send(br#"{"request":"show"}"#, &[]);
        }
        for socket in &sockets {
            // If a piece begins with `+`, more pieces follow.
            while socket.recv(&mut buffer).is_ok_and(|received| received.len > 0) && buffer[0] == b'+' {}
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Requests all regions as `rdma resource` does, again and again.
fn lists(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let Ok(socket) = Socket::connect(&run_dir.join(netlink::NODE)) else { return };
    let kind = 5_u16 << 10 | netlink::command::RES_MR_GET;
    let flags = netlink::flag::REQUEST | netlink::flag::DUMP;
    let head = [kind, flags].map(u16::to_ne_bytes).concat();
    let device = [8, netlink::attribute::DEV_INDEX].map(u16::to_ne_bytes).concat();
    let request = [&24_u32.to_ne_bytes()[..], &head, &[0; 8], &device, &[0; 4]].concat();
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < end && socket.send(&request, &[]).is_ok() {
        // DONE and ERROR end the answer.
        let is_last = |bytes: &[u8]| netlink::messages(bytes).any(|(header, _)| header.kind <= 3);
        while socket.recv(&mut buffer).is_ok_and(|received| received.len > 0 && !is_last(&buffer[..received.len])) {}
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Tries to import a context through a descriptor that belongs to no context, while many contexts
/// exist.
fn imports(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let others: Vec<Client> = (0..30).map_while(|_| Client::open(run_dir).ok()).collect();
    let (Some(client), Ok((_, memory))) = (others.first(), Region::create("none of them", 4096)) else { return };
    let import = extended(number::IMPORT_CONTEXT, &ImportContext::default(), size_of::<ImportContextAnswer>(), 0);
    while Instant::now() < end {
        let _ = client.control.call(&import, &[memory.as_fd()]);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Begins captures with large rings for its own engines, and ends each capture without reading a
/// packet.
fn captures(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let mut engines: Vec<Client> = (0..12).map_while(|_| Client::open(run_dir).ok()).collect();
    engines.iter_mut().for_each(|client| _ = client.hello());
    let mut buffer = vec![0; 64 << 10];
    while Instant::now() < end {
        let Ok(socket) = Socket::connect(&engine::rundir::admin(run_dir)) else { continue };
        let _ = socket.send(br#"{"request":"capture","room":67108864}"#, &[]);
        let _ = socket.recv(&mut buffer);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes many objects, and then closes the device.
fn ends(run_dir: &Path, end: Instant, done: &AtomicU64) {
    while Instant::now() < end {
        let Ok(client) = Client::open(run_dir) else { continue };
        let made = (0..1_000).map_while(|_| alloc_pd(&client)).count();
        done.fetch_add(made as u64, Ordering::Relaxed);
    }
}

/// Connects to each node of the agent and disconnects.
fn connections(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let doors = [engine::rundir::node(run_dir, 0), run_dir.join(abi::ucma::NODE), engine::rundir::admin(run_dir)];
    while Instant::now() < end {
        for door in &doors {
            drop(Socket::connect(door));
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Sends commands that the agent refuses.
fn commands(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let Ok(client) = Client::open(run_dir) else { return };
    while Instant::now() < end {
        let _ = client.call(&client::create_qp(1, 1));
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes regions and windows until the agent refuses, and continues after that.
fn objects(run_dir: &Path, end: Instant, done: &AtomicU64) {
    let Ok(client) = Client::open(run_dir) else { return };
    let Some(pd_handle) = alloc_pd(&client) else { return };
    let window = AllocMw { response: 1, pd_handle, mw_type: mw_type::TYPE_1, ..AllocMw::default() };
    let window = legacy(number::ALLOC_MW, &window, &[], size_of::<AllocMwAnswer>());
    let mut page = 0;
    while Instant::now() < end {
        page += 1;
        let _ = register(&client, pd_handle, page);
        let _ = client.call(&window);
        done.fetch_add(2, Ordering::Relaxed);
    }
}
