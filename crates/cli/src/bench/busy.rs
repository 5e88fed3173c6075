//! Whether other programs were busy while something was measured, by the processor times of the kernel. Principal type: [`Load`].
//!
//! Where /proc does not tell, nothing is known, and the measurement counts all the same.

use std::fs;

/// Processors that others may use meanwhile; more disturbs.
pub(super) const BUSY: f64 = 0.25;

/// Ticks of a processor within which nothing can be said.
const SHORTEST: u64 = 10;

/// Processor times until now, in ticks of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// All processors together, idle or not.
    all: u64,
    /// Not idle.
    busy: u64,
    processors: u64,
    /// This process and its children that have ended.
    own: u64,
}

impl Load {
    pub(super) fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// Of the texts of `/proc/stat` and `/proc/self/stat` (proc(5)).
    fn read(machine: &str, own: &str) -> Option<Self> {
        let times = machine.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user and nice.
        let times: Vec<u64> = times.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let idle = times.get(3)? + times.get(4)?;
        let all = times.iter().sum();
        let processors = machine.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
        // The name, in parentheses, may have spaces in it. Behind it are state, …; utime is the 12th word, and cstime the 15th.
        let own = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let own = own.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
        (processors > 0).then_some(Self { all, busy: all - idle, processors: processors as u64, own })
    }

    /// How many processors others have used between two times, if that was long enough to say.
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
        // A second of two processors: two sides of our own that poll.
        assert_eq!(others(load(1200, 5000, 250)), Some(0.0));
        assert_eq!(others(load(1150, 5050, 100)), Some(1.0));
        assert_eq!(others(load(1100, 5100, 150)), Some(0.0));
        // Too short, or not known.
        assert_eq!(others(load(1010, 5000, 50)), None);
        assert_eq!(others(Load::read("", "")), None);
        assert!(Load::now().is_some());
    }
}
