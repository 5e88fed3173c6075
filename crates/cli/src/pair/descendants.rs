//! The descendants of a process, as /proc shows them: its children, their children, and so on. This
//! module does not wait for them. The principal type is [`Descendants`].

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long killed processes may take to end.
const GONE: Duration = Duration::from_secs(5);

const GLANCE: Duration = Duration::from_millis(2);

/// All living descendants of a process.
pub(super) struct Descendants {
    root: u32,
    /// A process that is left alone, with all its descendants.
    spare: Option<u32>,
}

impl Descendants {
    pub(super) fn of(root: Pid) -> Self {
        Self { root: root.as_raw_nonzero().get().cast_unsigned(), spare: None }
    }

    pub(super) fn of_this_process(spare: Option<u32>) -> Self {
        Self { root: std::process::id(), spare }
    }

    /// The process ids, parents first.
    pub(super) fn list(&self) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(parent) = living_parent(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut list = vec![self.root];
        let mut next = 0;
        while next < list.len() {
            let mine = children.remove(&list[next]).unwrap_or_default();
            list.extend(mine.into_iter().filter(|pid| Some(*pid) != self.spare));
            next += 1;
        }
        list.remove(0);
        list
    }

    /// Kills the descendants until there are none.
    pub(super) fn kill(&self) {
        let started = Instant::now();
        loop {
            let list = self.list();
            if list.is_empty() || started.elapsed() > GONE {
                return;
            }
            for pid in list.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
                // The process may have ended already.
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// The parent of a process that has not ended.
fn living_parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let mut words = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = words.next()?;
    let parent = words.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
