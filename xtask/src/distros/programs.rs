//! The programs that run in every release, with the words that they are given, and the failures that are understood.
//!
//! A server's and a client's words go to `meet.sh`. All of it runs as an ordinary user, on one host. The words are those that every release
//! understands; `cmtime` has others in each, and is not here.

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// What the table calls it.
    pub(crate) name: &'static str,
    /// How it is run.
    pub(crate) way: Way,
    /// It is part of the short form.
    pub(crate) is_short: bool,
}

/// How a program is run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Alone; its output must contain the second text.
    Alone(&'static str, &'static str),
    /// When the server is ready, as `meet.sh` says it; the server's words, and the client's.
    Meet(&'static str, &'static str, &'static str),
    /// rdma-core's Python tests.
    Pyverbs,
}

const fn alone(name: &'static str, words: &'static str, says: &'static str) -> Program {
    Program { name, way: Way::Alone(words, says), is_short: false }
}

const fn meet(name: &'static str, ready: &'static str, server: &'static str, client: &'static str) -> Program {
    Program { name, way: Way::Meet(ready, server, client), is_short: false }
}

/// Both sides have the same words, and the client gets the server's address after them.
macro_rules! pair {
    ($port:literal, $words:literal) => {
        meet($words, $port, $words, concat!($words, " 127.0.0.1"))
    };
}

/// UCX names its transports and its device; a device on loopback is not what it would choose by itself.
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

/// All of them.
pub(crate) const ALL: &[Program] = &[
    alone("ibv_devices", "ibv_devices", "softhca0"),
    short(alone("ibv_devinfo -v", "ibv_devinfo -v", "PORT_ACTIVE")),
    short(pair!("18515", "ibv_rc_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_uc_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_ud_pingpong -g 0 -c")),
    short(pair!("18515", "ibv_srq_pingpong -g 0 -c")),
    pair!("18515", "ibv_xsrq_pingpong -g 0"),
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
    meet(
        "rstream",
        "cm",
        "rstream -b 127.0.0.1 -T v -I 20 -C 10 -S 65536",
        "rstream -s 127.0.0.1 -T v -I 20 -C 10 -S 65536",
    ),
    meet("riostream", "cm", "riostream -b 127.0.0.1 -T v -C 10 -S 65536", "riostream -s 127.0.0.1 -T v -C 10 -S 65536"),
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
    Program { name: "pyverbs tests", way: Way::Pyverbs, is_short: false },
];

/// Failures that are understood: words of the failure, and why it comes.
pub(crate) const EXPLAINED: &[(&str, &str)] = &[
    (
        "version `IBVERBS_",
        "The program was built with a newer rdma-core, and wants a symbol version that this build's libibverbs.so.1 does not export.",
    ),
    (
        "version `RDMACM_",
        "The program was built with a newer rdma-core, and wants a symbol version that this build's librdmacm.so.1 does not export.",
    ),
    (
        ", version IBVERBS_PRIVATE_",
        "The program loads a driver library of rdma-core, which wants a function for drivers that this build's libibverbs.so.1 does not export.",
    ),
    (
        "softhca0:1\"",
        "This release's libucx0 is built without UCX's transport for verbs: it has no libuct_ib.so, so no RDMA device is used, softhca or not.",
    ),
    (
        "Failed to run test: No such device",
        "This release's libucx0 is built without UCX's transport for verbs: it has no libuct_ib.so, so no RDMA device is used, softhca or not.",
    ),
    (
        "test_multi_process_alloc_dm",
        "The test gives open verbs objects to processes that it starts. Python 3.14 sends them to a fork server, and they cannot be pickled; no call of the verbs fails.",
    ),
];

/// Why a failure comes, if it is understood.
pub(crate) fn explained(why: &str) -> Option<&'static str> {
    EXPLAINED.iter().find(|(words, _)| why.contains(words)).map(|(_, explanation)| *explanation)
}
