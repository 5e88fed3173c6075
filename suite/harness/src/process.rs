//! Reads about processes in /proc: children, names, open files, CPU time.
//!
//! It does not start or end processes; [`crate::program`] does.

use std::fs;
use std::time::Duration;

/// The process ids of all descendants of `pid`, nearest first.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = vec![pid];
    while let Some(parent) = next.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
                found.push(child);
                next.push(child);
            }
        }
    }
    found
}

/// The name of a process as the kernel keeps it (15 characters).
pub fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Whether the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// The state letter of /proc/PID/stat: R, S, D, T, Z …
pub fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// CPU time that the process has used, user and system, in clock ticks of 10 ms.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    const USER: usize = 11;
    const SYSTEM: usize = 12;
    let fields = stat_fields(pid)?;
    let ticks: u64 = fields.get(USER)?.parse::<u64>().ok()? + fields.get(SYSTEM)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// The targets of the process's open files.
pub fn open_files(pid: u32) -> Vec<String> {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).map(|path| path.display().to_string()).collect()
}

/// The anonymous memory of the process (RssAnon), in bytes.
pub fn own_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The session id of the process.
pub fn session(pid: u32) -> Option<u32> {
    const SESSION: usize = 3;
    stat_fields(pid)?.get(SESSION)?.parse().ok()
}

/// The address ranges of the mappings whose name contains `part`.
pub fn mappings(pid: u32, part: &str) -> Vec<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines()
        .filter(|line| line.contains(part))
        .filter_map(|line| {
            let (from, to) = line.split_whitespace().next()?.split_once('-')?;
            Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
        })
        .collect()
}

/// The fields of /proc/PID/stat after the name. The first field is the state.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}
