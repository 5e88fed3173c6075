//! The multicast groups that the host's programs have joined on an interface, as `/proc/net` lists
//! them. Principal function: [`joined`].

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The groups of an interface. Without `/proc` there are none.
pub(crate) fn joined(interface: &str) -> Vec<IpAddr> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    let mut groups = of_igmp(&read("igmp"), interface);
    groups.extend(of_igmp6(&read("igmp6"), interface));
    groups
}

/// A line for each interface (`2 ib0 : 1 V3`), then a line for each of its groups, with the group
/// as a word in memory order (`010000E0 1 0:00000000 0`).
fn of_igmp(text: &str, interface: &str) -> Vec<IpAddr> {
    let mut groups = Vec::new();
    let mut here = false;
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace();
        match (line.starts_with(char::is_whitespace), words.next()) {
            (false, _) => here = words.next().is_some_and(|name| name.trim_end_matches(':') == interface),
            (true, Some(word)) if here => {
                let group = u32::from_str_radix(word, 16).ok();
                groups.extend(group.map(|group| IpAddr::V4(Ipv4Addr::from(group.to_ne_bytes()))));
            }
            _ => {}
        }
    }
    groups
}

/// A line for each group: `2 ib0 ff020000000000000000000000000001 1 0000000C 0`.
fn of_igmp6(text: &str, interface: &str) -> Vec<IpAddr> {
    let group = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let here = words.next()? == interface;
        let group = u128::from_str_radix(words.next()?, 16).ok().filter(|_| here)?;
        Some(IpAddr::V6(Ipv6Addr::from(group)))
    };
    text.lines().filter_map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::{of_igmp, of_igmp6};

    #[test]
    fn only_the_groups_of_the_interface_are_listed() {
        let text = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n\
            1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n\
            2\tib0       :     2      V3\n\t\t\t\t030201EF     1 0:00000000\t\t0\n\t\t\t\t010000E0     1 0:00000000\t\t0\n";
        let shown = |groups: Vec<std::net::IpAddr>| groups.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(shown(of_igmp(text, "ib0")), ["239.1.2.3", "224.0.0.1"]);
        assert_eq!(shown(of_igmp(text, "ib1")), [""; 0]);
        let text = "1    lo              ff020000000000000000000000000001     1 0000000C 0\n\
            2    ib0             ff0200000000000000000001ff000007     1 00000004 0\n";
        assert_eq!(shown(of_igmp6(text, "ib0")), ["ff02::1:ff00:7"]);
    }
}
