//! iWARP: the programs of rdmacm-utils and perftest on devices that carry RDMA over TCP, on one
//! host and between network namespaces; how connections fail and end; what the devices show.

use harness::manager::{Place, Server};
use harness::slicer::Slicer;
use harness::{Family, HANG, Hosts, Program, Room, Sides, User, cprogram, lists, program};
use rustix::process::Signal;

const AGENT: &[&str] = &["--transport", "iwarp"];

fn room() -> Room {
    Room::of(User::Me).expect("a room").with_agent(AGENT).expect("an agent")
}

fn hosts() -> Option<Hosts> {
    let hosts = Hosts::joined(1500, User::Me).expect("two namespaces")?;
    Some(hosts.with_agents(AGENT).expect("agents"))
}

/// One test for each row, on one host and between namespaces.
macro_rules! programs {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        mod one_host { $(
            #[test]
            fn $name() {
                super::room().place(super::Family::V4).must_meet($server, $client);
            }
        )* }
        mod namespaces { $(
            #[test]
            fn $name() {
                let Some(hosts) = super::hosts() else { return };
                hosts.place(super::Family::V4).must_meet($server, $client);
            }
        )* }
    };
}

programs! {
    rping: "rping -s -a ADDRESS -p PORT -C 20 -v" => "rping -c -a ADDRESS -p PORT -C 20 -v";
    rping_large: "rping -s -a ADDRESS -p PORT -C 5 -S 65000 -V" => "rping -c -a ADDRESS -p PORT -C 5 -S 65000 -V";
    ucmatose: "ucmatose -b ADDRESS -p PORT -c 20 -C 10" => "ucmatose -s ADDRESS -p PORT -c 20 -C 10";
    rdma_client: "rdma_server -s ADDRESS -p PORT" => "rdma_client -s ADDRESS -p PORT";
}

/// One test for each row, on one host and between namespaces.
macro_rules! perftests {
    ($($name:ident: $program:literal;)*) => {
        mod perftest_one_host { $(
            #[test]
            fn $name() {
                let room = super::room();
                super::perftest(room.place(super::Family::V4), $program);
            }
        )* }
        mod perftest_namespaces { $(
            #[test]
            fn $name() {
                let Some(hosts) = super::hosts() else { return };
                super::perftest(hosts.place(super::Family::V4), $program);
            }
        )* }
    };
}

perftests! {
    send_lat: "ib_send_lat -R";
    send_bw: "ib_send_bw -R";
    write_lat: "ib_write_lat -R";
    write_bw: "ib_write_bw -R";
    read_lat: "ib_read_lat -R";
    read_bw: "ib_read_bw -R";
}

/// Runs perftest. Its client may call before its server listens, and then it is run again.
#[track_caller]
fn perftest(place: harness::Place<'_>, program: &str) {
    const TRIES: usize = 10;
    let client = format!("{program} -p PORT ADDRESS");
    for _ in 0..TRIES {
        let sides = Sides::measured(|| place.meet(&format!("{program} -p PORT"), &client));
        let sides = sides.unwrap_or_else(|why| panic!("{why}"));
        if sides.client.succeeded() || !sides.client.everything().contains("refused") {
            let words: Vec<&str> = client.split_whitespace().collect();
            lists::expect_figures(&words, &Sides::must_succeed(&words, Ok(sides)));
            return place.must_be_empty();
        }
    }
    panic!("the client has come too early {TRIES} times");
}

#[track_caller]
fn said(program: &mut Program, words: &str) {
    program.wait_for_words(words, HANG).unwrap_or_else(|why| panic!("{why}"));
}

/// A listener and a caller of `refusals` that go as far as these states.
fn pair(room: &Room, listens: &str, calls: &str) -> (Server, Program) {
    let path = cprogram::build_with(room, "refusals", &["-lrdmacm"]).expect("it compiles");
    let line = |option: &str, state: &str| format!("{} -a ADDRESS -p PORT {option} {state}", path.display());
    let place = room.place(Family::V4);
    let server = place.serve(&line("-l", listens)).expect("it listens");
    let client = place.call(&server, &line("-c", calls)).expect("it starts");
    (server, client)
}

#[test]
fn iw_reject_brings_its_private_data() {
    let room = room();
    let (_server, mut client) = pair(&room, "reject", "established");
    said(&mut client, "RDMA_CM_EVENT_REJECTED status -104 private not today");
}

#[test]
fn nobody_listening_is_a_rejection() {
    let room = room();
    let (mut server, mut client) = pair(&room, "accept", "disconnect");
    client.wait(HANG).expect("it ends");
    server.program.wait(HANG).expect("it ends");
    let port = harness::port::Port::reserve().expect("a port");
    let words = ["rping", "-c", "-a", "127.0.0.1", "-p", &port.number().to_string(), "-C", "1"];
    let outcome = room.finish(room.run(&words)).expect("it ends");
    assert!(!outcome.succeeded() && outcome.everything().contains("REJECTED"), "{}", outcome.told());
}

#[test]
fn a_connection_that_the_client_cannot_take_ends_at_the_server() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room").with_agent(AGENT).expect("an agent");
        let path = cprogram::build_with(&room, "untaken", &["-lrdmacm"]).expect("it compiles").display().to_string();
        let outcome = room.finish_run(&[&path, "127.0.0.1"]).expect("it ends").expect_success();
        assert!(outcome.output.contains("the server was told"), "{}", outcome.told());
    }
}

#[test]
fn accept_moves_a_queue_pair_that_the_program_has_made_itself() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room").with_agent(AGENT).expect("an agent");
        let path = cprogram::build_with(&room, "ownqp", &["-lrdmacm"]).expect("it compiles").display().to_string();
        let outcome = room.finish_run(&[&path, "127.0.0.1"]).expect("it ends").expect_success();
        assert!(outcome.output.contains("4 connections"), "{}", outcome.told());
        room.wait_until_all_is_forgotten(HANG).expect("nothing is left");
    }
}

/// The events and statuses are those of Linux's rdma_cm for iWARP.
#[test]
fn the_error_of_tcp_is_the_status_of_the_event() {
    let Some(hosts) = hosts() else { return };
    let room = hosts.right.room();
    let path = cprogram::build_with(room, "refusals", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let peer = hosts.left.address(Family::V4).to_string();
    for (answer, event) in [
        ("tcp reset", "RDMA_CM_EVENT_REJECTED status -111"),
        ("icmp type port-unreachable", "RDMA_CM_EVENT_REJECTED status -111"),
        ("icmp type host-unreachable", "RDMA_CM_EVENT_CONNECT_ERROR status -113"),
        ("icmp type admin-prohibited", "RDMA_CM_EVENT_CONNECT_ERROR status -113"),
        ("icmp type net-unreachable", "RDMA_CM_EVENT_CONNECT_ERROR status -101"),
    ] {
        let rules = format!(
            "nft flush ruleset; nft 'table ip filter {{ chain in {{ type filter hook input priority 0; tcp dport 7471 reject with {answer}; }}; }}'"
        );
        hosts.left.namespace().script(&rules).expect("a rule");
        let words = [&path, "-a", &peer, "-p", "7471", "-c", "established"];
        let outcome = room.finish(room.run(&words)).expect("it ends");
        assert!(outcome.everything().contains(event), "{answer}: {}", outcome.told());
    }
}

#[test]
fn iw_close_a_disconnect_reaches_both_sides() {
    let room = room();
    let (mut server, mut client) = pair(&room, "accept", "disconnect");
    for side in [&mut server.program, &mut client] {
        said(side, "RDMA_CM_EVENT_ESTABLISHED status 0");
        said(side, "RDMA_CM_EVENT_DISCONNECTED status 0");
        assert_eq!(side.wait(HANG).expect("it ends").code, 0);
    }
    room.wait_until_all_is_forgotten(HANG).expect("nothing is left");
}

#[test]
fn a_killed_peer_is_a_disconnected_peer() {
    let room = room();
    let (mut server, mut client) = pair(&room, "accept", "established");
    said(&mut server.program, "RDMA_CM_EVENT_ESTABLISHED status 0");
    said(&mut client, "RDMA_CM_EVENT_ESTABLISHED status 0");
    let pid = client.inner("refusals", HANG).expect("it runs");
    program::send(pid, Signal::KILL);
    said(&mut server.program, "RDMA_CM_EVENT_DISCONNECTED status 0");
    assert_eq!(server.program.wait(HANG).expect("it ends").code, 0);
}

#[test]
fn iw_terminate_reasons_name_layer_type_and_code() {
    for (request, reason) in [
        ("write", "DDP, tagged buffer: the STag is invalid (1/1/0x0)"),
        ("write-domain", "DDP, tagged buffer: the STag is not associated with this stream (1/1/0x2)"),
        ("read-domain", "RDMAP, remote protection: the STag is not associated with this stream (0/1/0x3)"),
        ("send", "DDP, untagged buffer: no receive is posted for the message (1/2/0x2)"),
        ("send-long", "DDP, untagged buffer: the message is too long for its buffer (1/2/0x5)"),
    ] {
        let room = room();
        let path = cprogram::build_with(&room, "terminates", &["-lrdmacm"]).expect("it compiles");
        let line = |option: &str| format!("{} -a ADDRESS -p PORT {option}", path.display());
        let place = room.place(Family::V4);
        let mut serving = place.serve(&line("-l")).expect("it listens");
        let mut calling = place.call(&serving, &line(&format!("-c {request}"))).expect("it starts");
        let [client, server] = [&mut calling, &mut serving.program].map(|side| {
            let outcome = side.wait(HANG).expect("it ends");
            assert_eq!(outcome.code, 2, "{}", outcome.told());
            outcome.everything()
        });
        assert!(server.contains(&format!("ended the stream: {reason}")), "{server}");
        assert!(client.contains(&format!("got a Terminate message: {reason}")), "{client}");
    }
}

/// `leaves` writes until the socket is full, because its peer stands still, and then ends.
#[test]
fn completed_writes_arrive_although_the_program_has_ended() {
    let room = room();
    let path = cprogram::build_with(&room, "leaves", &["-lrdmacm"]).expect("it compiles");
    let line = |option: &str| format!("{} -a ADDRESS -p PORT {option}", path.display());
    let place = room.place(Family::V4);
    let mut serving = place.serve(&line("-l")).expect("it listens");
    let client = place.call(&serving, &line("-c")).expect("it starts").wait(HANG).expect("it ends");
    let server = serving.program.wait(HANG).expect("it ends");
    let [completed, arrived] = [("completed ", client), ("arrived ", server)].map(|(word, outcome)| {
        let output = outcome.expect_success().output;
        let count = output.lines().find_map(|line| line.strip_prefix(word));
        count.and_then(|count| count.parse::<u32>().ok()).unwrap_or_else(|| panic!("{output}"))
    });
    assert!((1..1024).contains(&completed), "{completed}: the socket was never full");
    assert!(arrived >= completed, "{completed} of 1024 writes have completed, {arrived} have arrived");
}

#[test]
fn show_qp_has_the_tcp_connection_of_both_sides() {
    let room = room();
    let (mut server, mut client) = pair(&room, "accept", "established");
    said(&mut server.program, "RDMA_CM_EVENT_ESTABLISHED status 0");
    said(&mut client, "RDMA_CM_EVENT_ESTABLISHED status 0");
    // The initiator's ready-to-receive message arrives.
    let mut rows = Vec::new();
    harness::wait::until(HANG, "a message", || {
        rows = room.json(&["show", "qp", "--json"]).ok()?["qps"].as_array()?.clone();
        rows.iter().any(|row| row["stream"]["received_bytes"].as_u64() > Some(0)).then_some(())
    })
    .expect("it is counted");
    let [one, other] = [0, 1].map(|row| &rows[row]["stream"]);
    assert_eq!((&one["local"], &one["remote"]), (&other["remote"], &other["local"]), "{rows:?}");
    let at = format!("127.0.0.1:{}", server.port());
    assert_eq!([one, other].iter().filter(|stream| stream["local"] == at.as_str()).count(), 1, "{rows:?}");
    for stream in [one, other] {
        assert_eq!((&stream["state"], &stream["revision"], &stream["crc"]), (&"open".into(), &2.into(), &true.into()));
    }
    assert_eq!((&one["sent_bytes"], &one["received_bytes"]), (&other["received_bytes"], &other["sent_bytes"]));
    let text = room.finish(room.softhca(&["show", "qp"])).expect("it ends").expect_success().output;
    assert!(text.contains(&format!("TCP {at} > ")) && text.contains("MPA revision 2, CRC"), "{text}");
}

#[test]
fn devices_show_what_siw_shows() {
    let room = room();
    let outcome = room.finish(room.run(&["ibv_devinfo", "-v"])).expect("it ends");
    let text = outcome.everything();
    for (key, value) in [
        ("transport:", "iWARP (1)"),
        ("max_ah:", "0"),
        ("max_sge_rd:", "1"),
        ("link_layer:", "Ethernet"),
        ("gid_tbl_len:", "1"),
        ("pkey_tbl_len:", "0"),
        ("max_msg_sz:", "0xffffffff"),
        ("device_cap_flags_ex:", "0x1220000"),
    ] {
        let found = text.lines().find_map(|line| line.trim().strip_prefix(key)).map(str::trim);
        assert_eq!(found, Some(value), "{key} in\n{text}");
    }
    for service in ["uc", "ud", "xrc"] {
        assert!(!text.contains(&format!("{service}_odp_caps:\n\t\t\t\t\tSUPPORT")), "{service} in\n{text}");
    }
    assert!(!text.contains("SUPPORT_UD"), "iWARP has no rate limits:\n{text}");
    let types = room.run_dir().join("sys/class/infiniband/softhca0/node_type");
    assert_eq!(std::fs::read_to_string(types).expect("sysfs").trim(), "4: RNIC");
}

#[test]
fn iw_connect_only_the_manager_connects() {
    let room = room();
    let outcome = room.finish(room.run(&["ibv_ud_pingpong"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.everything().contains("RC QPs only"), "{}", outcome.told());
    let path = cprogram::build_with(&room, "streams", &["-lrdmacm"]).expect("it compiles").display().to_string();
    room.finish_run(&[&path, "refused"]).expect("it ends").expect_success();
}

/// Runs a server and a client on two agents, with a proxy between them that cuts the bytes of TCP
/// anywhere.
#[track_caller]
fn sliced(server: &str, client: &str, seed: u64) {
    let (there, here) = (room(), room());
    let place = Place::between(&there, &here);
    let mut serving = place.serve(server).expect("it listens");
    let proxy = Slicer::before(serving.port(), seed).expect("a proxy");
    let client = client.replace("PORT", &proxy.port().to_string());
    let mut calling = place.call(&serving, &client).expect("it starts");
    let ended = calling.wait(HANG).unwrap_or_else(|why| panic!("{why}\n{}", serving.program.everything()));
    assert!(ended.succeeded(), "{}\nthe server said:\n{}", ended.told(), serving.program.everything());
    let served = serving.program.wait(HANG).expect("it ends");
    assert!(served.succeeded(), "{}", served.told());
    place.must_be_empty();
}

#[test]
fn iw_stream_messages_cross_a_proxy_that_cuts_segments_anywhere() {
    for seed in 1..4 {
        sliced("rping -s -a ADDRESS -p PORT -C 30 -S 9000 -V", "rping -c -a ADDRESS -p PORT -C 30 -S 9000 -V", seed);
    }
    // Many requests at a time.
    for program in ["ib_write_bw -s 65536 -n 300", "ib_send_bw -s 3000 -n 1000", "ib_read_bw -s 65536 -n 300"] {
        let server = format!("{program} -R -p PORT");
        sliced(&server, &format!("{server} ADDRESS"), 4);
    }
}

#[test]
fn a_router_that_translates_addresses_is_no_obstacle() {
    let Some(hosts) = Hosts::apart(1500, User::Me).expect("namespaces") else { return };
    let script = |namespace: &harness::namespace::Namespace, script: &str| {
        namespace.script(script).unwrap_or_else(|why| panic!("{why}"))
    };
    script(hosts.left.namespace(), "ip address add 198.51.100.2/24 dev eth0");
    let right =
        "ip address flush dev eth0; ip address add 203.0.113.2/24 dev eth0; ip route add default via 203.0.113.1";
    script(hosts.right.namespace(), right);
    script(
        hosts.middle(),
        "ip address add 198.51.100.1/24 dev left; ip address add 203.0.113.1/24 dev right; \
         echo 1 >/proc/sys/net/ipv4/ip_forward; nft 'table ip nat { chain out { \
         type nat hook postrouting priority 100; oifname left counter masquerade; }; }'",
    );
    let hosts = hosts.with_agents(AGENT).expect("agents");
    let place = hosts.place(Family::V4).with_server_at([198, 51, 100, 2].into());
    place.must_meet("rping -s -a ADDRESS -p PORT -C 20 -S 9000 -V", "rping -c -a ADDRESS -p PORT -C 20 -S 9000 -V");
    let rules = script(hosts.middle(), "nft list table ip nat");
    assert!(!rules.contains("packets 0 "), "nothing was translated: {rules}");
}
