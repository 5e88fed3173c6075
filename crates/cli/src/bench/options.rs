//! The options of `softhca bench` and the plan that they make. This module measures nothing. The
//! principal type is [`Options`].

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;

use bench::{Amount, Plan, Size};
use clap::{Args, ValueEnum};

/// The TCP port on which a serving side listens by default.
const PORT: u16 = 18_515;
/// The powers of two of `--all`: 1 byte to 8 MiB.
const POWERS: std::ops::RangeInclusive<u32> = 0..=23;

const EXAMPLES: &str = "\
Examples:
  softhca bench                               Latency of an 8-byte SEND.
  softhca bench write bw --sizes 4k,64k,1m    Bandwidth of RDMA WRITE.
  softhca bench read lat --all                RDMA READ, 1 byte to 8 MiB.
  softhca bench send rate -q 8 -t 2           Messages per second.
  softhca bench atomic rate                   Fetch-and-adds per second.
  softhca bench send lat --event              Both sides sleep while they wait.
  softhca bench write bw --all --plot bw.svg --json > bw.json
  softhca bench send bw --verify --seconds 5  Check the contents too.
  softhca bench --serve                       On one host ...
  softhca bench send lat --to 10.0.0.2        ... and on the other.

Measures:
  lat    One operation at a time. SEND and WRITE go there and back, and half of
         that counts; READ and atomics count whole. Percentiles in microseconds.
  bw     --depth operations at a time, bytes per second.
  rate   The same in batches (--batch), messages per second.

The receiver of a WRITE polls its memory; with --event, WRITE WITH IMMEDIATE
wakes it. Compare figures of one machine only, while nothing else runs. Two
sides that poll need a processor each.

Exit code: 0 when everything was measured (and --verify found no error), 1 when
not, with the reason on standard error, 2 for unknown options.";

/// What is measured, and how.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The operation
    #[arg(default_value = "send")]
    operation: Operation,
    /// The measure
    #[arg(default_value = "lat")]
    measure: Measure,
    /// Message sizes, for example 8,4k,1m [default: 8; 64k for bw]
    #[arg(short, long, value_delimiter = ',', value_name = "SIZE")]
    sizes: Vec<Size>,
    /// All sizes that are powers of two, from 1 byte to 8 MiB
    #[arg(short, long, conflicts_with = "sizes")]
    all: bool,
    /// Queue pairs
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    qps: u32,
    /// Threads on each side, which share the queue pairs
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    threads: u32,
    /// Outstanding operations of each queue pair, for bw and rate
    #[arg(short, long, default_value_t = 128, value_name = "N")]
    depth: u32,
    /// Operations per post [default: 16 for rate, else 1]
    #[arg(short, long, value_name = "N")]
    batch: Option<u32>,
    /// Post SENDs and WRITEs up to this size inline
    #[arg(long, default_value_t = 64, value_name = "BYTES")]
    inline: u32,
    /// Wait for completion events instead of polling
    #[arg(short, long)]
    event: bool,
    /// Measure N operations of each size
    #[arg(short = 'n', long, value_name = "N")]
    iterations: Option<u64>,
    /// Measure each size for this time [default: 0.5]
    #[arg(long, conflicts_with = "iterations", value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Operations before those that count [default: depends on the size]
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// Check the contents of every message; the figures are lower then
    #[arg(long)]
    verify: bool,
    /// Pin threads: this side's to odd processors, the other side's to even ones
    #[arg(long)]
    pin: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Also draw the figures into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(super) plot: Option<PathBuf>,
    /// Measure with the side that runs `softhca bench --serve` on this host
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "serve")]
    pub(super) to: Option<String>,
    /// Serve sides that come with --to, one after the other, until ^C
    #[arg(long)]
    pub(super) serve: bool,
    /// Serve one side only, then exit
    #[arg(long, requires = "serve")]
    pub(super) once: bool,
    /// TCP port to listen on, or to connect to
    #[arg(long, default_value_t = PORT)]
    pub(super) port: u16,
    /// Device [default: the first one]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// GID index [default: that of the address over which the sides talk]
    #[arg(short, long, value_name = "INDEX")]
    pub(super) gid_index: Option<u8>,
    /// The other side itself, started by this program, which talks over standard input
    #[arg(long, hide = true)]
    pub(super) child: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Operation {
    /// A message to a receive of the other side
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// Atomic fetch-and-add on 8 bytes
    #[value(alias = "atomic")]
    FetchAdd,
    /// Atomic compare-and-swap on 8 bytes
    CmpSwap,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Measure {
    /// How long one takes
    Lat,
    /// Bytes in a second
    Bw,
    /// Messages in a second
    Rate,
}

impl Options {
    /// The plan: what to measure, and how.
    pub(super) fn plan(&self) -> Result<Plan, String> {
        let operation = match self.operation {
            Operation::Send => bench::Operation::Send,
            Operation::Write => bench::Operation::Write,
            Operation::Read => bench::Operation::Read,
            Operation::FetchAdd => bench::Operation::FetchAdd,
            Operation::CmpSwap => bench::Operation::CmpSwap,
        };
        let measure = match self.measure {
            Measure::Lat => bench::Measure::Lat,
            Measure::Bw => bench::Measure::Bw,
            Measure::Rate => bench::Measure::Rate,
        };
        let usual = Plan::new(operation, measure);
        let plan = Plan {
            sizes: match (&self.sizes[..], self.all && !operation.is_atomic()) {
                (_, true) => POWERS.map(|power| 1 << power).collect(),
                ([], false) => usual.sizes,
                (sizes, false) => sizes.iter().map(|size| size.0).collect(),
            },
            qps: self.qps,
            threads: self.threads,
            depth: self.depth,
            batch: self.batch.unwrap_or(usual.batch.min(self.depth)),
            inline: self.inline,
            event: self.event,
            amount: match (self.iterations, self.seconds) {
                (Some(count), _) => Amount::Iterations(count),
                (None, Some(time)) => Amount::Seconds(time),
                (None, None) => usual.amount,
            },
            warmup: self.warmup,
            verify: self.verify,
            pin: self.pin,
            ..usual
        };
        plan.check().map_err(|why| why.to_string())?;
        Ok(plan)
    }

    /// The addresses of the other side.
    pub(super) fn destination(&self, to: &str) -> Result<Vec<std::net::SocketAddr>, String> {
        let bare = to.trim_start_matches('[').trim_end_matches(']');
        let found = match bare.parse::<IpAddr>() {
            Ok(address) => Ok(vec![(address, self.port).into()]),
            Err(_) if to.contains(':') => to.to_socket_addrs().map(Iterator::collect),
            Err(_) => (to, self.port).to_socket_addrs().map(Iterator::collect),
        };
        found.map_err(|error| format!("--to {to}: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use bench::{Amount, Measure, Operation};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &str) -> Options {
        Program::try_parse_from(std::iter::once("bench").chain(words.split_whitespace())).expect("understood").options
    }

    #[test]
    fn words_become_a_plan() {
        let plan = options("").plan().expect("a plan");
        assert_eq!((plan.operation, plan.measure, plan.sizes), (Operation::Send, Measure::Lat, vec![8]));
        let plan = options("write bw -s 4k,1m -q 4 -t 2 -n 100 --event").plan().expect("a plan");
        assert_eq!((plan.sizes, plan.qps, plan.threads, plan.event), (vec![4096, 1 << 20], 4, 2, true));
        assert_eq!((plan.batch, plan.amount), (1, Amount::Iterations(100)));
        let plan = options("atomic rate --all --depth 8").plan().expect("a plan");
        assert_eq!((plan.operation, plan.sizes, plan.batch), (Operation::FetchAdd, vec![8], 8));
        assert_eq!(options("read lat --all").plan().expect("a plan").sizes.len(), 24);
        assert!(
            options("send lat -t 2")
                .plan()
                .expect_err("more threads than queue pairs")
                .contains("at least one queue pair per thread")
        );
    }

    #[test]
    fn destinations_have_ports_or_not() {
        for (to, expected) in [
            ("127.0.0.1", "127.0.0.1:18515"),
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("::1", "[::1]:18515"),
            ("[::1]:7", "[::1]:7"),
        ] {
            let found = options("").destination(to).expect("an address");
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
        }
        assert!(options("").destination("[::1]:x").is_err());
    }
}
