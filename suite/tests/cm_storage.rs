//! Tests storage over RDMA: Debian's fio with its RDMA engine, and iSER with tgt's target and an
//! initiator on libiscsi.

use harness::port::Port;
use harness::{Family, HANG, Hosts, Place, Room, User, cprogram, wait};

const BLOCKS: &str = "--bs=64k --size=16m";

/// Runs fio's server and client. The client's option `--verb` chooses the operation. For fio's RDMA
/// engine, a write is any transfer that the client starts. The server listens on every address,
/// because fio 3.33 uses only the first letter of `--bindname`.
fn fio(place: Place<'_>, verbs: &[&str]) {
    for verb in verbs {
        let server = format!("fio --name=server --ioengine=rdma --port=PORT --rw=read --iodepth=16 {BLOCKS}");
        let client = format!(
            "fio --name=client --ioengine=rdma --hostname=ADDRESS --port=PORT --verb={verb} --rw=write --iodepth=4 \
             --iodepth_batch_complete_min=1 {BLOCKS}"
        );
        let sides = place.must_meet(&server, &client);
        assert!(sides.client.output.contains("err= 0"), "{verb}: {}", sides.client.told());
    }
}

/// fio writes files for its statistics to the folder in which it starts.
#[test]
fn fio_on_one_host() {
    fio(Room::of(User::Me).expect("a room").place(Family::V4), &["write", "read", "send"]);
}

#[test]
fn fio_between_namespaces() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    fio(hosts.place(Family::V4), &["write", "read", "send"]);
}

/// tgt's name for the disk.
const TARGET: &str = "iqn.2001-04.com.example:disk";

/// The initiators' names: of `programs/storage.c` and of iscsi-inq. For iSER, tgt requires these
/// names as well as the address.
const INITIATORS: [&str; 2] = ["iqn.2024-01.example:suite", "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq"];

#[test]
fn an_iser_target_and_its_initiator() {
    iser(&Room::new().expect("a room"));
}

#[test]
fn an_iser_target_and_its_initiator_on_iwarp() {
    iser(&Room::new().expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent"));
}

/// Logs in, sends an inquiry, writes two mebibytes, reads them back and compares them. Then checks
/// the file behind the disk.
fn iser(room: &Room) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: tgtd needs root");
        return;
    }
    let disk = room.folder().join("disk");
    std::fs::File::create(&disk).and_then(|file| file.set_len(16 << 20)).expect("a disk");
    let ports = [(); 3].map(|()| Port::reserve().expect("a port"));
    let [control, tcp, iser] = [0, 1, 2].map(|index: usize| ports[index].number().to_string());
    let (portal, engine) = (format!("portal=127.0.0.1:{tcp}"), format!("port={iser},pool_sz_mb=64"));
    let words = ["tgtd", "-f", "-C", &control, "--iscsi", &portal, "--iser", &engine];
    let mut target = room.start(room.run(&words)).expect("it starts");
    let asked = |what: &[&str]| {
        let words = [&["-C", control.as_str(), "--lld", "iser", "--tid", "1"], what].concat();
        room.finish(room.command("tgtadm", words)).expect("it ends")
    };
    let made = wait::until(HANG, "tgtd to take orders", || {
        let done = asked(&["--mode", "target", "--op", "new", "--targetname", TARGET]).succeeded();
        (done || target.ended()).then_some(done)
    });
    assert!(made.expect("in time"), "{}", target.everything());
    let file = disk.to_str().expect("a plain path");
    asked(&["--mode", "logicalunit", "--op", "new", "--lun", "1", "-b", file]).expect_success();
    asked(&["--mode", "target", "--op", "bind", "-I", "ALL"]).expect_success();
    for name in INITIATORS {
        asked(&["--mode", "target", "--op", "bind", "-Q", name]).expect_success();
    }
    let url = format!("iser://127.0.0.1:{iser}/{TARGET}/1");
    let said = room.finish_run(&["iscsi-inq", &url]).expect("it ends").expect_success();
    assert!(said.output.contains("DIRECT_ACCESS"), "{}", said.told());
    let program = cprogram::build_with(room, "storage", &["-liscsi"]).expect("it compiles");
    let program = program.to_str().expect("a plain path");
    room.finish_run(&[program, &url, "4096"]).expect("it ends").expect_success();
    let written = std::fs::read(&disk).expect("a disk");
    let expected = |at: usize| ((at as u64).wrapping_mul(2_654_435_761) >> 11) as u8;
    assert!((0..4096 * 512).all(|at| written[at] == expected(at)), "the file is not what was written");
    // tgtd ignores the signals that ask it to end while it has a target.
    drop(target);
    for name in [format!("socket.{control}"), format!("socket.{control}.lock")] {
        let _ = std::fs::remove_file(std::path::Path::new("/var/run/tgtd").join(name));
    }
    room.wait_until_all_is_forgotten(HANG).expect("nothing is left over");
}
