//! Checks whether other programs used the processors during a measurement, from the kernel's
//! processor times. The principal type is [`Load`].
//!
//! If /proc does not show the times, the load is unknown and the measurement is still valid.

use std::fs;

/// Other programs may use this many processors during a measurement. More disturbs it.
pub(super) const BUSY: f64 = 0.25;

/// The fewest ticks of a processor from which the load can be computed.
const SHORTEST: u64 = 10;

/// Processor times since boot, in ticks of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// All processors together, busy and idle.
    all: u64,
    /// All processors together, busy only.
    busy: u64,
    processors: u64,
    /// This process and its exited children.
    own: u64,
}

impl Load {
    pub(super) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Parses the texts of `/proc/stat` and `/proc/self/stat` (proc(5)).
    fn read(machine: &str, own: &str) -> Option<Self> {
        let times = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // The columns are user, nice, system, idle, iowait, irq, softirq and steal. The time of
        // guests is part of user and nice.
        let times: Vec<u64> = times.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = times.get(3)? + times.get(4)?;
        let all = times.iter().sum();
        let processors = machine.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
        // The name is in parentheses and may contain spaces. After it come the state and numbers;
        // utime is the 12th word, and cstime the 15th.
        let own = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let own = own.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
        (processors > 0).then_some(Self { all, busy: all - idle, processors: processors as u64, own })
    }

    /// How many processors other programs used between two times. `None`: the interval was too
    /// short, or the times are unknown.
    pub(super) fn others(before: Option<Self>, after: Option<Self>) -> Option<f64> {
        let (before, after) = (before?, after?);
        let passed = after.all.checked_sub(before.all)? / after.processors;
        let own = after.own.saturating_sub(before.own);
        let others = after.busy.saturating_sub(before.busy).saturating_sub(own);
        (passed >= SHORTEST).then(|| others as f64 / passed as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Load;

    fn load(busy: u64, idle: u64, own: u64) -> Option<Load> {
        let machine = format!("cpu  {busy} 0 0 {idle} 7 0 0 0 0 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 9\n");
        Load::read(&machine, &format!("77 (a ) name) S 1 1 1 0 -1 0 0 0 0 0 {own} 1 2 3 20 0 1"))
    }

    #[test]
    fn others_are_what_is_not_our_own() {
        let others = |after| Load::others(load(1000, 5000, 50), after);
        // One second of two processors, which this test's own two sides used by polling.
        assert_eq!(others(load(1200, 5000, 250)), Some(0.0));
        assert_eq!(others(load(1150, 5050, 100)), Some(1.0));
        assert_eq!(others(load(1100, 5100, 150)), Some(0.0));
        // The interval is too short, or the times are unknown.
        assert_eq!(others(load(1010, 5000, 50)), None);
        assert_eq!(others(Load::read("", "")), None);
        assert!(Load::now().is_some());
    }
}
