//! The measurements of `--peers`. Each probe is one program or a pair of programs whose output
//! contains one figure. The principal type is [`Probe`].
//!
//! The peers' settings are in this file, so that readers can judge them. UCX gets its transport and
//! the settings in [`TUNED`], which were found by trying. All other settings are UCX's defaults.

/// UCX's settings for all of its transports.
pub(super) const UCX_SETTINGS: &[(&str, &str)] = &[("UCX_LOG_LEVEL", "error"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];

/// UCX's transports between two processes: shared memory, shared memory with copies by the kernel,
/// TCP.
pub(super) const TRANSPORTS: [&str; 3] = ["posix,self", "posix,cma,self", "tcp,self"];

/// A setting that made one of UCX's tests faster over its shared memory.
pub(super) struct Tuned {
    pub(super) tests: &'static [&'static str],
    pub(super) size: usize,
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) why: &'static str,
}

/// These settings were also tried, without a gain: `sysv` instead of `posix`, UCX's second protocol
/// (`UCX_PROTO_ENABLE`), huge pages, longer FIFO elements, rendezvous by `rkey_ptr`, `get_zcopy`
/// and `put_zcopy`, `UCX_POSIX_FIFO_MAX_POLL=1`.
pub(super) const TUNED: &[Tuned] = &[
    Tuned {
        tests: &["tag_bw", "ucp_am_bw"],
        size: 8,
        settings: &[("UCX_POSIX_FIFO_SIZE", "1024"), ("UCX_POSIX_FIFO_MAX_POLL", "64")],
        why: "a longer queue, and more taken from it at once: 31 instead of 25 million messages a second",
    },
    Tuned {
        tests: &["tag_bw", "ucp_am_bw"],
        size: 64 << 10,
        settings: &[("UCX_POSIX_SEG_SIZE", "65600")],
        why: "a message in one piece: 75 instead of 40 GB/s. Messages of several such pieces never arrive with UCX 1.13, so longer ones do without",
    },
    Tuned {
        tests: &["tag_bw"],
        size: 1 << 20,
        settings: &[("UCX_RNDV_THRESH", "inf")],
        why: "no rendezvous: 34 to 40 instead of 28 to 31 GB/s",
    },
    Tuned { tests: &["tag_bw"], size: 8 << 20, settings: &[("UCX_RNDV_THRESH", "inf")], why: "as of 1 MiB" },
];

/// UCX's settings for one test, by the test's name, its size and the transports.
fn settings(words: &str, transports: &str) -> &'static [(&'static str, &'static str)] {
    let fits = |tuned: &&Tuned| tuned.tests.iter().any(|test| words == format!("{test} -s {}", tuned.size));
    TUNED.iter().find(fits).filter(|_| transports == TRANSPORTS[0]).map_or(&[], |tuned| tuned.settings)
}

/// libfabric over shared memory.
pub(super) const PINGPONG: &str = "fi_pingpong -p shm -S 8";

/// The number of idle pairs.
pub(super) const IDLE_PAIRS: usize = 31;
/// The rate that is compared with itself.
pub(super) const PLAIN: &str = "ib_write_bw -s 8";
/// The same rate beside idle processes.
pub(super) const BESIDE_IDLE: &str = "ib_write_bw -s 8, beside 62 idle processes";

/// Milliseconds that `softhca run` adds to the start of a program.
pub(super) const STARTUP: &str = "softhca run";

/// Processes that are all connected to each other.
pub(super) const FEW_PROCESSES: &str = "pair 16 AGENT";
pub(super) const MANY_PROCESSES: &str = "all 128 AGENT";
/// Processes that all talk to each other at once: few, many, and how unfair that is for one of
/// many.
pub(super) const FEW_TALK: &str = "alltoall rate 4";
pub(super) const MANY_TALK: &str = "alltoall rate 64";
pub(super) const UNFAIR: &str = "alltoall fair 64";
/// Many and few connections of one process.
pub(super) const CONNECT: [&str; 2] = ["controls connect 10000", "controls connect 100"];
pub(super) const POLL: [&str; 2] = ["controls poll 10000", "controls poll 100"];
/// The number of messages that two threads send together in `suite/programs/controls.c`. `WAITS` is
/// the name of their waits.
const THREAD_MESSAGES: f64 = 800_000.0;
pub(super) const WAITS: &str = "controls threads 2, sleeps for a lock";

/// The groups of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// One at a time, 8 bytes and a few more sizes
    Latency,
    /// Messages of 8 bytes in a second
    Rate,
    /// Direct access: both programs under softhca run --shared-memory
    Shared,
    /// Bandwidth of 4 KiB
    #[value(name = "bw-4k")]
    Bw4k,
    /// Bandwidth of 64 KiB
    #[value(name = "bw-64k")]
    Bw64k,
    /// Bandwidth of 1 MiB
    #[value(name = "bw-1m")]
    Bw1m,
    /// Bandwidth of 8 MiB
    #[value(name = "bw-8m")]
    Bw8m,
    /// Programs that sleep
    Event,
    /// Many queue pairs, and many idle processes
    Scale,
    /// What objects and the start of a program cost
    Control,
    /// What processes cost that all know each other
    Memory,
    /// Threads of one process
    Threads,
    /// Two hosts; needs root
    Wire,
    /// Two hosts with iWARP devices; needs root
    Iwarp,
    /// Nodes of a subnet, with three switches between them
    Subnet,
    /// IP over InfiniBand between two hosts; needs root
    Ipoib,
    /// Nothing: only write the page from what was kept
    Report,
}

impl Group {
    /// All groups that measure.
    pub(super) const MEASURED: [Self; 16] = [
        Self::Latency,
        Self::Rate,
        Self::Shared,
        Self::Bw4k,
        Self::Bw64k,
        Self::Bw1m,
        Self::Bw8m,
        Self::Event,
        Self::Scale,
        Self::Control,
        Self::Memory,
        Self::Threads,
        Self::Wire,
        Self::Iwarp,
        Self::Subnet,
        Self::Ipoib,
    ];

    /// The name on the command line and in file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Shared => "shared",
            Self::Bw4k => "bw-4k",
            Self::Bw64k => "bw-64k",
            Self::Bw1m => "bw-1m",
            Self::Bw8m => "bw-8m",
            Self::Event => "event",
            Self::Scale => "scale",
            Self::Control => "control",
            Self::Memory => "memory",
            Self::Threads => "threads",
            Self::Wire => "wire",
            Self::Iwarp => "iwarp",
            Self::Subnet => "subnet",
            Self::Ipoib => "ipoib",
            Self::Report => "report",
        }
    }

    /// The groups of bandwidths, with their sizes.
    pub(super) const BANDWIDTHS: [(Self, usize); 4] =
        [(Self::Bw4k, 4 << 10), (Self::Bw64k, 64 << 10), (Self::Bw1m, 1 << 20), (Self::Bw8m, 8 << 20)];
}

/// The sizes whose latencies are plotted. The goals use 8 bytes.
pub(super) const LATENCIES: [usize; 4] = [8, 256, 4 << 10, 64 << 10];

/// One program's figure.
pub(super) struct Probe {
    /// The name in the stored figures.
    pub(super) name: String,
    pub(super) what: What,
}

/// How a probe runs.
pub(super) enum What {
    /// perftest on softhca, with private or shared memory.
    Perftest { words: String, column: &'static str, shared: bool },
    /// ucx_perftest.
    Ucx {
        words: String,
        transports: &'static str,
        settings: &'static [(&'static str, &'static str)],
        column: UcxColumn,
    },
    /// libfabric's fi_pingpong.
    Pingpong { words: String },
    /// `suite/programs/baseline.c`.
    Baseline { words: String },
    /// `suite/programs/controls.c` on softhca.
    Controls { words: String },
    /// `suite/programs/controls.c` on softhca, on all processors.
    Threads { words: String },
    /// The same program; the figure is how often a thread sleeps for a lock, per thousand messages.
    Waits { words: String, messages: f64 },
    /// `suite/programs/mesh.c` on softhca, on all processors.
    Mesh { words: String },
    /// `suite/programs/alltoall.c` on softhca, on all processors.
    AllToAll { words: String },
    /// perftest on softhca while pairs of connected processes are idle.
    BesideIdle { words: String, column: &'static str },
    /// How many milliseconds more a program takes under `softhca run`.
    Startup,
}

/// A column of ucx_perftest's last line.
#[derive(Debug, Clone, Copy)]
pub(super) enum UcxColumn {
    /// The median in microseconds.
    Latency,
    /// MiB/s.
    Bandwidth,
    /// Messages per second.
    Rate,
}

impl UcxColumn {
    pub(super) fn place(self) -> usize {
        match self {
            Self::Latency => 1,
            Self::Bandwidth => 5,
            Self::Rate => 7,
        }
    }
}

/// The name of a perftest probe with shared memory.
pub(super) fn shared_name(words: &str) -> String {
    format!("{words}, shared memory")
}

/// The name of a UCX probe.
pub(super) fn ucx_name(words: &str, transports: &str) -> String {
    format!("ucx_perftest -t {words}, UCX_TLS={transports}")
}

fn perftest(words: &str, more: &str, column: &'static str) -> Probe {
    Probe { name: words.to_owned(), what: What::Perftest { words: format!("{words} {more}"), column, shared: false } }
}

fn shared(words: &str, more: &str, column: &'static str) -> Probe {
    Probe { name: shared_name(words), what: What::Perftest { words: format!("{words} {more}"), column, shared: true } }
}

fn ucx(words: &str, more: &str, transports: &'static str, column: UcxColumn) -> Probe {
    let settings = settings(words, transports);
    let what = What::Ucx { words: format!("-t {words} {more}"), transports, settings, column };
    Probe { name: ucx_name(words, transports), what }
}

fn baseline(words: &str) -> Probe {
    Probe { name: format!("baseline {words}"), what: What::Baseline { words: words.to_owned() } }
}

fn controls(words: &str) -> Probe {
    Probe { name: format!("controls {words}"), what: What::Controls { words: words.to_owned() } }
}

/// `name`: with the program's name.
fn named_controls(name: &str) -> Probe {
    controls(name.strip_prefix("controls ").unwrap_or(name))
}

/// `name`: with the program's name.
fn all_to_all(name: &str) -> Probe {
    let words = name.strip_prefix("alltoall ").unwrap_or(name).to_owned();
    Probe { name: name.to_owned(), what: What::AllToAll { words } }
}

const TYPICAL: &str = "t_typical[usec]";
const RATE: &str = "MsgRate[Mpps]";
const AVERAGE: &str = "BW average[MB/sec]";

/// The probes of a group. The groups of [`super::venue`] have none.
pub(super) fn of(group: Group) -> Vec<Probe> {
    let posix = TRANSPORTS[0];
    match group {
        Group::Latency => latency(),
        Group::Rate => vec![
            perftest("ib_send_bw -s 8 -l 16", "-n 400000", RATE),
            ucx("tag_bw -s 8", "-n 3000000", posix, UcxColumn::Rate),
            ucx("ucp_am_bw -s 8", "-n 3000000", posix, UcxColumn::Rate),
            baseline("verbs-rate"),
        ],
        Group::Shared => shared_memory(),
        Group::Event => {
            vec![perftest("ib_send_lat -s 8 -e", "-n 10000", TYPICAL), baseline("futex"), baseline("eventfd")]
        }
        Group::Scale => {
            let count = "-n 200000";
            let what = What::BesideIdle { words: format!("{PLAIN} {count}"), column: RATE };
            vec![
                // `-N`: without it, perftest searches for a peak by comparing every two messages.
                perftest("ib_write_bw -s 8 -q 1000", "-N -n 32 -t 16", RATE),
                perftest(PLAIN, count, RATE),
                Probe { name: BESIDE_IDLE.to_owned(), what },
                all_to_all(FEW_TALK),
                all_to_all(MANY_TALK),
                all_to_all(UNFAIR),
            ]
        }
        Group::Control => vec![
            Probe { name: STARTUP.to_owned(), what: What::Startup },
            controls("qp"),
            controls("mr"),
            controls("pages"),
            controls("memory AGENT"),
            named_controls(CONNECT[0]),
            named_controls(CONNECT[1]),
            named_controls(POLL[0]),
            named_controls(POLL[1]),
            baseline("socket"),
            baseline("nearby"),
        ],
        Group::Memory => [FEW_PROCESSES, MANY_PROCESSES]
            .map(|words| Probe { name: format!("mesh {words}"), what: What::Mesh { words: words.to_owned() } })
            .into(),
        Group::Threads => {
            let of = |what: What, name: &str| Probe { name: name.to_owned(), what };
            let words = |count: usize| format!("threads {count}");
            vec![
                of(What::Threads { words: words(1) }, "controls threads 1"),
                of(What::Threads { words: words(2) }, "controls threads 2"),
                of(What::Waits { words: words(2), messages: THREAD_MESSAGES }, WAITS),
            ]
        }
        Group::Wire | Group::Iwarp | Group::Subnet | Group::Ipoib | Group::Report => Vec::new(),
        bandwidths => Group::BANDWIDTHS
            .iter()
            .filter(|(group, _)| *group == bandwidths)
            .flat_map(|(_, size)| bandwidth(*size))
            .collect(),
    }
}

fn latency() -> Vec<Probe> {
    let mut probes = vec![
        baseline("verbs"),
        baseline("futex"),
        // Few iterations: the program polls only memory. If it shares its processor with the helper
        // thread, each exchange takes milliseconds.
        perftest("ib_write_lat -s 8", "-n 2000", TYPICAL),
        perftest("ib_read_lat -s 8", "-n 50000", TYPICAL),
        Probe { name: PINGPONG.to_owned(), what: What::Pingpong { words: "-p shm -e rdm -S 8 -I 100000".to_owned() } },
    ];
    for size in LATENCIES {
        // Long messages take longer, above all if the two programs share a busy processor.
        let count = if size > 4 << 10 { "-n 10000" } else { "-n 50000" };
        probes.push(perftest(&format!("ib_send_lat -s {size}"), count, TYPICAL));
        probes.push(ucx(&format!("tag_lat -s {size}"), count, TRANSPORTS[0], UcxColumn::Latency));
    }
    probes
}

fn shared_memory() -> Vec<Probe> {
    let posix = TRANSPORTS[0];
    let mut probes = vec![
        shared("ib_write_lat -s 8", "-n 100000", TYPICAL),
        ucx("ucp_put_lat -s 8", "-n 100000", posix, UcxColumn::Latency),
        shared("ib_read_lat -s 8", "-n 100000", TYPICAL),
        ucx("ucp_get -s 8", "-n 300000", posix, UcxColumn::Latency),
        shared("ib_atomic_bw -A FETCH_AND_ADD", "-n 500000", RATE),
        ucx("ucp_fadd -s 8", "-n 3000000 -O 16", posix, UcxColumn::Rate),
    ];
    for (_, size) in Group::BANDWIDTHS {
        let count = count(size);
        for (program, test) in [("ib_write_bw", "ucp_put_bw"), ("ib_read_bw", "ucp_get")] {
            probes.push(shared(&format!("{program} -s {size}"), &count, AVERAGE));
            probes.push(ucx(&format!("{test} -s {size}"), &format!("{count} -w 100"), posix, UcxColumn::Bandwidth));
        }
    }
    probes
}

fn bandwidth(size: usize) -> Vec<Probe> {
    let count = count(size);
    let mut probes: Vec<Probe> = ["ib_write_bw", "ib_read_bw", "ib_send_bw"]
        .iter()
        .map(|program| perftest(&format!("{program} -s {size}"), &count, AVERAGE))
        .collect();
    let mut peer = |test: &str, over| {
        probes.push(ucx(&format!("{test} -s {size}"), &format!("{count} -w 100"), over, UcxColumn::Bandwidth));
    };
    peer("tag_bw", TRANSPORTS[0]);
    peer("ucp_am_bw", TRANSPORTS[0]);
    peer("tag_bw", TRANSPORTS[1]);
    probes.push(baseline(&format!("ring {size}")));
    probes
}

/// How many messages perftest and UCX send: half a second at 10 GB/s, or fewer messages where a
/// message costs more than its bytes.
fn count(size: usize) -> String {
    format!("-n {}", ((4_usize << 30) / size).clamp(400, 200_000))
}
