//! Reads the agent's mirror of `/sys/class/infiniband` and `/sys/class/infiniband_mad`. The
//! principal functions are [`devices`] and [`resolve`].

use std::fs;
use std::path::PathBuf;

use engine::rundir;

/// The port state DOWN.
const DOWN: u32 = 1;
/// The port state ACTIVE.
const ACTIVE: u32 = 4;
/// The physical state LinkUp.
const LINK_UP: u32 = 5;

/// `/sys/class` in the mirror.
fn class() -> PathBuf {
    rundir::default().join("sys/class")
}

/// The folder of a device. A name with a slash is no device.
pub(crate) fn device(name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    plain.then(|| class().join("infiniband").join(name)).filter(|folder| folder.is_dir())
}

/// The first line of a file, without spaces at its ends.
pub(crate) fn line(folder: &std::path::Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The number at the beginning of a file: decimal, or hexadecimal after `0x`; 0 without one.
pub(crate) fn number(folder: &std::path::Path, name: &str) -> u32 {
    line(folder, name).map_or(0, |line| leading(&line))
}

fn leading(line: &str) -> u32 {
    let (digits, radix) = line.strip_prefix("0x").map_or((line, 10), |digits| (digits, 16));
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], radix).unwrap_or(0)
}

fn names(folder: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// The names of the devices that are InfiniBand nodes (CA, switch or router), in order.
pub(crate) fn devices() -> Vec<String> {
    let is_node = |name: &String| device(name).is_some_and(|folder| (1..=3).contains(&number(&folder, "node_type")));
    names(class().join("infiniband")).into_iter().filter(is_node).collect()
}

/// The numbers of a device's ports, in order.
pub(crate) fn ports(name: &str) -> Vec<u32> {
    let Some(folder) = device(name) else { return Vec::new() };
    let mut ports: Vec<u32> = names(folder.join("ports")).iter().filter_map(|name| name.parse().ok()).collect();
    ports.sort_unstable();
    ports
}

fn port_number(name: &str, port: u32, file: &str) -> u32 {
    device(name).map_or(0, |folder| number(&folder.join("ports").join(port.to_string()), file))
}

/// Whether a port has no QP 0: the bit IsSMDisabled of its capability mask.
pub(crate) fn is_smi_disabled(name: &str, port: u32) -> bool {
    port_number(name, port, "cap_mask") & 1 << 10 != 0
}

/// Whether a port is not DOWN.
pub(crate) fn is_up(name: &str, port: u32) -> bool {
    port_number(name, port, "state") > DOWN
}

/// The GUID of a port; 0 without one.
pub(crate) fn port_guid(name: &str, port: u32) -> u64 {
    let gid = device(name).and_then(|folder| line(&folder.join("ports").join(port.to_string()), "gids/0"));
    gid.map_or(0, |gid| crate::describe::groups(&gid) as u64)
}

/// The N of a port's `umadN`.
pub(crate) fn file(name: &str, port: u32) -> Option<u32> {
    let folder = class().join("infiniband_mad");
    names(folder.clone()).iter().find_map(|file| {
        let (number, folder) = (file.strip_prefix("umad")?.parse().ok()?, folder.join(file));
        let is_it = line(&folder, "ibdev").as_deref() == Some(name) && crate::sysfs::number(&folder, "port") == port;
        is_it.then_some(number)
    })
}

/// The device and port that a program means. Without a name, any device; with port 0, any port: an
/// active one, or else one whose link is up, or else the first one.
pub(crate) fn resolve(name: Option<&str>, port: u32) -> Option<(String, u32)> {
    resolve_among(name, port, |_, _| true)
}

/// [`resolve`], but only a port that `may` accepts.
pub(crate) fn resolve_among(name: Option<&str>, port: u32, may: impl Fn(&str, u32) -> bool) -> Option<(String, u32)> {
    let candidates = match name {
        Some(name) => vec![device(name).map(|_| name.to_owned())?],
        None => devices(),
    };
    let mut found: Vec<(u32, String, u32)> = Vec::new();
    for name in candidates {
        let folder = device(&name)?.join("ports");
        let is_wanted = |number: &u32| (port == 0 || *number == port) && may(&name, *number);
        let wanted = ports(&name).into_iter().filter(is_wanted);
        found.extend(wanted.map(|number| {
            let folder = folder.join(number.to_string());
            let state = crate::sysfs::number(&folder, "state");
            let is_up = crate::sysfs::number(&folder, "phys_state") == LINK_UP;
            let rank = if state == ACTIVE { 0 } else { 2 - u32::from(is_up) };
            (rank, name.clone(), number)
        }));
    }
    found.into_iter().min_by_key(|(rank, ..)| *rank).map(|(_, name, port)| (name, port))
}

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn numbers_end_at_the_first_other_character() {
        for (line, number) in [("4: ACTIVE", 4), ("0x2514868", 0x251_4868), ("100 Gb/sec (4X EDR)", 100), ("2.5", 2)] {
            assert_eq!(leading(line), number, "{line}");
        }
        assert_eq!((leading(""), leading("0x"), leading("99999999999")), (0, 0, 0));
    }
}
