//! Decides whether a path is redirected, and its place in the mirror. Pure: bytes in, bytes out.
//!
//! As in the kernel, repeated slashes and `.` are ignored. `..` is followed by counting: a path
//! that leaves our part of the tree is not redirected. In the kernel, the entries of a class are
//! links into the folders of devices, so two steps up from an entry lead to its device; here too.
//! The principal type is [`Official`].

/// A path that is redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Official<'a> {
    /// Its folder in the mirror.
    folder: &'static [u8],
    /// The entry of a class from which the path goes up to the device: `infiniband/softhca0`.
    /// Usually empty.
    entry: &'a [u8],
    /// The rest, from `infiniband` or from the device on, as the program wrote it.
    rest: &'a [u8],
    node: Option<Node>,
}

/// A file of `/dev/infiniband`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// A device's node: the N of `uverbsN`.
    Verbs(u32),
    /// The node of a port's datagrams: the N of `umadN`.
    Mads(u32),
    /// The node of a port's subnet manager: the N of `issmN`.
    SubnetManager(u32),
    /// The node of the connection manager, `rdma_cm`.
    Manager,
}

/// `/sys/class` and `/dev` in the mirror.
const CLASS: &[u8] = b"/class/";
const DEV: &[u8] = b"/dev/";

/// The prefix of the names of our classes, and the name of the folder of nodes.
const INFINIBAND: &[u8] = b"infiniband";
/// The name of the connection manager's node.
const MANAGER: &[u8] = b"rdma_cm";
/// The names of the other nodes, without their numbers.
const UVERBS: &[u8] = b"uverbs";
const UMAD: &[u8] = b"umad";
const ISSM: &[u8] = b"issm";

/// How many nodes of devices and of ports the kernel's first major number has.
const DEVICES: u32 = 32;
const PORTS: u32 = 64;

/// The path of a counter of a port, in its parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Counter<'a> {
    pub(crate) device: &'a [u8],
    /// The port's number.
    pub(crate) port: &'a [u8],
}

impl<'a> Official<'a> {
    /// Parses an absolute path. Returns `None` if it is not redirected.
    pub(crate) fn read(path: &'a [u8]) -> Option<Self> {
        if path.first() != Some(&b'/') {
            return None;
        }
        let (top, below) = component(path)?;
        let (name, after) = component(below)?;
        match top {
            b"sys" if name == b"class" => {
                let (class, inside) = component(after)?;
                let ours = class.starts_with(INFINIBAND)
                    || (class == b"misc" && component(inside).is_some_and(|(device, _)| device == MANAGER));
                let after = trimmed(after);
                let (entry, rest) = to_device(after).unwrap_or((&[], after));
                let stays = stays_inside(if entry.is_empty() { inside } else { rest });
                (ours && stays).then_some(Self { folder: CLASS, entry, rest, node: None })
            }
            b"dev" if name == INFINIBAND => stays_inside(after).then(|| Self {
                folder: DEV,
                entry: &[],
                rest: trimmed(below),
                node: Node::named(after),
            }),
            _ => None,
        }
    }

    /// The node, if the path is one.
    pub(crate) fn node(&self) -> Option<Node> {
        self.node
    }

    /// The counter, if the path is one of a port.
    pub(crate) fn counter(&self) -> Option<Counter<'a>> {
        let (class, rest) = component(self.rest)?;
        let (device, rest) = component(rest)?;
        let (ports, rest) = component(rest)?;
        let (port, rest) = component(rest)?;
        let (folder, rest) = component(rest)?;
        let ours = class == INFINIBAND
            && ports == b"ports"
            && matches!(folder, b"counters" | b"hw_counters")
            && self.folder == CLASS;
        (ours && component(rest).is_some() && port.iter().all(u8::is_ascii_digit)).then_some(Counter { device, port })
    }

    /// The path in the mirror, piece by piece.
    pub(crate) fn mirrored(&self) -> impl Iterator<Item = u8> {
        let device: &[u8] = if self.entry.is_empty() { &[] } else { b"/device" };
        self.folder.iter().chain(self.entry).chain(device).chain(self.rest).copied()
    }
}

impl Node {
    /// The node with this name in `/dev/infiniband`. Nothing may follow the name.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        let name = trimmed(name);
        if name == MANAGER {
            return Some(Self::Manager);
        }
        if let Some(digits) = name.strip_prefix(UVERBS) {
            return number(digits, DEVICES).map(Self::Verbs);
        }
        if let Some(digits) = name.strip_prefix(UMAD) {
            return number(digits, PORTS).map(Self::Mads);
        }
        name.strip_prefix(ISSM).and_then(|digits| number(digits, PORTS)).map(Self::SubnetManager)
    }

    /// Its official path.
    pub(crate) fn path(self) -> impl Iterator<Item = u8> {
        const ZERO: u32 = b'0' as u32;
        let digit = |digit: u32| digit.wrapping_add(ZERO) as u8;
        let (name, number) = match self {
            Self::Verbs(number) => (UVERBS, Some(number)),
            Self::Mads(number) => (UMAD, Some(number)),
            Self::SubnetManager(number) => (ISSM, Some(number)),
            Self::Manager => (MANAGER, None),
        };
        let tens = number.filter(|number| *number >= 10).map(|number| digit(number / 10));
        let ones = number.map(|number| digit(number % 10));
        b"/dev/infiniband/".iter().chain(name).copied().chain(tens).chain(ones)
    }
}

/// A number below `end`, without leading zeros.
fn number(digits: &[u8], end: u32) -> Option<u32> {
    let canonical = digits.first().is_some_and(|first| *first != b'0') || digits == b"0";
    if !canonical {
        return None;
    }
    let number = digits.iter().try_fold(0_u32, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u32::from(*digit).wrapping_sub(u32::from(b'0')))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    (number < end).then_some(number)
}

/// Splits a path of the mirror: the length of the mirror's root, and the start of the official
/// path. `None` if no part of the path looks like the mirror.
pub(crate) fn before_official(path: &[u8]) -> Option<(usize, usize)> {
    // The mirror's root ends after `/sys`. The official path begins at the match, or after `/sys`
    // for nodes.
    const SYS: &[u8] = b"/sys/class/infiniband";
    const SYS_DEV: &[u8] = b"/sys/dev/infiniband";
    const ROOT: usize = b"/sys".len();
    let starts = |at: usize, words: &[u8]| path.get(at..).is_some_and(|rest| rest.starts_with(words));
    (1..path.len()).rev().find_map(|at| {
        if starts(at, SYS) {
            Some((at.wrapping_add(ROOT), at))
        } else if starts(at, SYS_DEV) {
            Some((at.wrapping_add(ROOT), at.wrapping_add(ROOT)))
        } else {
            None
        }
    })
}

/// Splits a path in a class that goes two steps up from an entry: the entry, and what follows.
fn to_device(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, below) = component(path)?;
    let (entry, up) = component(below)?;
    let (first, up) = component(up)?;
    let (second, rest) = component(up)?;
    if entry == b".." || first != b".." || second != b".." {
        return None;
    }
    let after_entry = component(below)?.1;
    let entry = path.get(..path.len().checked_sub(after_entry.len())?)?;
    Some((entry, rest))
}

/// The first component and the rest; `None` at the end. `.` is not a component.
fn component(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = trimmed(path);
    if path.is_empty() {
        return None;
    }
    Some(match path.iter().position(|byte| *byte == b'/') {
        Some(end) => path.split_at_checked(end)?,
        None => (path, &[]),
    })
}

/// The path without leading slashes and `.` components.
fn trimmed(mut path: &[u8]) -> &[u8] {
    loop {
        path = match path {
            [b'/', rest @ ..] => rest,
            [b'.'] => &[],
            [b'.', b'/', rest @ ..] => rest,
            _ => return path,
        };
    }
}

/// Whether no `..` leads above the folder that `path` is relative to.
fn stays_inside(mut path: &[u8]) -> bool {
    let mut depth = 0_usize;
    while let Some((name, rest)) = component(path) {
        if name == b".." {
            let Some(above) = depth.checked_sub(1) else { return false };
            depth = above;
        } else {
            depth = depth.saturating_add(1);
        }
        path = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrored(path: &str) -> Option<String> {
        Some(String::from_utf8(Official::read(path.as_bytes())?.mirrored().collect()).unwrap())
    }

    #[test]
    fn paths_of_the_mirror_are_redirected() {
        for (official, ours) in [
            ("/sys/class/infiniband", "/class/infiniband"),
            ("/sys/class/infiniband/", "/class/infiniband/"),
            ("//sys/./class///infiniband/softhca0/ports", "/class/infiniband/softhca0/ports"),
            ("/sys/class/infiniband_verbs/uverbs0/dev", "/class/infiniband_verbs/uverbs0/dev"),
            ("/sys/class/infiniband_mad", "/class/infiniband_mad"),
            ("/sys/class/misc/rdma_cm/abi_version", "/class/misc/rdma_cm/abi_version"),
            ("/sys/class/infiniband/a/../b", "/class/infiniband/a/../b"),
            ("/sys/class/infiniband/a/../..", "/class/infiniband/a/device"),
            ("/sys/class/infiniband/a/./..//../numa_node", "/class/infiniband/a/device/numa_node"),
            ("/sys/class/infiniband_verbs/uverbs0/../../net", "/class/infiniband_verbs/uverbs0/device/net"),
            ("/dev/infiniband", "/dev/infiniband"),
            ("/dev//infiniband/uverbs0", "/dev/infiniband/uverbs0"),
            ("/dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm"),
        ] {
            assert_eq!(mirrored(official).as_deref(), Some(ours), "{official}");
        }
    }

    #[test]
    fn other_paths_are_not_redirected() {
        for path in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/",
            "/sys/class/net/eth0",
            "/sys/class/misc",
            "/sys/class/misc/fuse",
            "/sys/classes/infiniband",
            "/sys/class/infiniband/..",
            "/sys/class/infiniband/a/../../../net",
            "/sys/class/infiniband/../../a",
            "/sys/class/infiniband/a/../../../..",
            "/dev",
            "/dev/null",
            "/dev/infiniband2",
            "/dev/infiniband/../null",
            "/sysx/class/infiniband",
            "sys/class/infiniband",
            "./dev/infiniband",
            "/home/sys/class/infiniband",
        ] {
            assert_eq!(mirrored(path), None, "{path}");
        }
    }

    #[test]
    fn nodes_have_names() {
        let node = |path: &str| Official::read(path.as_bytes()).and_then(|path| path.node());
        assert_eq!(node("/dev/infiniband/uverbs0"), Some(Node::Verbs(0)));
        assert_eq!(node("/dev/infiniband/.//uverbs31"), Some(Node::Verbs(31)));
        assert_eq!(node("/dev//infiniband/./rdma_cm"), Some(Node::Manager));
        assert_eq!(node("/dev/infiniband/umad63"), Some(Node::Mads(63)));
        assert_eq!(node("/dev/infiniband/issm0"), Some(Node::SubnetManager(0)));
        for path in [
            "",
            "/",
            "/uverbs",
            "/uverbs0/",
            "/uverbs00",
            "/uverbs32",
            "/uverbs-1",
            "/x/uverbs0",
            "/uverbs0x",
            "/umad64",
            "/umad01",
            "/issm",
            "/issm64",
            "/rdma_cm/",
            "/rdma_cm0",
            "/x/rdma_cm",
        ] {
            assert_eq!(node(&format!("/dev/infiniband{path}")), None, "{path}");
        }
        assert_eq!(node("/sys/class/infiniband_verbs/uverbs0"), None);
        assert_eq!(node("/sys/class/misc/rdma_cm"), None);
        for name in ["uverbs0", "uverbs9", "uverbs31", "umad0", "umad63", "issm10", "rdma_cm"] {
            let path = format!("/dev/infiniband/{name}");
            assert_eq!(node(&path).expect("a node").path().collect::<Vec<_>>(), path.as_bytes());
        }
    }

    #[test]
    fn the_way_back() {
        let back =
            |path: &'static str| before_official(path.as_bytes()).map(|(root, from)| (&path[..root], &path[from..]));
        assert_eq!(back("/run/x/sys/class/infiniband/a"), Some(("/run/x/sys", "/sys/class/infiniband/a")));
        assert_eq!(back("/run/x/sys/dev/infiniband"), Some(("/run/x/sys", "/dev/infiniband")));
        assert_eq!(back("/sys/class/infiniband/a"), None);
        assert_eq!(back("/run/x/sys/class/net"), None);
        assert_eq!(back(""), None);
    }

    #[test]
    fn counters_of_ports_are_known() {
        let of = |path: &'static str| Official::read(path.as_bytes()).and_then(|official| official.counter());
        let found = of("/sys/class/infiniband//H1/ports/2/./counters/port_xmit_data");
        assert_eq!(found, Some(Counter { device: b"H1", port: b"2" }));
        let found = of("/sys/class/infiniband/H1/ports/1/hw_counters/out_of_buffer");
        assert_eq!(found, Some(Counter { device: b"H1", port: b"1" }));
        assert_eq!(of("/sys/class/infiniband/H1/ports/2/counters"), None);
        assert_eq!(of("/sys/class/infiniband/H1/ports/x/counters/symbol_error"), None);
        assert_eq!(of("/sys/class/infiniband/H1/ports/1/gids/0"), None);
    }
}
