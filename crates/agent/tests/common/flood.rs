//! The common parts of the flood tests: the flooding user, the victim, and the figures.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use abi::command::{legacy, number};
use abi::device::{QueryGid, QueryGidAnswer};
use abi::envelope::{RequestEnvelope, request as envelope_flag};
use abi::layout::Record;
use agent::Config;
use shm::socket::Socket;

use super::{Client, TestAgent};

/// The flooding user. It is not a user of `hostile.rs`: the kernel counts descriptors in messages
/// by user, and other tests may use up all that one user may have.
pub(crate) const MALLORY: u32 = 64_011;
pub(crate) const VICTIM: u32 = 64_012;

/// How long a flood lasts.
pub(crate) const LASTS: Duration = Duration::from_millis(1500);
/// Longer than any command takes.
pub(crate) const HANG: Duration = Duration::from_secs(60);

pub(crate) fn agent() -> Option<TestAgent> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: other users need root");
        return None;
    }
    let agent = TestAgent::start_as(&Config {
        system: true,
        ..Config::parse("addresses = ['127.0.0.1']").expect("a configuration")
    });
    fs::set_permissions(agent.scratch.path(), fs::Permissions::from_mode(0o755)).expect("opened");
    Some(agent)
}

/// Makes the calling thread run as another user from now on.
pub(crate) fn become_user(uid: u32) {
    let uid = rustix::process::Uid::from_raw(uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).expect("another user");
}

/// One action of a flood, which each of its threads repeats.
pub(crate) type Flood = fn(&Path, &AtomicBool, &AtomicU64);

/// Times of the victim's commands, and how often the flood acted.
pub(crate) struct Figures {
    pub(crate) times: Vec<Duration>,
    pub(crate) done: u64,
}

impl Figures {
    fn part(&self, percent: usize) -> Duration {
        self.times[(self.times.len() - 1) * percent / 100]
    }
}

/// Floods the agent with this many threads, while another user sends simple commands again and
/// again.
pub(crate) fn figures(agent: &TestAgent, name: &str, threads: usize, flood: Flood) -> Figures {
    figures_during(agent, name, threads, LASTS, flood)
}

/// Like [`figures`], for another duration.
pub(crate) fn figures_during(agent: &TestAgent, name: &str, threads: usize, lasts: Duration, flood: Flood) -> Figures {
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begin = Arc::new(Barrier::new(threads + 1));
    let before = (resident(), descriptors());
    let spawn = |_| {
        let (dir, over, done, begin) = (agent.dir.clone(), Arc::clone(&over), Arc::clone(&done), Arc::clone(&begin));
        std::thread::spawn(move || {
            become_user(MALLORY);
            begin.wait();
            flood(&dir, &over, &done);
        })
    };
    let floods: Vec<_> = (0..threads).map(spawn).collect();
    let (dir, acts) = (agent.dir.clone(), Arc::clone(&done));
    let victim = std::thread::spawn(move || {
        become_user(VICTIM);
        begin.wait();
        victim(&dir, lasts, &acts)
    });
    let times = victim.join();
    over.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().expect("the flood goes on until the end");
    }
    let mut figures = Figures { times: times.expect("the victim is served"), done: done.load(Ordering::Relaxed) };
    figures.times.sort_unstable();
    println!(
        "{name}: {} floods done; victim: {} commands, p50 {:?}, p99 {:?}, max {:?}; KiB and descriptors before {before:?}, after {:?}",
        figures.done,
        figures.times.len(),
        figures.part(50),
        figures.part(99),
        figures.part(100),
        (resident(), descriptors())
    );
    agent.ask("status");
    figures
}

/// Queries a GID and allocates a PD; each 40th time it opens the device again. It does so at least
/// until the flood has acted.
fn victim(dir: &Path, lasts: Duration, acts: &AtomicU64) -> Vec<Duration> {
    let begin = Instant::now();
    let mut times = Vec::new();
    while begin.elapsed() < lasts || acts.load(Ordering::Relaxed) == 0 {
        assert!(begin.elapsed() < lasts + HANG, "the flood does not act");
        let mut client = Client::connect(&dir.join("uverbs0"));
        client.open();
        for _ in 0..40 {
            let query = QueryGid { response: 1, port_num: 1, ..QueryGid::default() };
            let began = Instant::now();
            client.call(&legacy(number::QUERY_GID, &query, &[], 16)).get::<QueryGidAnswer>(0);
            client.alloc_pd();
            times.push(began.elapsed() / 2);
            assert!(began.elapsed() < HANG);
        }
    }
    times
}

pub(crate) fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

pub(crate) fn quiet(socket: &mut Socket, request: &[u8]) {
    let envelope = RequestEnvelope { sequence: 1, flags: envelope_flag::QUIET };
    socket.send(&[envelope.bytes(), request].concat(), &[]).expect("sent");
}
