//! What to measure. A plan may also come from the other side, and must then pass [`Plan::check`].
//! The principal type is [`Plan`].

use std::fmt;
use std::str::FromStr;

use plot::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The longest message.
const LONGEST: usize = 1 << 30;
const MOST_QPS: u32 = 16_384;
const MOST_THREADS: u32 = 256;
const DEEPEST: u32 = 8192;
/// The most bytes in one thread's buffers if contents are checked.
const CHECKED: usize = 128 << 20;
/// The most receive requests of one side, unless there are more queue pairs.
const RECEIVES: u32 = 1 << 16;
/// The longest measurement of one size.
const LONGEST_TIME: f64 = 3600.0;

/// The operation to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A message to a receive request of the other side.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Atomic fetch-and-add on 8 bytes.
    FetchAdd,
    /// Atomic compare-and-swap on 8 bytes.
    CmpSwap,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 5] = [Self::Send, Self::Write, Self::Read, Self::FetchAdd, Self::CmpSwap];

    /// Whether the operation uses a word of 8 bytes.
    #[must_use]
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CmpSwap)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::FetchAdd => "fetch-add",
            Self::CmpSwap => "cmp-swap",
        })
    }
}

/// The quantity to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The duration of one operation, without any other outstanding operations.
    Lat,
    /// Bytes per second, with many outstanding operations.
    Bw,
    /// Messages per second, with many outstanding operations, posted in batches.
    Rate,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
            Self::Rate => "rate",
        })
    }
}

/// How much to measure for each size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// This many operations, of all threads together.
    Iterations(u64),
    /// As many operations as possible in this many seconds.
    Seconds(f64),
}

/// What to measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation.
    pub operation: Operation,
    /// The quantity.
    pub measure: Measure,
    /// Bytes of a message. Each size is measured separately.
    pub sizes: Vec<usize>,
    /// Queue pairs. The threads divide them among themselves.
    pub qps: u32,
    /// Threads on each side.
    pub threads: u32,
    /// Outstanding operations of a queue pair.
    pub depth: u32,
    /// Operations that are posted with one call.
    pub batch: u32,
    /// Messages up to this size are posted inline.
    pub inline: u32,
    /// Threads sleep until an operation completes.
    pub event: bool,
    /// How much is measured.
    pub amount: Amount,
    /// Operations of each thread before the measurement. `None`: a number that suits the size.
    pub warmup: Option<u64>,
    /// Contents are checked.
    pub verify: bool,
    /// Each thread runs on a fixed processor: the asking side's threads on odd ones, the other
    /// side's on even ones.
    pub pin: bool,
}

impl Plan {
    /// A plan with usual values: half a second with messages of 8 bytes.
    #[must_use]
    pub fn new(operation: Operation, measure: Measure) -> Self {
        Self {
            operation,
            measure,
            sizes: vec![if measure == Measure::Bw && !operation.is_atomic() { 65_536 } else { 8 }],
            qps: 1,
            threads: 1,
            depth: 128,
            batch: if measure == Measure::Rate { 16 } else { 1 },
            inline: 64,
            event: false,
            amount: Amount::Seconds(0.5),
            warmup: None,
            verify: false,
            pin: false,
        }
    }

    /// Whether the plan can be measured.
    ///
    /// # Errors
    /// Names the part that cannot be measured.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: String| Err(Error::Plan(why));
        let within = |what: &str, value: u64, most: u64| match value {
            value if (1..=most).contains(&value) => Ok(()),
            _ => Err(Error::Plan(format!("{what}: {value} is not between 1 and {most}"))),
        };
        if self.sizes.is_empty() || self.sizes.len() > 64 {
            return refuse(format!("{} sizes: use between 1 and 64 sizes", self.sizes.len()));
        }
        for size in &self.sizes {
            within("the size", *size as u64, LONGEST as u64)?;
        }
        if self.operation.is_atomic() && self.sizes != [8] {
            return refuse(format!("{} works on 8 bytes: only size 8 is possible", self.operation));
        }
        within("queue pairs", self.qps.into(), MOST_QPS.into())?;
        within("threads", self.threads.into(), MOST_THREADS.into())?;
        within("the depth", self.depth.into(), DEEPEST.into())?;
        within("the batch", self.batch.into(), self.depth.into())?;
        if self.threads > self.qps {
            return refuse(format!(
                "{} threads share {} queue pairs: use at least one queue pair per thread",
                self.threads, self.qps
            ));
        }
        match self.amount {
            Amount::Seconds(time) if !(time > 0.0 && time <= LONGEST_TIME) => {
                return refuse(format!("{time} s: the time must be between 0 and {LONGEST_TIME} s"));
            }
            Amount::Iterations(count) if count < u64::from(self.threads) => {
                return refuse(format!(
                    "{count} operations for {} threads: use at least one operation per thread",
                    self.threads
                ));
            }
            _ => {}
        }
        if self.has_own_buffers() && self.qps as usize * self.longest() > CHECKED * self.threads as usize {
            return refuse(format!(
                "{} queue pairs with {} bytes need too much memory; use fewer queue pairs or smaller messages",
                self.qps,
                self.longest()
            ));
        }
        Ok(())
    }

    /// The parameters, besides operation and size, on which a figure depends. They are for the
    /// caption of a plot.
    #[must_use]
    pub fn parameters(&self) -> String {
        let many = |count: u32, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
        let mut words = vec![many(self.qps, "queue pair"), many(self.threads, "thread")];
        if self.measure != Measure::Lat {
            words.push(format!("depth {}", self.depth()));
            words.push(format!("batch {}", self.batch()));
        }
        words.push(format!("inline {}", Size(self.inline as usize)));
        words.push(if self.event { "waiting for events" } else { "polling" }.to_owned());
        words.push(match self.amount {
            Amount::Iterations(count) => format!("{count} operations of each size"),
            Amount::Seconds(time) => format!("{time} s for each size"),
        });
        words.extend(
            [(self.verify, "contents checked"), (self.pin, "pinned")]
                .iter()
                .filter(|word| word.0)
                .map(|word| word.1.to_owned()),
        );
        words.join(", ")
    }

    /// The longest message.
    pub(crate) fn longest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(1)
    }

    /// Whether the other side sends each message back.
    pub(crate) fn is_answered(&self) -> bool {
        self.measure == Measure::Lat && matches!(self.operation, Operation::Send | Operation::Write)
    }

    /// Whether a WRITE has immediate data for the other side's completion queue. A sleeping thread
    /// does not poll memory.
    pub(crate) fn is_announced(&self) -> bool {
        self.is_answered() && self.operation == Operation::Write && self.event
    }

    /// Whether each queue pair needs its own buffers, because the buffer tells to which queue pair
    /// a message belongs.
    pub(crate) fn has_own_buffers(&self) -> bool {
        self.verify || (self.is_answered() && self.operation == Operation::Write)
    }

    /// The most queue pairs of one thread.
    pub(crate) fn qps_of_a_thread(&self) -> u32 {
        self.qps.div_ceil(self.threads)
    }

    /// Outstanding operations of a queue pair. If contents are checked, each operation needs its
    /// own buffer, so there are fewer.
    pub(crate) fn depth(&self) -> u32 {
        if !self.verify {
            return self.depth;
        }
        let one = self.longest() * self.qps_of_a_thread() as usize;
        self.depth.min(u32::try_from(CHECKED / one.max(1)).unwrap_or(u32::MAX)).max(1)
    }

    /// Operations that are posted with one call.
    pub(crate) fn batch(&self) -> u32 {
        self.batch.min(self.depth())
    }

    /// Receive requests of a queue pair.
    pub(crate) fn receives(&self) -> u32 {
        let wanted = if self.operation == Operation::Send && !self.is_answered() { 4 * self.depth() } else { 4 };
        wanted.min((RECEIVES / self.qps).max(2))
    }

    /// Buffers of a queue pair in each memory of a thread.
    pub(crate) fn slots(&self) -> usize {
        if self.verify { self.depth() as usize } else { 1 }
    }

    /// Operations of a thread before the measured ones.
    pub(crate) fn warmup(&self, size: usize) -> u64 {
        self.warmup.unwrap_or_else(|| ((64 << 20) / size as u64).clamp(10, 1000))
    }
}

/// A number of bytes as people write it: `8`, `4k`, `64KiB`, `1m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let digits = lower.trim_end_matches("ib").trim_end_matches('b');
        let (digits, shift) = match digits.chars().last() {
            Some('k') => (&digits[..digits.len() - 1], 10),
            Some('m') => (&digits[..digits.len() - 1], 20),
            Some('g') => (&digits[..digits.len() - 1], 30),
            _ => (digits, 0),
        };
        let number: Option<usize> = digits.parse().ok();
        number
            .and_then(|number| number.checked_mul(1 << shift))
            .filter(|bytes| (1..=LONGEST).contains(bytes))
            .map(Self)
            .ok_or_else(|| format!("size must be between 1 byte and {}, for example 8, 4k or 1m", Self(LONGEST)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Measure, Operation, Plan, Size};

    #[test]
    fn sizes_as_people_write_them() {
        for (text, bytes, shown) in [
            ("8", 8, "8 B"),
            ("4k", 4096, "4 KiB"),
            ("64KiB", 65_536, "64 KiB"),
            ("1m", 1 << 20, "1 MiB"),
            ("100b", 100, "100 B"),
        ] {
            let size: Size = text.parse().expect("a size");
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown));
        }
        for wrong in ["", "k", "-1", "8x", "99999999999g", "0", "0k", "2g"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_plans_are_refused() {
        let good = Plan::new(Operation::Send, Measure::Rate);
        good.check().expect("a good plan");
        let wrong: [(&str, Plan); 8] = [
            ("sizes", Plan { sizes: vec![], ..good.clone() }),
            ("size", Plan { sizes: vec![8, 0], ..good.clone() }),
            ("8 bytes", Plan { operation: Operation::FetchAdd, sizes: vec![16], ..good.clone() }),
            ("at least one queue pair per thread", Plan { threads: 2, ..good.clone() }),
            ("batch", Plan { batch: 129, ..good.clone() }),
            ("between", Plan { amount: Amount::Seconds(f64::NAN), ..good.clone() }),
            ("operations", Plan { amount: Amount::Iterations(0), ..good.clone() }),
            ("fewer", Plan { verify: true, qps: 1000, sizes: vec![1 << 20], ..good.clone() }),
        ];
        for (word, plan) in wrong {
            let told = plan.check().expect_err(word).to_string();
            assert!(told.contains(word), "{told}");
        }
    }

    #[test]
    fn parameters_are_told_in_words() {
        let plan = Plan { qps: 4, threads: 2, event: true, verify: true, ..Plan::new(Operation::Write, Measure::Rate) };
        let told = "4 queue pairs, 2 threads, depth 128, batch 16, inline 64 B, waiting for events, 0.5 s for each size, contents checked";
        assert_eq!(plan.parameters(), told);
        let told = Plan { amount: Amount::Iterations(9), ..Plan::new(Operation::Send, Measure::Lat) }.parameters();
        assert_eq!(told, "1 queue pair, 1 thread, inline 64 B, polling, 9 operations of each size");
    }

    #[test]
    fn buffers_that_are_checked_are_bounded() {
        let plan = Plan { verify: true, sizes: vec![8 << 20], ..Plan::new(Operation::Write, Measure::Bw) };
        assert_eq!((plan.depth(), plan.slots(), plan.batch()), (16, 16, 1));
        assert_eq!(Plan { verify: false, ..plan }.depth(), 128);
    }
}
