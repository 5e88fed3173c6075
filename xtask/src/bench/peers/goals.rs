//! The goals for softhca beside its peers: two figures, a ratio, and the cause if it is not
//! reached. docs/performance.md is generated from this table. The principal type is [`Goal`].

use super::probes::{
    BESIDE_IDLE, CONNECT, FEW_PROCESSES, FEW_TALK, Group, MANY_PROCESSES, MANY_TALK, PINGPONG, PLAIN, POLL, STARTUP,
    TRANSPORTS, UNFAIR, WAITS, shared_name, ucx_name,
};

use crate::bench::{ipoib, iwarp, subnet, wire};

/// The commands in the life of a queue pair: create, three modifies, destroy.
const QP_COMMANDS: f64 = 5.0;
/// The commands for one memory region: register and deregister.
const MR_COMMANDS: f64 = 2.0;

/// Causes, each with the next step, and a link to the section of the page if there is one.
mod cause {
    pub(super) const SMALL: &str = "A message moves two cache lines, and its acknowledgement is one more record on \
        the lane. The next step is to leave out this record. [More](#latency-of-8-bytes-on-one-host)";
    pub(super) const WAKES: &str = "perftest spins on its memory, so the helper thread must wake up for each message. \
        Shared memory avoids this. [More](#ib_write_lat)";
    pub(super) const RATE: &str = "A message takes 2900 instructions at the receiver, and no part of them dominates. \
        The next step is fewer instructions. [More](#rate-of-8-bytes)";
    pub(super) const OF_4_KIB: &str = "The sender waits for the stores of its copy before it posts the next message. \
        The next step is to let copy and post overlap. [More](#messages-of-4-kib)";
    pub(super) const OF_64_KIB: &str = "UCX sends a message as one segment, softhca as two pieces. The next step is \
        pieces as long as the message. [More](#messages-of-64-kib)";
    pub(super) const LONG: &str = "Both processors spend most of their time in the two copies. There is no next step \
        yet. [More](#messages-of-1-mib-and-8-mib)";
    pub(super) const SHARED: &str = "After the operation, softhca writes a completion and checks the grant; UCX does \
        neither. There is no next step yet. [More](#direct-access-to-shared-memory)";
    pub(super) const SHARED_LONG: &str = "In a profile of a WRITE of 1 MiB, 95 % of the client's samples are the copy, \
        which is as fast as memcpy in a bare loop. Nobody has profiled READ. The next step is such a profile. [More](#direct-access-to-shared-memory)";
    pub(super) const REGION: &str = "Beside its two replies from the agent, a registration asks the kernel about the \
        mapping, and its end takes what has arrived first. There is no next step yet. [More](#registration)";
    pub(super) const STARTUP: &str = "`softhca run` is one more program. It connects to the agent twice and waits for \
        five replies before it starts the other program. The next step is one connection.";
    pub(super) const MANY: &str = "perftest itself takes most of the sender's time: it looks for a queue pair with \
        room. There is no next step. [More](#1000-queue-pairs)";
    pub(super) const CROWD: &str = "Of 32 processes that spin on one processor, each runs for some milliseconds at a \
        time, and then finds at most 504 messages. There is no next step yet. [More](#fairness-of-64-processes)";
    pub(super) const WIRE: &str = "softhca computes an ICRC and copies each byte once more than plain UDP. The next \
        step is a second thread of the sender. [More](#bandwidth-between-hosts)";
    pub(super) const IWARP: &str = "softhca copies each byte once more than TCP, with its CRC. There is no \
        next step yet. [More](#iwarp)";
    pub(super) const WIRE_TIME: &str = "The kernel takes most of the time: a call that sends costs 1.5 µs and more on \
        each side. There is no next step yet. [More](#latency-between-hosts)";
}

/// The parts of the page, one table each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    /// Two processes whose memory is private: data goes over a lane.
    OneHost,
    /// Two processes under `softhca run --shared-memory`.
    SharedMemory,
    /// Many queue pairs, processes and threads.
    Many,
    BetweenHosts,
    /// Programs on nodes of an InfiniBand subnet, and IP over InfiniBand.
    Subnets,
    /// Objects and programs.
    Control,
}

impl Section {
    /// All parts, in the order of the page.
    pub(super) const ALL: [Self; 6] =
        [Self::OneHost, Self::SharedMemory, Self::Many, Self::BetweenHosts, Self::Subnets, Self::Control];

    /// The heading of the table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::OneHost => "One host",
            Self::SharedMemory => "One host, shared memory",
            Self::Many => "Many queue pairs, processes and threads",
            Self::BetweenHosts => "Between hosts",
            Self::Subnets => "InfiniBand subnets",
            Self::Control => "Objects and programs",
        }
    }
}

/// Which side of the ratio is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Want {
    /// A time: at most this many times the best time of the others.
    AtMost(f64),
    /// A bandwidth or rate: at least this many times the best of the others.
    AtLeast(f64),
    /// A figure without a comparison: at most this value.
    Within(f64),
    /// A bandwidth without a goal: only the ratio is shown.
    Compared,
}

/// One goal.
pub(super) struct Goal {
    pub(super) part: Section,
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
    /// Why the goal is not met, and the next step. Empty only while the goal is met.
    pub(super) cause: &'static str,
}

impl Goal {
    pub(super) fn new(
        part: Section,
        ours: &str,
        unit: &'static str,
        want: Want,
        theirs: Vec<String>,
        cause: &'static str,
    ) -> Self {
        Self { part, what: format!("`{ours}`"), unit, ours: ours.to_owned(), theirs, times: 1.0, want, cause }
    }

    /// The same goal under another name on the page.
    fn called(self, what: &str) -> Self {
        Self { what: what.to_owned(), ..self }
    }
}

/// All goals.
pub(super) fn all() -> Vec<Goal> {
    [one_host(), shared_memory(), many(), between_hosts(), subnets(), control()].into_iter().flatten().collect()
}

fn base(what: &str) -> Vec<String> {
    vec![format!("baseline {what}")]
}

/// UCX over shared memory.
fn ucx(words: &str) -> Vec<String> {
    vec![ucx_name(words, TRANSPORTS[0])]
}

fn one_host() -> Vec<Goal> {
    use Want::{AtLeast, AtMost};
    let goal = |ours: &str, unit, want, theirs, cause| Goal::new(Section::OneHost, ours, unit, want, theirs, cause);
    let mut goals = vec![
        goal("ib_send_lat -s 8", "µs", AtMost(1.3), base("verbs"), cause::SMALL),
        goal(
            "ib_send_lat -s 8",
            "µs",
            AtMost(1.5),
            [ucx("tag_lat -s 8"), vec![PINGPONG.to_owned()]].concat(),
            cause::SMALL,
        ),
        goal("ib_send_lat -s 256", "µs", AtMost(1.2), ucx("tag_lat -s 256"), cause::SMALL),
        goal("ib_send_lat -s 4096", "µs", AtMost(1.2), ucx("tag_lat -s 4096"), cause::SMALL),
        goal("ib_send_lat -s 8 -e", "µs", AtMost(2.0), [base("futex"), base("eventfd")].concat(), ""),
        goal("ib_write_lat -s 8", "µs", AtMost(2.0), base("futex"), cause::WAKES),
        goal("ib_read_lat -s 8", "µs", AtMost(2.0), vec!["ib_write_lat -s 8".to_owned()], ""),
        goal(
            "ib_send_bw -s 8 -l 16",
            "million/s",
            AtLeast(1.0),
            [ucx("tag_bw -s 8"), ucx("ucp_am_bw -s 8")].concat(),
            cause::RATE,
        ),
        // One part in 1.3, as for the time.
        goal("ib_send_bw -s 8 -l 16", "million/s", AtLeast(0.77), base("verbs-rate"), cause::RATE),
    ];
    for (group, size) in Group::BANDWIDTHS {
        let (part_of_ucx, cause) = match group {
            Group::Bw4k => (1.0, cause::OF_4_KIB),
            Group::Bw64k => (0.8, cause::OF_64_KIB),
            _ => (1.0, cause::LONG),
        };
        let messages: Vec<String> = ["tag_bw", "ucp_am_bw"]
            .iter()
            .flat_map(|test| TRANSPORTS[..2].iter().map(move |over| ucx_name(&format!("{test} -s {size}"), over)))
            .collect();
        for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let ours = format!("{program} -s {size}");
            goals.push(goal(&ours, "MiB/s", AtLeast(part_of_ucx), messages.clone(), cause));
            goals.push(goal(&ours, "MiB/s", AtLeast(0.8), base(&format!("ring {size}")), cause));
        }
    }
    goals
}

fn shared_memory() -> Vec<Goal> {
    use Want::{AtLeast, AtMost};
    let goal = |ours: &str, unit, want, theirs: &str, cause| {
        let goal = Goal::new(Section::SharedMemory, &shared_name(ours), unit, want, ucx(theirs), cause);
        goal.called(&format!("`{ours}`"))
    };
    let mut goals = vec![
        goal("ib_write_lat -s 8", "µs", AtMost(3.0), "ucp_put_lat -s 8", cause::SHARED),
        goal("ib_read_lat -s 8", "µs", AtMost(3.0), "ucp_get -s 8", cause::SHARED),
        goal("ib_atomic_bw -A FETCH_AND_ADD", "million/s", AtLeast(0.5), "ucp_fadd -s 8", cause::SHARED),
    ];
    for (group, size) in Group::BANDWIDTHS {
        // The copy of a longer message takes much longer than its completion.
        let cause = if group == Group::Bw4k { cause::SHARED } else { cause::SHARED_LONG };
        for (program, test) in [("ib_write_bw", "ucp_put_bw"), ("ib_read_bw", "ucp_get")] {
            let (ours, theirs) = (format!("{program} -s {size}"), format!("{test} -s {size}"));
            goals.push(goal(&ours, "MiB/s", AtLeast(0.8), &theirs, cause));
        }
    }
    goals
}

fn many() -> Vec<Goal> {
    use Want::{AtLeast, Within};
    let goal = |ours: &str, unit, want, theirs: &[&str], cause| {
        let theirs = theirs.iter().map(|name| (*name).to_owned()).collect();
        Goal::new(Section::Many, ours, unit, want, theirs, cause)
    };
    let (few, all) = (format!("mesh {FEW_PROCESSES}"), format!("mesh {MANY_PROCESSES}"));
    vec![
        goal("ib_write_bw -s 8 -q 1000", "million/s", AtLeast(0.8), &[PLAIN], cause::MANY),
        goal(BESIDE_IDLE, "million/s", AtLeast(0.8), &[PLAIN], ""),
        goal(MANY_TALK, "million/s", AtLeast(0.5), &[FEW_TALK], cause::CROWD)
            .called("64 processes that all talk to each other, beside 4"),
        goal(UNFAIR, "percent", Within(20.0), &[], cause::CROWD)
            .called("64 processes that all talk: how far the slowest is below the mean"),
        goal("controls threads 2", "million/s", AtLeast(1.6), &["controls threads 1"], "")
            .called("two threads with queues of their own, beside one"),
        goal(WAITS, "of 1000 messages", Within(1.0), &[], "")
            .called("two threads with queues of their own: sleeps for a lock"),
        goal(&few, "bytes", Within(32768.0), &[], "")
            .called("an idle pair of processes, of 16 that all know each other"),
        goal(&all, "MiB", Within(1024.0), &[], "").called("128 processes that all know each other, and the agent"),
    ]
}

fn between_hosts() -> Vec<Goal> {
    use Want::{AtLeast, AtMost};
    let mut goals = Vec::new();
    for (mtu, part_of_udp) in [(9000, 0.9), (1500, 0.85)] {
        let of = |what: &str| wire::named(what, mtu);
        let mut goal = |ours: &str, unit, want, theirs: &str, cause| {
            let goal = Goal::new(Section::BetweenHosts, &of(ours), unit, want, vec![of(theirs)], cause);
            goals.push(goal.called(&format!("`{ours}`, MTU {mtu}")));
        };
        let (stream, ping) = ("ib_write_bw -s 1048576", "ib_send_lat -s 8");
        let tcp = |words: &str| ucx_name(words, TRANSPORTS[2]);
        goal(stream, "MiB/s", AtLeast(part_of_udp), "plain UDP", cause::WIRE);
        goal("ib_send_bw -s 65536", "MiB/s", AtLeast(part_of_udp), "plain UDP", cause::WIRE);
        goal(stream, "MiB/s", AtLeast(1.0), &tcp("tag_bw -s 1048576"), cause::WIRE);
        goal(ping, "µs", AtMost(1.25), "plain UDP that spins", cause::WIRE_TIME);
        goal(ping, "µs", AtMost(0.95), &tcp("tag_lat -s 8"), cause::WIRE_TIME);
        let [stream, ping, plain_stream, plain_ping] = iwarp::NAMES;
        goal(stream, "MiB/s", AtLeast(0.8), plain_stream, cause::IWARP);
        goal(ping, "µs", AtMost(1.3), plain_ping, cause::IWARP);
    }
    goals
}

fn subnets() -> Vec<Goal> {
    let goal = |ours: &str, unit, want, theirs: &str| {
        Goal::new(Section::Subnets, ours, unit, want, vec![theirs.to_owned()], "")
    };
    let [switched_ping, switched_stream, ping, stream] = subnet::NAMES;
    let [datagrams, packets, connected, tcp, udp] = ipoib::NAMES;
    vec![
        // One part in 0.95, as for the bandwidth.
        goal(switched_ping, "µs", Want::AtMost(1.05), ping),
        goal(switched_stream, "MiB/s", Want::AtLeast(0.95), stream),
        goal(datagrams, "MiB/s", Want::Compared, tcp),
        goal(connected, "MiB/s", Want::Compared, tcp),
        goal(packets, "MiB/s", Want::Compared, udp),
    ]
}

fn control() -> Vec<Goal> {
    use Want::{AtMost, Within};
    let goal = |ours: &str, unit, want, theirs| Goal::new(Section::Control, ours, unit, want, theirs, "");
    let commands =
        |ours, times| Goal { times, ..goal(ours, "µs", AtMost(1.5), [base("socket"), base("nearby")].concat()) };
    vec![
        Goal { cause: cause::STARTUP, ..goal(STARTUP, "ms", Within(5.0), Vec::new()) }
            .called("a start of `/bin/true` under `softhca run`, more than alone"),
        commands("controls qp", QP_COMMANDS).called("create_qp, RTS and destroy_qp"),
        Goal { cause: cause::REGION, ..commands("controls mr", MR_COMMANDS) }.called("reg_mr and dereg_mr of 1 GiB"),
        goal("controls pages", "pages", Within(0.0), Vec::new())
            .called("reg_mr of 1 GiB, pages of it that are touched"),
        goal("controls memory AGENT", "bytes", Within(4096.0), Vec::new())
            .called("one of 10000 idle queue pairs, with queues of one request"),
        goal(CONNECT[0], "µs", AtMost(1.5), vec![CONNECT[1].to_owned()])
            .called("create and connect each of 10000 queue pairs, beside 100"),
        goal(POLL[0], "ns", AtMost(1.5), vec![POLL[1].to_owned()])
            .called("an empty poll with 10000 connected queue pairs, beside 100"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::path::Path;

    use super::super::report;
    use super::super::verdict::Verdict;
    use super::super::{GroupFigures, probes};
    use super::{Section, Want, all, ipoib, iwarp, subnet, wire};

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
    }

    /// A goal without a figure could never be missed.
    #[test]
    fn every_goal_is_measured() {
        let mut known: HashSet<String> =
            probes::Group::MEASURED.iter().flat_map(|group| probes::of(*group)).map(|probe| probe.name).collect();
        let names = [&wire::NAMES[..], &iwarp::NAMES].concat();
        known.extend(subnet::NAMES.iter().chain(&ipoib::NAMES).map(|name| (*name).to_owned()));
        known.extend(wire::MTUS.iter().flat_map(|mtu| names.iter().map(|name| wire::named(name, *mtu))));
        for goal in all() {
            assert!(known.contains(&goal.ours), "{} is not measured", goal.ours);
            let beside = goal.theirs.iter().any(|name| known.contains(name));
            assert!(beside || matches!(goal.want, Want::Within(_)), "{}: {:?}", goal.ours, goal.theirs);
        }
    }

    /// And a probe that no goal and no plot needs would only cost time.
    #[test]
    fn every_probe_is_needed() {
        let goals = all();
        let plotted = report::plotted();
        for probe in probes::Group::MEASURED.iter().flat_map(|group| probes::of(*group)) {
            let counts = goals.iter().any(|goal| goal.ours == probe.name || goal.theirs.contains(&probe.name));
            assert!(counts || plotted.contains(&probe.name), "nothing needs {}", probe.name);
        }
    }

    #[test]
    fn every_part_has_goals() {
        for part in Section::ALL {
            assert!(all().iter().any(|goal| goal.part == part), "{part:?}");
        }
    }

    #[test]
    fn every_link_of_a_cause_leads_to_a_section() {
        let page = fs::read_to_string(docs().join("performance.md")).unwrap();
        let anchors: HashSet<String> = page
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| anchor(line.trim_start_matches('#')))
            .collect();
        for goal in all() {
            let Some((_, link)) = goal.cause.split_once("](#") else { continue };
            assert!(anchors.contains(link.trim_end_matches(')')), "{}: {link}", goal.what);
        }
    }

    fn anchor(heading: &str) -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
        kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    #[test]
    fn every_goal_that_stored_figures_miss_has_a_cause() {
        let goals = all();
        for (_, figures) in GroupFigures::stored(&docs().join("performance")).unwrap().into_values().flatten() {
            let chosen = figures.chosen();
            for verdict in goals.iter().filter_map(|goal| Verdict::of(goal, &chosen)).filter(|verdict| !verdict.met) {
                assert!(!verdict.goal.cause.is_empty(), "{} has no cause", verdict.goal.what);
            }
        }
    }
}
