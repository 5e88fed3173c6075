//! Tests the counters of ports as tools read them: `counters` and `hw_counters` in sysfs, and
//! iproute2's `rdma statistic`.

use harness::{Family, Hosts, Outcome, Pair, Room, User, lists};

const PORT: &str = "/sys/class/infiniband/softhca0/ports/1";

fn shell(room: &Room, script: &str) -> Outcome {
    room.finish_run(&["sh", "-euc", script]).expect("it ends").expect_success()
}

/// A counter as `cat` shows it.
#[track_caller]
fn counter(room: &Room, name: &str) -> u64 {
    let said = shell(room, &format!("cat {PORT}/{name}")).output;
    said.trim().parse().unwrap_or_else(|_| panic!("{name}: {said:?}"))
}

#[test]
fn what_was_lost_and_repeated_is_counted_for_tools() {
    for user in [User::Me, User::Nobody] {
        let hosts = Hosts::loopback(user).expect("two addresses");
        let [left, right] = [&hosts.left, &hosts.right].map(harness::Host::room);
        for name in ["packet_seq_err", "local_ack_timeout_err", "out_of_sequence", "duplicate_request"] {
            assert_eq!(counter(left, &format!("hw_counters/{name}")), 0, "{name}");
        }
        // The server's host loses every tenth packet that it sends: acknowledgements of WRITEs and
        // data of READs.
        left.finish(left.softhca(&["fault", "add", "loss 10% seed 3"])).expect("it ends").expect_success();
        right.finish(right.softhca(&["fault", "add", "loss 10% seed 4"])).expect("it ends").expect_success();
        for words in [["ib_write_bw", "-n", "200"], ["ib_read_bw", "-n", "50"]] {
            lists::expect_figures(&words, &hosts.must_succeed(Family::V4, &words));
        }
        let lost = counter(right, "hw_counters/packet_seq_err") + counter(right, "hw_counters/local_ack_timeout_err");
        assert!(lost > 0, "the client sent something again");
        let seen = counter(left, "hw_counters/out_of_sequence") + counter(left, "hw_counters/duplicate_request");
        assert!(seen > 0, "the server has seen it");
        assert!(counter(right, "counters/port_xmit_data") > 200 * 65536 / 4);
        // rdma(8) shows the same.
        let said = right.finish_run(&["rdma", "statistic", "show", "link", "softhca0/1"]).expect("it ends");
        let said = said.expect_success().output;
        let sent = format!(" packet_seq_err {} ", counter(right, "hw_counters/packet_seq_err"));
        assert!(said.starts_with("link softhca0/1 ") && said.contains(&sent), "{sent}: {said}");
        let said = right.finish_run(&["rdma", "statistic", "qp", "show"]).expect("it ends").expect_success();
        assert_eq!(said.output, "", "no counter is bound to a queue pair");
    }
}

/// perftest reads counters before and after its messages.
#[test]
fn perftest_reports_counters() {
    let room = Room::of(User::Nobody).expect("a room");
    let list = "counters/port_xmit_data,hw_counters/out_of_buffer";
    let words = ["ib_write_bw", "-n", "200", "-W", list];
    let sides = Pair::must_succeed(&room, &words);
    let value = |name: &str| -> Option<u64> {
        let (_, rest) = sides.client.output.split_once(&format!("{name}="))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let [data, none] = [0, 1].map(|at| list.split(',').nth(at).and_then(value));
    assert!(data.is_some_and(|data| data >= 200 * 65536 / 4), "{}", sides.client.told());
    assert_eq!(none, Some(0), "{}", sides.client.told());
}

#[test]
fn relative_paths_lead_to_counters_of_now() {
    let room = Room::new().expect("a room");
    let data = |script: &str| -> u64 {
        let said = shell(&room, script).output;
        said.trim().parse().unwrap_or_else(|_| panic!("{script}: {said:?}"))
    };
    let scripts = [
        format!("cd {PORT}; cat counters/port_xmit_data"),
        format!("cd {PORT}/counters; cat ./port_xmit_data"),
        format!("cd {PORT}; grep -rh . --include=port_xmit_data counters"),
    ];
    let mut before = 0;
    for script in scripts {
        Pair::must_succeed(&room, &["ib_write_bw", "-n", "100"]);
        let now = data(&script);
        assert!(now >= before + 100 * 65536 / 4, "{script}: {before}, then {now}");
        before = now;
    }
}

#[test]
fn each_port_has_the_counters_of_an_adapter_and_iwarp_has_only_the_standard_ones() {
    let room = Room::new().expect("a room");
    let names = shell(&room, &format!("ls {PORT}/hw_counters")).output;
    assert_eq!(names.lines().count(), 11, "{names}");
    assert!(names.lines().any(|name| name == "lifespan") && names.contains("np_cnp_sent"), "{names}");
    let room = Room::new().expect("a room").with_agent(&["--device", "iwarp"]).expect("an agent");
    let said = room.finish_run(&["sh", "-c", &format!("ls {PORT}/counters; ls {PORT}/hw_counters")]).expect("it ends");
    assert!(said.output.contains("port_xmit_data") && !said.output.contains("lifespan"), "{}", said.told());
}

#[test]
fn answers_that_there_is_no_receive_request_are_counted_at_both_ends() {
    let room = Room::new().expect("a room");
    room.finish(room.softhca(&["fault", "add", "rnr 10%"])).expect("it ends").expect_success();
    let words = ["ib_send_bw", "-n", "300"];
    lists::expect_figures(&words, &Pair::must_succeed(&room, &words));
    // Both programs use this port.
    let (found_none, told) =
        (counter(&room, "hw_counters/out_of_buffer"), counter(&room, "hw_counters/rnr_nak_retry_err"));
    assert!(found_none > 0 && told > 0, "{found_none}, {told}");
}

/// perftest and monitors keep the files open.
#[test]
fn a_file_that_is_read_again_has_the_value_of_now() {
    let room = Room::new().expect("a room");
    let script = format!(
        "import os, subprocess, sys
file = os.open('{PORT}/counters/port_xmit_data', os.O_RDONLY)
first = int(os.read(file, 99))
assert first == int(os.pread(file, 99, 0)) == 0
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
os.lseek(file, 0, os.SEEK_SET)
second = int(os.read(file, 99))
assert second >= 100 * 65536 / 4, second
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
assert int(os.pread(file, 99, 0)) > second
assert not os.get_inheritable(file)
os.close(file)
print('well')"
    );
    let softhca = room.dist().softhca().display().to_string();
    let pair = [&softhca, "run", "--pair", "--", "ib_write_bw", "-n", "100", "--", "ib_write_bw", "-n", "100"];
    let words = [&["python3", "-c", &script], &pair[..], &["127.0.0.1"]].concat();
    let outcome = room.finish_run(&words).expect("it ends").expect_success();
    assert!(outcome.output.contains("well"), "{}", outcome.told());
}
