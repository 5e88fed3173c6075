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

/// The number of idle pairs.
pub(super) const IDLE_PAIRS: usize = 31;
/// The rate that is compared with itself.
pub(super) const PLAIN: &str = "ib_write_bw -s 8";
/// The same rate beside idle processes.
pub(super) const BESIDE_IDLE: &str = "ib_write_bw -s 8, beside 62 idle processes";

/// Processes that are all connected to each other.
pub(super) const FEW_PROCESSES: &str = "pair 16 AGENT";
pub(super) const MANY_PROCESSES: &str = "all 128 AGENT";
/// The number of messages that two threads send together in `suite/programs/controls.c`. `WAITS` is
/// the name of their waits.
const THREAD_MESSAGES: f64 = 800_000.0;
pub(super) const WAITS: &str = "controls threads 2, sleeps for a lock";

/// The groups of measurements. On a quiet machine each group takes less than a minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// One at a time, 8 bytes and a few more sizes
    Latency,
    /// Messages and atomics in a second
    Rate,
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
    /// What objects cost
    Control,
    /// What processes cost that all know each other
    Memory,
    /// Threads of one process
    Threads,
    /// Two hosts; needs root
    Wire,
    /// Nothing: only write the page from what was kept
    Report,
}

impl Group {
    /// All groups that measure.
    pub(super) const MEASURED: [Self; 12] = [
        Self::Latency,
        Self::Rate,
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
    ];

    /// The name on the command line and in file names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
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
    /// perftest on softhca.
    Perftest { words: String, column: &'static str },
    /// ucx_perftest.
    Ucx { words: String, transports: &'static str, settings: &'static [(&'static str, &'static str)], column: Column },
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
}

/// A column of ucx_perftest's last line.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    /// The median in microseconds.
    Latency,
    /// MiB/s.
    Bandwidth,
    /// Messages per second.
    Rate,
}

impl Column {
    pub(super) fn place(self) -> usize {
        match self {
            Self::Latency => 1,
            Self::Bandwidth => 5,
            Self::Rate => 7,
        }
    }
}

/// The name of a UCX probe.
pub(super) fn ucx_name(words: &str, transports: &str) -> String {
    format!("ucx_perftest -t {words}, UCX_TLS={transports}")
}

fn perftest(words: &str, more: &str, column: &'static str) -> Probe {
    Probe { name: words.to_owned(), what: What::Perftest { words: format!("{words} {more}"), column } }
}

fn ucx(words: &str, more: &str, transports: &'static str, column: Column) -> Probe {
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

/// The probes of a group.
pub(super) fn of(group: Group) -> Vec<Probe> {
    let posix = TRANSPORTS[0];
    match group {
        Group::Latency => latency(posix),
        Group::Rate => vec![
            perftest("ib_send_bw -s 8 -l 16", "-n 400000", "MsgRate[Mpps]"),
            ucx("tag_bw -s 8", "-n 3000000", posix, Column::Rate),
            ucx("ucp_am_bw -s 8", "-n 3000000", posix, Column::Rate),
            perftest("ib_atomic_bw -A FETCH_AND_ADD", "-n 100000", "MsgRate[Mpps]"),
            ucx("ucp_fadd -s 8", "-n 300000 -O 16", posix, Column::Rate),
            ucx("ucp_fadd -s 8", "-n 20000 -O 16", TRANSPORTS[2], Column::Rate),
        ],
        Group::Event => {
            vec![perftest("ib_send_lat -s 8 -e", "-n 10000", "t_typical[usec]"), baseline("futex"), baseline("eventfd")]
        }
        Group::Scale => vec![
            perftest(PLAIN, "-n 200000", "MsgRate[Mpps]"),
            // `-N`: without it, perftest searches for a peak by comparing every two messages.
            perftest("ib_write_bw -s 8 -q 1000", "-N -n 32 -t 16", "MsgRate[Mpps]"),
        ],
        Group::Control => {
            vec![
                controls("qp"),
                controls("mr"),
                controls("pages"),
                controls("memory AGENT"),
                baseline("socket"),
                baseline("nearby"),
            ]
        }
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
        Group::Wire | Group::Report => Vec::new(),
        bandwidths => Group::BANDWIDTHS
            .iter()
            .filter(|(group, _)| *group == bandwidths)
            .flat_map(|(_, size)| bandwidth(*size))
            .collect(),
    }
}

fn latency(posix: &'static str) -> Vec<Probe> {
    let typical = "t_typical[usec]";
    let mut probes = vec![
        baseline("bounce"),
        baseline("cells"),
        // Few iterations: the program polls only memory. If it shares its processor with the helper
        // thread, each exchange takes milliseconds.
        perftest("ib_write_lat -s 8", "-n 2000", typical),
        ucx("ucp_put_lat -s 8", "-n 300000", posix, Column::Latency),
        perftest("ib_read_lat -s 8", "-n 50000", typical),
        Probe {
            name: "fi_pingpong -p shm -S 8".to_owned(),
            what: What::Pingpong { words: "-p shm -e rdm -S 8 -I 100000".to_owned() },
        },
        ucx("tag_lat -s 8", "-n 10000", TRANSPORTS[2], Column::Latency),
    ];
    for size in LATENCIES {
        probes.push(perftest(&format!("ib_send_lat -s {size}"), "-n 50000", typical));
        probes.push(ucx(&format!("tag_lat -s {size}"), "-n 100000", posix, Column::Latency));
    }
    probes
}

fn bandwidth(size: usize) -> Vec<Probe> {
    let average = "BW average[MB/sec]";
    // Half a second at 10 GB/s, or fewer messages where a message costs more than its bytes.
    let count = ((4_usize << 30) / size).clamp(400, 100_000);
    let (count, slow) = (format!("-n {count}"), format!("-n {}", (count / 8).max(50)));
    let mut probes: Vec<Probe> = ["ib_write_bw", "ib_read_bw", "ib_send_bw"]
        .iter()
        .map(|program| perftest(&format!("{program} -s {size}"), &count, average))
        .collect();
    let ucx =
        |test: &str, more: &str, transports| ucx(&format!("{test} -s {size}"), more, transports, Column::Bandwidth);
    let warm = format!("{count} -w 100");
    probes.extend(["tag_bw", "ucp_am_bw", "ucp_put_bw", "ucp_get"].map(|test| ucx(test, &warm, TRANSPORTS[0])));
    probes.push(ucx("tag_bw", &warm, TRANSPORTS[1]));
    probes.push(ucx("tag_bw", &format!("{slow} -w 50"), TRANSPORTS[2]));
    probes.extend(["ring", "memcpy", "writev"].map(|what| baseline(&format!("{what} {size}"))));
    probes
}
