//! What is wanted of softhca beside its peers: each goal is two figures and a ratio. Principal type: [`Goal`].

use super::probes::{BESIDE_IDLE, Group, PLAIN, TRANSPORTS, ucx_name};

/// Commands that a queue pair takes from its making to its end: create, three times modify, destroy.
const QP_COMMANDS: f64 = 5.0;
/// Commands of a registration: it, and its end.
const MR_COMMANDS: f64 = 2.0;

/// Which side of the ratio is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Want {
    /// A time: at most so many times that of the best of the others.
    AtMost(f64),
    /// A bandwidth or rate: at least so many times that of the best of the others.
    AtLeast(f64),
}

/// What is wanted.
pub(super) struct Goal {
    pub(super) what: String,
    /// The unit of both figures.
    pub(super) unit: &'static str,
    /// Name of a series.
    pub(super) ours: String,
    /// Names of series, the best of which counts.
    pub(super) theirs: Vec<String>,
    /// What theirs is multiplied by before: how often it has to be done.
    pub(super) times: f64,
    pub(super) want: Want,
}

impl Goal {
    fn new(ours: &str, unit: &'static str, want: Want, theirs: Vec<String>) -> Self {
        Self { what: format!("`{ours}`"), unit, ours: ours.to_owned(), theirs, times: 1.0, want }
    }
}

/// All of them.
pub(super) fn all() -> Vec<Goal> {
    use Want::{AtLeast, AtMost};
    let base = |what: &str| vec![format!("baseline {what}")];
    let ucx = |words: &str| vec![ucx_name(words, TRANSPORTS[0])];
    let mut goals = vec![
        Goal::new("ib_send_lat -s 8", "µs", AtMost(1.5), base("bounce")),
        Goal::new("ib_send_lat -s 8", "µs", AtMost(1.0), ucx("tag_lat -s 8")),
        Goal::new("ib_write_lat -s 8", "µs", AtMost(1.5), ucx("ucp_put_lat -s 8")),
        Goal::new("ib_read_lat -s 8", "µs", AtMost(2.0), vec!["ib_write_lat -s 8".to_owned()]),
        Goal::new("ib_atomic_bw -A FETCH_AND_ADD", "Mrate", AtLeast(0.5), ucx("ucp_fadd -s 8")),
        Goal::new("ib_send_bw -s 8 -l 16", "Mrate", AtLeast(1.0), ucx("tag_bw -s 8")),
    ];
    for (_, size) in Group::BANDWIDTHS {
        for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let ours = format!("{program} -s {size}");
            let peers = TRANSPORTS.iter().flat_map(|transports| {
                ["tag_bw", "ucp_put_bw"].map(|test| ucx_name(&format!("{test} -s {size}"), transports))
            });
            goals.push(Goal::new(&ours, "MiB/s", AtLeast(1.2), peers.collect()));
            goals.push(Goal::new(&ours, "MiB/s", AtLeast(0.8), base(&format!("ring {size}"))));
        }
    }
    goals.push(Goal::new("ib_send_lat -s 8 -e", "µs", AtMost(2.0), [base("futex"), base("eventfd")].concat()));
    goals.push(Goal::new("ib_write_bw -s 8 -q 1000", "Mrate", AtLeast(0.8), vec![PLAIN.to_owned()]));
    goals.push(Goal::new(BESIDE_IDLE, "Mrate", AtLeast(0.8), vec![PLAIN.to_owned()]));
    let asked = [
        ("controls qp", "create_qp, RTS and destroy_qp", QP_COMMANDS),
        ("controls mr", "reg_mr and dereg_mr of 1 GiB", MR_COMMANDS),
    ];
    for (ours, what, times) in asked {
        goals.push(Goal { what: what.to_owned(), times, ..Goal::new(ours, "µs", AtMost(1.5), base("socket")) });
    }
    for mtu in [9000, 1500] {
        let udp = || vec![format!("plain UDP, MTU {mtu}")];
        goals.push(Goal::new(&format!("ib_write_bw -s 1048576, MTU {mtu}"), "MiB/s", AtLeast(0.85), udp()));
        goals.push(Goal::new(&format!("ib_send_bw -s 65536, MTU {mtu}"), "MiB/s", AtLeast(0.85), udp()));
        let spins = vec![format!("plain UDP that spins, MTU {mtu}")];
        goals.push(Goal::new(&format!("ib_send_lat -s 8, MTU {mtu}"), "µs", AtMost(1.25), spins));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::probes;
    use super::{BESIDE_IDLE, all};
    use std::collections::HashSet;

    /// A goal without a figure would never be missed.
    #[test]
    fn every_goal_is_measured() {
        let mut known: HashSet<String> =
            probes::Group::MEASURED.iter().flat_map(|group| probes::of(*group)).map(|probe| probe.name).collect();
        known.insert(BESIDE_IDLE.to_owned());
        for goal in all().iter().filter(|goal| !goal.ours.contains("MTU")) {
            assert!(known.contains(&goal.ours), "{} is not measured", goal.ours);
            assert!(goal.theirs.iter().any(|name| known.contains(name)), "{}: {:?}", goal.ours, goal.theirs);
        }
    }
}
