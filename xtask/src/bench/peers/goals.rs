//! The goals for softhca compared with its peers: each goal is two figures and a ratio. The
//! principal type is [`Goal`].

use super::probes::{BESIDE_IDLE, FEW_PROCESSES, Group, MANY_PROCESSES, PLAIN, TRANSPORTS, WAITS, ucx_name};

/// The commands in the life of a queue pair: create, three modifies, destroy.
const QP_COMMANDS: f64 = 5.0;
/// The commands for one memory region: register and deregister.
const MR_COMMANDS: f64 = 2.0;

/// Which side of the ratio is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Want {
    /// A time: at most this many times the best time of the others.
    AtMost(f64),
    /// A bandwidth or rate: at least this many times the best of the others.
    AtLeast(f64),
    /// A figure without a comparison: at most this value.
    Within(f64),
}

/// One goal.
pub(super) struct Goal {
    pub(super) what: String,
    /// The unit of both figures.
    pub(super) unit: &'static str,
    /// The name of softhca's series.
    pub(super) ours: String,
    /// The names of the others' series, of which the best counts. Empty with [`Want::Within`].
    pub(super) theirs: Vec<String>,
    /// The factor for the others' figure: how often their operation is necessary.
    pub(super) times: f64,
    pub(super) want: Want,
}

impl Goal {
    fn new(ours: &str, unit: &'static str, want: Want, theirs: Vec<String>) -> Self {
        Self { what: format!("`{ours}`"), unit, ours: ours.to_owned(), theirs, times: 1.0, want }
    }
}

/// All goals.
pub(super) fn all() -> Vec<Goal> {
    use Want::{AtLeast, AtMost};
    let base = |what: &str| vec![format!("baseline {what}")];
    let ucx = |words: &str| vec![ucx_name(words, TRANSPORTS[0])];
    let mut goals = vec![
        Goal::new("ib_send_lat -s 8", "µs", AtMost(1.5), base("bounce")),
        Goal::new("ib_send_lat -s 8", "µs", AtMost(1.0), ucx("tag_lat -s 8")),
        Goal::new("ib_write_lat -s 8", "µs", AtMost(1.5), ucx("ucp_put_lat -s 8")),
        Goal::new("ib_write_lat -s 8", "µs", AtMost(2.0), base("futex")),
        Goal::new("ib_read_lat -s 8", "µs", AtMost(2.0), vec!["ib_write_lat -s 8".to_owned()]),
        Goal::new("ib_atomic_bw -A FETCH_AND_ADD", "Mrate", AtLeast(0.5), ucx("ucp_fadd -s 8")),
        Goal::new("ib_send_bw -s 8 -l 16", "Mrate", AtLeast(1.0), [ucx("tag_bw -s 8"), ucx("ucp_am_bw -s 8")].concat()),
    ];
    for (_, size) in Group::BANDWIDTHS {
        let tests = |tests: &[&str]| -> Vec<String> {
            let of = |transports| tests.iter().map(move |test| ucx_name(&format!("{test} -s {size}"), transports));
            TRANSPORTS.into_iter().flat_map(of).collect()
        };
        for (program, direct) in [("ib_write_bw", "ucp_put_bw"), ("ib_read_bw", "ucp_get"), ("ib_send_bw", "")] {
            let ours = format!("{program} -s {size}");
            goals.push(Goal::new(&ours, "MiB/s", AtLeast(1.2), tests(&["tag_bw", "ucp_am_bw"])));
            goals.push(Goal::new(&ours, "MiB/s", AtLeast(0.8), base(&format!("ring {size}"))));
            // UCX has allocated this memory itself, and shares it with the peer.
            if !direct.is_empty() {
                goals.push(Goal::new(&ours, "MiB/s", AtLeast(1.2), tests(&[direct])));
            }
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
        goals.push(Goal {
            what: what.to_owned(),
            times,
            ..Goal::new(ours, "µs", AtMost(1.5), [base("socket"), base("nearby")].concat())
        });
    }
    let alone = [
        ("controls pages", "reg_mr of 1 GiB, pages of it that are touched", "pages", 0.0),
        ("controls memory AGENT", "an idle queue pair with its queues of one request", "bytes", 4096.0),
        (
            &format!("mesh {FEW_PROCESSES}"),
            "an idle pair of processes, of 16 that all know each other",
            "bytes",
            32768.0,
        ),
        (&format!("mesh {MANY_PROCESSES}"), "128 processes that all know each other, and the agent", "MiB", 1024.0),
        (WAITS, "two threads with queues of their own: sleeps for a lock", "of 1000 messages", 1.0),
    ];
    for (ours, what, unit, most) in alone {
        goals.push(Goal { what: what.to_owned(), ..Goal::new(ours, unit, Want::Within(most), Vec::new()) });
    }
    let one = vec!["controls threads 1".to_owned()];
    let what = "two threads with queues of their own, beside one".to_owned();
    goals.push(Goal { what, ..Goal::new("controls threads 2", "Mrate", AtLeast(1.6), one) });
    for mtu in [9000, 1500] {
        let of = |what: &str| format!("{what}, MTU {mtu}");
        let tcp = |words: &str| vec![of(&ucx_name(words, TRANSPORTS[2]))];
        let (stream, messages, ping) =
            (of("ib_write_bw -s 1048576"), of("ib_send_bw -s 65536"), of("ib_send_lat -s 8"));
        goals.push(Goal::new(&stream, "MiB/s", AtLeast(0.85), vec![of("plain UDP")]));
        goals.push(Goal::new(&messages, "MiB/s", AtLeast(0.85), vec![of("plain UDP")]));
        goals.push(Goal::new(&stream, "MiB/s", AtLeast(1.0), tcp("tag_bw -s 1048576")));
        goals.push(Goal::new(&ping, "µs", AtMost(1.25), vec![of("plain UDP that spins")]));
        goals.push(Goal::new(&ping, "µs", AtMost(1.0), tcp("tag_lat -s 8")));
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::super::probes;
    use super::{BESIDE_IDLE, Want, all};
    use std::collections::HashSet;

    /// A goal without a figure could never be missed.
    #[test]
    fn every_goal_is_measured() {
        let mut known: HashSet<String> =
            probes::Group::MEASURED.iter().flat_map(|group| probes::of(*group)).map(|probe| probe.name).collect();
        known.insert(BESIDE_IDLE.to_owned());
        for goal in all().iter().filter(|goal| !goal.ours.contains("MTU")) {
            assert!(known.contains(&goal.ours), "{} is not measured", goal.ours);
            let beside = goal.theirs.iter().any(|name| known.contains(name));
            assert!(beside || matches!(goal.want, Want::Within(_)), "{}: {:?}", goal.ours, goal.theirs);
        }
    }
}
