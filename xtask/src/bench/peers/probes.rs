//! What is measured with `--peers`: each probe is one program, or a pair of them, whose output has one figure. Principal type: [`Probe`].
//!
//! The settings of the peers stand here, so that they can be judged: UCX is told its transport; everything else is its default.

/// UCX's settings for all of its transports.
pub(super) const UCX_SETTINGS: &[(&str, &str)] = &[("UCX_LOG_LEVEL", "error"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];

/// Transports of UCX between two processes: shared memory, shared memory with the kernel's copies, TCP.
pub(super) const TRANSPORTS: [&str; 3] = ["posix,self", "posix,cma,self", "tcp,self"];

/// How many pairs have nothing to do.
pub(super) const IDLE_PAIRS: usize = 31;
/// The rate that is compared with itself.
pub(super) const PLAIN: &str = "ib_write_bw -s 8";
/// The same beside idle processes.
pub(super) const BESIDE_IDLE: &str = "ib_write_bw -s 8, beside 62 idle processes";

/// What is measured together, in less than a minute each on a quiet machine.
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
    /// Two hosts; needs root
    Wire,
    /// Nothing: only write the page from what was kept
    Report,
}

impl Group {
    /// All that measure.
    pub(super) const MEASURED: [Self; 10] = [
        Self::Latency,
        Self::Rate,
        Self::Bw4k,
        Self::Bw64k,
        Self::Bw1m,
        Self::Bw8m,
        Self::Event,
        Self::Scale,
        Self::Control,
        Self::Wire,
    ];

    /// As on the command line and in file names.
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
            Self::Wire => "wire",
            Self::Report => "report",
        }
    }

    /// The sizes whose bandwidth is measured.
    pub(super) const BANDWIDTHS: [(Self, usize); 4] =
        [(Self::Bw4k, 4 << 10), (Self::Bw64k, 64 << 10), (Self::Bw1m, 1 << 20), (Self::Bw8m, 8 << 20)];
}

/// Sizes of the latencies that are plotted; 8 bytes are in the goals.
pub(super) const LATENCIES: [usize; 4] = [8, 256, 4 << 10, 64 << 10];

/// One program's figure.
pub(super) struct Probe {
    /// By this it is known in the raw figures.
    pub(super) name: String,
    pub(super) what: What,
}

/// How it is run.
pub(super) enum What {
    /// perftest on softhca.
    Perftest { words: String, column: &'static str },
    /// ucx_perftest.
    Ucx { words: String, transports: &'static str, column: Column },
    /// libfabric's fi_pingpong.
    Pingpong { words: String },
    /// `suite/programs/baseline.c`.
    Baseline { words: String },
    /// `suite/programs/controls.c` on softhca.
    Controls { words: String },
}

/// A column of ucx_perftest's last line.
#[derive(Debug, Clone, Copy)]
pub(super) enum Column {
    /// Microseconds, the median.
    Latency,
    /// MiB/s.
    Bandwidth,
    /// Messages in a second.
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

/// The name of a probe of UCX.
pub(super) fn ucx_name(words: &str, transports: &str) -> String {
    format!("ucx_perftest -t {words}, UCX_TLS={transports}")
}

fn perftest(words: &str, more: &str, column: &'static str) -> Probe {
    Probe { name: words.to_owned(), what: What::Perftest { words: format!("{words} {more}"), column } }
}

fn ucx(words: &str, more: &str, transports: &'static str, column: Column) -> Probe {
    let what = What::Ucx { words: format!("-t {words} {more}"), transports, column };
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
            perftest("ib_write_bw -s 8 -q 1000", "-n 32 -t 16", "MsgRate[Mpps]"),
        ],
        Group::Control => {
            vec![controls("qp"), controls("mr"), controls("memory AGENT"), baseline("socket")]
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
        // Few: its program looks at memory alone, and where the helper thread has to share its processor each exchange takes milliseconds.
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
    // Half a second of 10 GB/s, or less where a message costs more than its bytes.
    let count = ((4_usize << 30) / size).clamp(300, 100_000);
    let (count, slow) = (format!("-n {count}"), format!("-n {}", (count / 8).max(50)));
    let mut probes: Vec<Probe> = ["ib_write_bw", "ib_read_bw", "ib_send_bw"]
        .iter()
        .map(|program| perftest(&format!("{program} -s {size}"), &count, average))
        .collect();
    for transports in &TRANSPORTS[..2] {
        for test in ["tag_bw", "ucp_put_bw"] {
            let words = format!("{test} -s {size}");
            probes.push(ucx(&words, &format!("{count} -w 100"), transports, Column::Bandwidth));
        }
    }
    probes.push(ucx(&format!("tag_bw -s {size}"), &format!("{slow} -w 50"), TRANSPORTS[2], Column::Bandwidth));
    probes.extend(["ring", "memcpy", "writev"].map(|what| baseline(&format!("{what} {size}"))));
    probes
}
