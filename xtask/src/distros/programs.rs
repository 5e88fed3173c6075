//! The programs that run in every release, with their arguments, and the failures whose cause is
//! known.
//!
//! `meet.sh` gets the arguments of a server and its client. All programs run as an ordinary user,
//! on one host, with arguments that every release understands. [`LEFT_OUT`] lists the programs that
//! do not run here.

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// How it is run.
    pub(crate) way: RunMode,
    /// Whether it is part of the short form.
    pub(crate) is_short: bool,
}

/// How a program is run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RunMode {
    /// Alone. Its output must contain the second text.
    Alone(&'static str, &'static str),
    /// A server and its client: how `meet.sh` recognizes that the server is ready, and the
    /// arguments of both.
    Meet(&'static str, &'static str, &'static str),
    /// rdma-core's Python tests.
    Pyverbs,
}

const fn alone(name: &'static str, words: &'static str, says: &'static str) -> Program {
    Program { name, way: RunMode::Alone(words, says), is_short: false }
}

const fn meet(name: &'static str, ready: &'static str, server: &'static str, client: &'static str) -> Program {
    Program { name, way: RunMode::Meet(ready, server, client), is_short: false }
}

/// Both sides get the same arguments; the client also gets the server's address.
macro_rules! pair {
    ($port:literal, $words:literal) => {
        meet($words, $port, $words, concat!($words, " 127.0.0.1"))
    };
}

/// UCX gets the names of its transports and its device; by itself it would not choose a device on
/// loopback.
macro_rules! ucx {
    ($name:literal, $test:literal) => {
        meet(
            $name,
            "13337",
            "env UCX_NET_DEVICES=softhca0:1 UCX_TLS=rc_verbs,ud_verbs ucx_perftest",
            concat!(
                "env UCX_NET_DEVICES=softhca0:1 UCX_TLS=rc_verbs,ud_verbs ucx_perftest -n 500 -w 50 ",
                $test,
                " 127.0.0.1"
            ),
        )
    };
}

const fn short(program: Program) -> Program {
    Program { is_short: true, ..program }
}

/// It watches events until it is ended. The port goes down and comes up, and it must report both
/// events.
const WATCH: &str = "sh -c 'cd /tmp; stdbuf -oL ibv_asyncwatch >watch.out 2>&1 & \
    until grep -q \"event FD\" watch.out; do sleep 0.05; done; softhca fault add port-down for 100ms; \
    until grep -q EVENT_PORT_ACTIVE watch.out; do sleep 0.05; done; kill $!; cat watch.out'";

/// All programs.
pub(crate) const ALL: &[Program] = &[
    alone("ibv_devices", "ibv_devices", "softhca0"),
    short(alone("ibv_devinfo -v", "ibv_devinfo -v", "PORT_ACTIVE")),
    short(pair!("18515", "ibv_rc_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_uc_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_ud_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_srq_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_xsrq_pingpong -g 0")),
    alone("ibv_asyncwatch", WATCH, "EVENT_PORT_ERR"),
    short(pair!("18515", "ib_send_bw")),
    short(pair!("18515", "ib_send_lat")),
    short(pair!("18515", "ib_write_bw")),
    short(pair!("18515", "ib_write_lat")),
    short(pair!("18515", "ib_read_bw")),
    pair!("18515", "ib_read_lat"),
    short(pair!("18515", "ib_atomic_bw")),
    pair!("18515", "ib_atomic_lat"),
    pair!("18515", "ib_send_lat -c UD"),
    pair!("18515", "ib_write_bw -c UC"),
    meet("ib_write_bw -R", "cm", "ib_write_bw -R", "ib_write_bw -R 127.0.0.1"),
    short(meet("rping", "cm", "rping -s -a 127.0.0.1 -C 10 -V", "rping -c -a 127.0.0.1 -C 10 -V")),
    meet("ucmatose", "cm", "ucmatose -b 127.0.0.1 -c 10", "ucmatose -s 127.0.0.1 -c 10"),
    meet("udaddy", "cm", "udaddy -b 127.0.0.1", "udaddy -s 127.0.0.1"),
    meet("rdma_client", "cm", "rdma_server -s 127.0.0.1", "rdma_client -s 127.0.0.1"),
    meet("rdma_xclient", "cm", "rdma_xserver -c r", "rdma_xclient -s 127.0.0.1 -c r"),
    meet("mckey", "group", "mckey -m 239.47.91.2 -b 192.0.2.1 -C 10", "mckey -m 239.47.91.2 -b 192.0.2.1 -C 10 -s"),
    meet(
        "rstream",
        "cm",
        "rstream -b 127.0.0.1 -T v -I 20 -C 10 -S 65536",
        "rstream -s 127.0.0.1 -T v -I 20 -C 10 -S 65536",
    ),
    meet("riostream", "cm", "riostream -b 127.0.0.1 -T v -C 10 -S 65536", "riostream -s 127.0.0.1 -T v -C 10 -S 65536"),
    meet("rcopy", "cm", "rcopy", "rcopy /usr/bin/rcopy 127.0.0.1:/tmp/copy"),
    meet("cmtime", "cm", "cmtime -b 127.0.0.1", "cmtime -s 127.0.0.1"),
    meet("udpong", "udp:7174", "udpong -b 127.0.0.1 -C 100 -S 1000", "udpong -s 127.0.0.1 -C 100 -S 1000"),
    meet("qperf -cm1 rc_lat rc_bw", "19765", "qperf", "qperf -cm1 127.0.0.1 -t 1 rc_lat rc_bw"),
    alone("ucx_info -d", "ucx_info -d", "softhca0:1"),
    ucx!("ucx_perftest -t tag_lat", "-t tag_lat -s 8"),
    ucx!("ucx_perftest -t ucp_put_bw", "-t ucp_put_bw -s 4096"),
    alone("fi_info -p verbs", "fi_info -p verbs", "domain: softhca0"),
    meet(
        "fi_pingpong -p verbs -e msg",
        "47592",
        "fi_pingpong -p verbs -e msg -I 50 -S 1024",
        "fi_pingpong -p verbs -e msg -I 50 -S 1024 127.0.0.1",
    ),
    meet(
        "fi_pingpong -p 'verbs;ofi_rxd'",
        "47592",
        "fi_pingpong -p verbs;ofi_rxd -e rdm -d softhca0-dgram -c -I 50 -S 1024",
        "fi_pingpong -p verbs;ofi_rxd -e rdm -d softhca0-dgram -c -I 50 -S 1024 127.0.0.1",
    ),
    alone("rdma link", "rdma link", "link softhca0/1 state ACTIVE"),
    alone("rdma dev", "rdma dev", "softhca0: node_type ca"),
    alone("rdma resource show", "rdma resource show", "softhca0: pd 0"),
    Program { name: "pyverbs tests", way: RunMode::Pyverbs, is_short: false },
];

/// The programs of these packages that are not in the list, with the reason.
pub(crate) const LEFT_OUT: &[(&str, &str)] = &[
    (
        "`raw_ethernet_bw`, `raw_ethernet_lat`, `raw_ethernet_burst_lat`, `raw_ethernet_fs_rate`",
        "they send raw packets, which softhca does not have",
    ),
    (
        "`run_perftest_loopback`, `run_perftest_multi_devices`",
        "they are scripts that start the programs above, on given processors or on several devices",
    ),
    (
        "`ucx_perftest_daemon`, `io_demo`",
        "they are parts of tests of UCX with several hosts; `ucx_perftest` uses the same transports",
    ),
    ("`ucx_read_profile`, `ucx_vfs`, `fi_strerror`", "they use no device"),
];

/// A failure whose cause is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Explanation {
    /// The release's name in the archive.
    pub(crate) suite: &'static str,
    /// The program's name in the table.
    pub(crate) program: &'static str,
    /// The complete failure text on the page.
    pub(crate) failure: &'static str,
    /// The cause.
    pub(crate) why: &'static str,
}

const NO_VERBS: &str = "This release's libucx0 is built without UCX's transport for verbs: it has no libuct_ib.so, so no RDMA device is used, softhca or not.";
const NO_DEVICE: &str = "ends with 255: perftest_run.c:363  UCX  ERROR Failed to run test: No such device";

/// All failures whose cause is known. Another failure of the same program is an error.
pub(crate) const EXPLAINED: &[Explanation] = &[
    Explanation { suite: "sid", program: "ucx_info -d", failure: "it says nothing of \"softhca0:1\"", why: NO_VERBS },
    Explanation { suite: "sid", program: "ucx_perftest -t tag_lat", failure: NO_DEVICE, why: NO_VERBS },
    Explanation { suite: "sid", program: "ucx_perftest -t ucp_put_bw", failure: NO_DEVICE, why: NO_VERBS },
    Explanation {
        suite: "sid",
        program: "pyverbs tests",
        failure: "1 fail: test_device DMTest.test_multi_process_alloc_dm",
        why: "The test gives open verbs objects to processes that it starts. Python 3.14 sends them to a fork server, and they cannot be pickled; no call of the verbs fails.",
    },
];

/// Returns the cause of a failure, if it is known.
pub(crate) fn explained(suite: &str, program: &str, failure: &str) -> Option<&'static str> {
    let is_it = |row: &&Explanation| (row.suite, row.program, row.failure) == (suite, program, failure);
    EXPLAINED.iter().find(is_it).map(|row| row.why)
}
