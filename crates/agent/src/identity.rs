//! GUIDs that are not configured: the same at every start, and different between machines, users
//! and run directories.
//!
//! They are EUI-64 identifiers with the "locally administered" bit set, so they never equal a
//! vendor's. Nothing here is a secret, and nothing here is used for security. The principal
//! function is [`derive()`].

use std::path::Path;

use crate::config::Guid;

/// The node GUID of device `index` of the agent that serves `place` (its run directory, or a word
/// for an embedded agent).
pub fn derive(place: &str, index: usize) -> Guid {
    let mut hash = Fnv::new();
    hash.add(machine().as_bytes());
    hash.add(&rustix::process::getuid().as_raw().to_le_bytes());
    hash.add(place.as_bytes());
    hash.add(&index.to_le_bytes());
    locally_administered(hash.finish())
}

/// The GUID of port `number` (1-based) of the device with node GUID `node`.
pub fn port_guid(node: Guid, number: u8) -> Guid {
    let mut hash = Fnv::new();
    hash.add(&node.0.to_be_bytes());
    hash.add(&[number]);
    locally_administered(hash.finish())
}

/// Sets bit 1 of the first octet and clears bit 0 (group). The result cannot be zero.
fn locally_administered(value: u64) -> Guid {
    Guid((value & !(0xff << 56)) | (((value >> 56) & 0xfc | 0x02) << 56))
}

/// A text that distinguishes this machine from others: its machine id, or else its host name.
fn machine() -> String {
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/hostname"]
        .iter()
        .filter_map(|path| std::fs::read_to_string(Path::new(path)).ok())
        .find(|text| !text.trim().is_empty())
        .unwrap_or_default()
}

/// FNV-1a with a final mix, because its high bits vary little on short input.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        let mut value = self.0;
        value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        value ^ (value >> 33)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_guids_are_stable_distinct_and_locally_administered() {
        let first = derive("/run/one", 0);
        assert_eq!(first, derive("/run/one", 0));
        let all = [first, derive("/run/one", 1), derive("/run/two", 0), port_guid(first, 1), port_guid(first, 2)];
        for (index, guid) in all.iter().enumerate() {
            assert_eq!(guid.0 >> 56 & 3, 2, "{guid} is not a locally administered unicast identifier");
            assert!(!all[..index].contains(guid), "{guid} was derived twice");
        }
    }
}
