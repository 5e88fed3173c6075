//! An agent in a process with a low limit of memory or address space. Hostile users make objects of
//! every kind until each kind is refused. The agent survives and serves the connected clients.
//! After the hostile users have gone, all objects can be made again.
//!
//! The agent is this program, started a second time, because a limit is the process's.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use abi::Errno;
use abi::command::{legacy, number};
use abi::cq::CreateCq;
use abi::device::QueryGid;
use abi::envelope::RequestEnvelope;
use abi::layout::Record;
use abi::mr::{AllocMw, AllocMwAnswer, RegMr, RegMrAnswer};
use abi::open::{Open, profile};
use abi::pd::AllocPd;
use abi::qp::kind;
use abi::ucma::id::{CreateId, CreateIdAnswer};
use abi::ucma::{build, command, port_space};
use agent::{Agent, Config};
use common::hostile::{HOSTILE, OTHER, as_user, is_root};
use common::{Client, create_qp};
use rustix::process::{Resource, Rlimit, setrlimit};
use shm::socket::Socket;

/// The variable with the agent's run directory.
const DIR: &str = "SOFTHCA_TEST_AGENT";
/// The variable with the name of the limit.
const WHICH: &str = "SOFTHCA_TEST_LIMIT";
/// Address space in addition to the agent's at its start. Queue memory is refused first.
const ADDRESSES: (&str, u64) = ("VmSize:", 64 << 20);
/// Private memory in addition to the agent's at its start. Tables are refused first.
const MEMORY: (&str, u64) = ("VmData:", 6 << 20);
/// The most objects of one kind that one user makes.
const MOST: usize = 20_000;
const HOSTILES: u32 = 3;

#[test]
fn agent_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let config = Config { system: true, ..Config::parse("").expect("a configuration") };
    let agent = Agent::start(&config, Some(Path::new(&dir))).expect("an agent");
    // After this answer the agent's threads run and have the memory that they need to start.
    agent::admin::ask(Path::new(&dir), &serde_json::json!({"request": "status"})).expect("an answer");
    let which = std::env::var(WHICH).expect("what is limited");
    let (resource, room) = match which.as_str() {
        "VmSize:" => (Resource::As, ADDRESSES.1),
        _ => (Resource::Data, MEMORY.1),
    };
    let status = std::fs::read_to_string("/proc/self/status").expect("read");
    let line = status.lines().find_map(|line| line.strip_prefix(&which)).expect("a line");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    let most = Some((kib << 10) + room);
    setrlimit(resource, Rlimit { current: most, maximum: most }).expect("less is always possible");
    println!("\nit serves");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(agent);
}

fn start(dir: &Path, which: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "agent_process", "--nocapture"]).env(DIR, dir).env(WHICH, which);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let mut said = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(said.any(|line| line.is_ok_and(|line| line == "it serves")), "the agent does not start");
    // The test harness of the process reports a slow test, and would end if nobody read that.
    std::thread::spawn(move || said.for_each(drop));
    child
}

fn open(dir: &Path, uid: u32) -> Client {
    as_user(uid, || {
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        client
    })
}

fn create_cq(client: &mut Client, cqe: u32) -> i32 {
    let body = CreateCq { response: 1, cqe, comp_channel: -1, ..CreateCq::default() };
    client.call(&legacy(number::CREATE_CQ, &body, &[], 8 + 56)).status
}

/// Makes objects until one is refused. Returns their number.
fn until_refused(mut make: impl FnMut() -> i32) -> usize {
    (0..MOST).take_while(|_| make() == 0).count()
}

/// Makes objects of every kind. Returns the number of each kind.
fn exhaust(client: &mut Client, pd: u32, cq: u32) -> Vec<(&'static str, usize)> {
    let sizes = (4..20).rev().map(|power| 1 << power);
    let cqs = sizes.map(|cqe| until_refused(|| create_cq(client, cqe))).sum();
    let qps = until_refused(|| client.call(&create_qp(pd, cq, kind::RC)).status);
    let mr =
        |n: u64| RegMr { response: 1, start: n << 12, hca_va: n << 12, length: 10, pd_handle: pd, ..RegMr::default() };
    let mut n = 0;
    let mrs = until_refused(|| {
        n += 1;
        client.call(&legacy(number::REG_MR, &mr(n), &[], size_of::<RegMrAnswer>())).status
    });
    let mw = AllocMw { response: 1, pd_handle: pd, mw_type: 1, ..AllocMw::default() };
    let mws = until_refused(|| client.call(&legacy(number::ALLOC_MW, &mw, &[], size_of::<AllocMwAnswer>())).status);
    let pds = until_refused(|| client.call(&legacy(number::ALLOC_PD, &AllocPd { response: 1 }, &[], 12)).status);
    vec![("CQs", cqs), ("QPs", qps), ("MRs", mrs), ("MWs", mws), ("PDs", pds)]
}

/// Makes ids of the connection manager.
fn exhaust_ids(dir: &Path) -> Option<(Socket, usize)> {
    let socket = Socket::connect(&dir.join("rdma_cm")).ok()?;
    socket.send(Open::new(profile::MAINLINE).bytes(), &[]).ok()?;
    let mut bytes = [0; 512];
    socket.recv(&mut bytes).ok()?;
    let create = CreateId { uid: 1, response: 1, ps: port_space::TCP, qp_type: kind::RC, ..CreateId::default() };
    let create = build(command::CREATE_ID, &create, &[], size_of::<CreateIdAnswer>());
    let ids = until_refused(|| {
        let sent = socket.send(&[RequestEnvelope { sequence: 1, flags: 0 }.bytes(), &create].concat(), &[]);
        let len = sent.and_then(|()| socket.recv(&mut bytes)).map_or(0, |received| received.len);
        if len < 8 { -1 } else { i32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) }
    });
    Some((socket, ids))
}

/// Without free memory a command is refused, and the agent survives.
#[track_caller]
fn is_served(which: &str, child: &mut Child, victim: &mut Client, after: &str) {
    assert!(child.try_wait().expect("a child").is_none(), "the agent has ended after {after}");
    let body = QueryGid { response: 1, port_num: 1, ..QueryGid::default() };
    let answer = victim.call(&legacy(number::QUERY_GID, &body, &[], 16));
    let refused = which == MEMORY.0 && answer.status == -Errno::ENOMEM.0;
    assert!(answer.status == 0 || refused, "{after}: {}", answer.reason());
}

#[test]
fn an_agent_with_little_address_space_refuses_and_lives() {
    refuses_and_lives(ADDRESSES.0);
}

#[test]
fn an_agent_with_little_memory_refuses_and_lives() {
    refuses_and_lives(MEMORY.0);
}

fn refuses_and_lives(which: &str) {
    if !is_root() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).expect("set");
    let dir = scratch.path().join("run");
    let mut child = start(&dir, which);
    let mut victim = open(&dir, OTHER);
    victim.qp();
    let users = HOSTILE + 10..HOSTILE + 10 + HOSTILES;
    let begin = |uid| {
        let mut client = open(&dir, uid);
        let (pd, cq, _) = client.qp();
        (uid, client, pd, cq)
    };
    let begun: Vec<_> = users.map(begin).collect();
    let mut hostile = Vec::new();
    for (uid, mut client, pd, cq) in begun {
        println!("user {uid} made {:?}", exhaust(&mut client, pd, cq));
        is_served(which, &mut child, &mut victim, "everything was made");
        let ids = as_user(uid, || exhaust_ids(&dir));
        println!("and {:?} ids", ids.as_ref().map(|(_, ids)| ids));
        is_served(which, &mut child, &mut victim, "ids were made");
        hostile.push((client, ids));
    }
    drop(hostile);
    // The agent releases the objects of an ended client after a short time.
    let mut tries = 0;
    while create_cq(&mut victim, 1 << 16) != 0 {
        tries += 1;
        assert!(tries < 600, "there is no room again");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    victim.qp();
    drop(child.stdin.take());
    child.wait().expect("it ends");
}
