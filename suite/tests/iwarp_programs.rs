//! Programs of others on iWARP devices, beyond those of `iwarp.rs`: options of perftest, qperf, fio,
//! libfabric, and the pyverbs tests. Also programs that need what iWARP does not have: they get an
//! error at once.

use harness::port::{self, Port};
use harness::pyverbs::{Pyverbs, Verdict, cases};
use harness::{Family, HANG, Hosts, Place, Room, Sides, User};

const AGENT: &[&str] = &["--transport", "iwarp"];

fn room(user: User) -> Room {
    Room::of(user).expect("a room").with_agent(AGENT).expect("an agent")
}

/// Runs a server and its client. Programs that tell the client their port before they listen there
/// (qperf 0.4.11 does) are run again if the client was too fast.
#[track_caller]
fn must_meet(place: &Place<'_>, server: &str, client: &str) -> Sides {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let sides = place.meet(server, client).unwrap_or_else(|why| panic!("{why}"));
        if sides.client.succeeded() || !sides.client.everything().contains("refused") {
            let sides = Sides::must_succeed(&[client], Ok(sides));
            place.must_be_empty();
            return sides;
        }
    }
    panic!("{client}: too early {TRIES} times");
}

/// perftest's `ib_send_bw -e` is missing: its client waits for a completion event, and none comes
/// if all that it awaits is the server's credits for more sends.
#[test]
fn perftest_with_options() {
    for program in [
        "ib_send_lat -R -a -n 20",
        "ib_send_lat -R -e",
        "ib_read_bw -R -e",
        "ib_send_bw -R -b -q 4 -n 200",
        "ib_write_bw -R -q 16 -l 16 -n 320",
        "ib_write_bw -R -D 2",
        "ib_read_bw -R -b -s 100000 -n 100",
        "ib_atomic_bw -R -n 100",
    ] {
        let room = room(User::Nobody);
        let line = format!("{program} -p PORT");
        must_meet(&room.place(Family::V4), &line, &format!("{line} ADDRESS"));
    }
}

/// On a host with IPv4 addresses. Hosts without IPv6 have none of these.
#[test]
fn loopback_has_ipv6_and_mapped_addresses() {
    let room = room(User::Nobody);
    let place = room.place(Family::V4);
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    for (server, client) in [("::1", "::1"), ("::", "::1"), ("0.0.0.0", "::ffff:127.0.0.1"), ("::", "127.0.0.1")] {
        must_meet(&place, &format!("rping -s -a {server} -p PORT -C 3"), &format!("rping -c -a {client} -p PORT -C 3"));
    }
}

#[test]
fn qperf_measures_reliable_connections() {
    let tests = "rc_lat rc_rdma_read_bw rc_rdma_write_poll_lat rc_fetch_add_mr ver_rc_compare_swap";
    let room = room(User::Nobody);
    let client = format!("qperf -lp PORT -cm1 ADDRESS -t 1 {tests}");
    let sides = must_meet(&room.place(Family::V4), "qperf -lp PORT", &client);
    for test in tests.split_whitespace() {
        assert!(sides.client.output.contains(&format!("{test}:\n")), "no {test}: {}", sides.client.told());
    }
}

#[test]
fn fio_writes_and_reads() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let hosts = hosts.with_agents(AGENT).expect("agents");
    let options = "--ioengine=rdma --port=PORT --bs=64k --size=4m";
    for verb in ["write", "read"] {
        let server = format!("fio --name=server {options} --rw=read --iodepth=16");
        let client = format!(
            "fio --name=client {options} --hostname=ADDRESS --verb={verb} --rw=write --iodepth=4 \
             --iodepth_batch_complete_min=1"
        );
        let sides = hosts.place(Family::V4).must_meet(&server, &client);
        assert!(sides.client.output.contains("err= 0"), "{verb}: {}", sides.client.told());
    }
}

#[test]
fn many_connections_at_once() {
    let room = room(User::Nobody);
    let place = room.place(Family::V4);
    place.must_meet("ucmatose -b ADDRESS -p PORT -c 300 -C 2", "ucmatose -s ADDRESS -p PORT -c 300 -C 2");
    place.must_meet("cmtime -b ADDRESS -p PORT", "cmtime -s ADDRESS -p PORT -c 100");
}

/// rping makes its queue pair itself if it is called with `-q`, as the server or as the client.
#[test]
fn rping_with_a_queue_pair_of_its_own() {
    let room = room(User::Nobody);
    let place = room.place(Family::V4);
    for (server, client) in [("-q", ""), ("", "-q"), ("-q", "-q")] {
        must_meet(
            &place,
            &format!("rping -s -a ADDRESS -p PORT -C 5 {server}"),
            &format!("rping -c -a ADDRESS -p PORT -C 5 {client}"),
        );
    }
}

/// Datagrams, multicast, immediate data: the programs end, and the reason says why.
#[test]
fn refusals_are_immediate_and_have_a_reason() {
    for (program, reason) in [
        ("ibv_ud_pingpong", "RC QPs only, not UD"),
        ("ibv_uc_pingpong", "RC QPs only, not UC"),
        ("mckey -m 239.47.91.2 -b 127.0.0.1", "RC QPs only, not UD"),
        ("udpong -s 127.0.0.1", "RC QPs only, not UD"),
    ] {
        let room = room(User::Nobody);
        let words: Vec<&str> = program.split_whitespace().collect();
        let outcome = room.finish_run(&words).expect("it ends");
        assert!(!outcome.succeeded() && outcome.everything().contains(reason), "{}", outcome.told());
        room.wait_until_all_is_forgotten(HANG).expect("nothing is left");
    }
}

/// Connected endpoints, and reliable datagrams over them. The program compares the content.
#[test]
fn libfabric_pingpong() {
    let room = room(User::Nobody);
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let port = Port::reserve().expect("a port");
        let at = port.number().to_string();
        let words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", "20", "-S", "4096"];
        let mut server = room.start(room.run(&[&words[..], &["-B", &at]].concat())).expect("it starts");
        port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
        let client = room.finish_run(&[&words[..], &["-P", &at, "127.0.0.1"]].concat()).expect("it ends");
        assert!(client.expect_success().output.contains("=20"), "{}", server.everything());
        server.wait(HANG).expect("it ends").expect_success();
    }
}

/// As [`libfabric_pingpong`], between hosts. The server listens at the address of `localhost`, which
/// is that of its host here.
#[test]
fn libfabric_pingpong_between_hosts() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let hosts = hosts.with_agents(AGENT).expect("agents");
    let (left, right) = (hosts.left.room(), hosts.right.room());
    let address = hosts.left.rendezvous();
    let names = left.folder().join("hosts");
    std::fs::write(&names, format!("{address} localhost\n")).expect("written");
    for (provider, endpoint) in [("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let port = Port::reserve().expect("a port");
        let at = port.number().to_string();
        let words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", "20", "-S", "65536"];
        let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", names.display());
        let named = ["unshare", "--mount", "sh", "-c", &script, "sh"];
        let mut server = left.start(left.run(&[&named[..], &words, &["-B", &at]].concat())).expect("it starts");
        port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
        let client = right.finish_run(&[&words[..], &["-P", &at, &address]].concat()).expect("it ends");
        assert!(client.expect_success().output.contains("=20"), "{}", server.everything());
        server.wait(HANG).expect("it ends").expect_success();
    }
    hosts.place(Family::V4).must_be_empty();
}

/// UCX supports no iWARP device, and says so at its most detailed level only.
#[test]
fn ucx_takes_no_iwarp_device() {
    let room = room(User::Nobody);
    let outcome = room.finish_run(&["ucx_info", "-d"]).expect("it ends").expect_success();
    assert!(!outcome.output.contains("Device: softhca0"), "{}", outcome.told());
}

/// The tests for every device run without a GID, and skip traffic: they skip GIDs that end with
/// eight bytes of zeros, as those of iWARP adapters do.
#[test]
fn the_pyverbs_tests_pass_or_skip() {
    let room = room(User::Me);
    let pyverbs = Pyverbs::unpack(&room).expect("the tests");
    let (mut passed, mut failed) = (0, Vec::new());
    for module in ["test_addr", "test_cq", "test_cqex", "test_device", "test_mr", "test_pd", "test_qp", "test_fork"] {
        for case in pyverbs.run(module).unwrap_or_else(|told| panic!("{module}: {told}")) {
            match case.verdict {
                Verdict::Passed => passed += 1,
                Verdict::Skipped(_) => {}
                Verdict::Failed => failed.push(case.name),
            }
        }
    }
    assert!(failed.is_empty() && passed >= 30, "{passed} passed, failed: {failed:?}");
}

/// With a GID, the tests of connections run. The others of the module need datagrams, multicast, a
/// peer that tries a SEND again (the client with a QP of its own posts its receive request when its
/// own SEND is complete), or a WRITE whose completion says that the peer has it.
#[test]
fn the_pyverbs_tests_of_connections_pass() {
    let room = room(User::Me);
    let pyverbs = Pyverbs::unpack(&room).expect("the tests");
    let mut words = pyverbs.words("test_rdmacm");
    words.extend(["--dev", "softhca0", "--port", "1", "--gid", "0"].map(str::to_owned));
    let outcome = room.finish_run(&words.iter().map(String::as_str).collect::<Vec<_>>()).expect("it ends");
    let cases = cases("test_rdmacm", &outcome.errors);
    for name in ["sync_traffic", "async_traffic", "async_reject_traffic", "async_read"] {
        let name = format!("CMTestCase.test_rdmacm_{name}");
        let passed = cases.iter().any(|case| case.name == name && case.verdict == Verdict::Passed);
        assert!(passed, "{name}: {}", outcome.told());
    }
}

/// The same tests, with each side on a host of its own.
#[test]
fn the_pyverbs_tests_of_connections_pass_between_hosts() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let hosts = hosts.with_agents(AGENT).expect("agents");
    let pyverbs = Pyverbs::unpack(hosts.left.room()).expect("the tests");
    for family in [Family::V4, Family::V6] {
        let place = hosts.place(family);
        for name in ["sync_traffic", "async_traffic", "async_reject_traffic", "async_read"] {
            let line = pyverbs.side(&format!("test_rdmacm_{name}"));
            let mut server = place.serve(&line).unwrap_or_else(|why| panic!("{name}: {why}"));
            let mut client = place.call(&server, &format!("{line} client")).expect("it starts");
            for side in [&mut client, &mut server.program] {
                let outcome = side.wait(HANG).expect("it ends").expect_success();
                assert!(outcome.output.contains(&format!("test_rdmacm_{name} passed")), "{}", outcome.told());
            }
            place.must_be_empty();
        }
    }
}
