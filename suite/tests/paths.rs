//! Tests the path redirector: programs that insist on /sys/class/infiniband and /dev/infiniband
//! find them. Nothing else on the host changes for these programs.

use harness::port::{self, Port};
use harness::{HANG, Hosts, Outcome, Pair, Room, User, cprogram, wait};

fn rooms() -> Vec<Room> {
    [User::Me, User::Nobody].map(|user| Room::of(user).expect("a room")).into()
}

fn built(room: &Room, name: &str) -> String {
    cprogram::build(room, name).expect("it compiles").to_str().expect("a plain path").to_owned()
}

/// Runs a shell script under `softhca run`.
fn script(room: &Room, words: &str) -> Outcome {
    room.finish_run(&["sh", "-c", words]).expect("it ends").expect_success()
}

#[test]
fn every_function_that_takes_a_path() {
    for room in rooms() {
        let program = built(&room, "paths");
        for part in ["there", "relations", "signals"] {
            room.finish_run(&[&program, part]).expect("it ends").expect_success();
        }
    }
}

#[test]
fn without_a_mirror_nothing_is_there_and_nothing_breaks() {
    let room = Room::new().expect("a room");
    let program = built(&room, "paths");
    for environment in ["-u SOFTHCA_DIR", "SOFTHCA_DIR=", "SOFTHCA_DIR=relative/name", "SOFTHCA_DIR=/no/such/folder"] {
        script(&room, &format!("env {environment} {program} gone"));
    }
    let long = format!("SOFTHCA_DIR=/{}", "long/".repeat(2000));
    room.finish_run(&["env", &long, &program, "gone"]).expect("it ends").expect_success();
    // The agent ends while the program runs.
    let softhca = room.dist().softhca();
    script(&room, &format!("{} agent --stop && exec {program} gone", softhca.display()));
}

#[test]
fn a_killed_agent_leaves_files_and_no_crash() {
    let room = Room::new().expect("a room");
    let program = built(&room, "paths");
    let agent = room.start_agent().expect("an agent");
    script(&room, &format!("kill -KILL {agent}; exec {program} there"));
    wait::until(HANG, "the agent to die", || room.agent().is_none().then_some(())).expect("dead");
    room.finish_run(&[&program, "there"]).expect("it ends").expect_success();
}

/// In the kernel, a device's folder is a link to a folder below that of its slot.
#[test]
fn two_steps_up_from_a_device_is_its_slot() {
    for room in rooms() {
        for at in ["infiniband/softhca0", "infiniband_verbs/uverbs0", "infiniband_mad/umad0"] {
            let said = script(&room, &format!("cd /; cat /sys/class/{at}/../../numa_node; ls /sys/class/{at}/../.."));
            assert!(said.output.starts_with("-1\n") && said.output.contains("vendor"), "{at}: {}", said.output);
        }
    }
}

#[test]
fn shells_and_their_tools() {
    for room in rooms() {
        let listed = script(&room, "ls -l /dev/infiniband /sys/class/infiniband/softhca0/").output;
        assert!(
            listed.contains("crw-rw-rw-") && listed.contains("231, 192") && listed.contains("node_guid"),
            "{listed}"
        );
        let within = script(&room, "cd /dev/infiniband && pwd -P && ls -l && stat -c %F,%t,%T uverbs0").output;
        assert!(within.starts_with("/dev/infiniband\n") && within.contains("crw-rw-rw-"), "{within}");
        assert!(within.ends_with("character special file,e7,c0\n"), "{within}");
        for (words, said) in [
            ("ls /sys/class/infiniband", "softhca0"),
            ("cat /sys/class/infiniband/softhca0/ports/1/state", "4: ACTIVE"),
            ("cat /sys/class/infiniband/*/ports/*/link_layer", "Ethernet"),
            ("echo /sys/class/infiniband/*/ports/*", "/sys/class/infiniband/softhca0/ports/1"),
            ("echo /dev/infiniband/uverbs*", "/dev/infiniband/uverbs0"),
            ("cat < /sys/class/infiniband_verbs/uverbs0/ibdev", "softhca0"),
            ("cat /sys/class/infiniband_mad/abi_version /sys/class/infiniband_mad/*/ibdev | paste -s", "5\tsofthca0"),
            ("stat -c %F,%t,%T /dev/infiniband/umad0", "character special file,e7,0"),
            ("cd /sys/class/infiniband/softhca0 && cat ../softhca0/hca_type", "softhca"),
            ("readlink -f /sys/class/infiniband/softhca0/ports/../ports/1", "/sys/class/infiniband/softhca0/ports/1"),
            ("realpath /dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
            ("find /sys/class/infiniband -name pkeys", "/sys/class/infiniband/softhca0/ports/1/pkeys"),
            (
                "grep -r 0xffff /sys/class/infiniband/softhca0/ports/1/pkeys",
                "/sys/class/infiniband/softhca0/ports/1/pkeys/0:0xffff",
            ),
            (
                "test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo yes",
                "yes",
            ),
            ("test -x /dev/infiniband/uverbs0 || echo no", "no"),
            ("test -e /sys/class/infiniband/softhca1 || echo no", "no"),
            (
                "bash -c 'shopt -s nullglob; for d in /sys/class/infiniband/*; do [[ -d $d/ports/1 ]] && cd $d && pwd; done'",
                "/sys/class/infiniband/softhca0",
            ),
            (
                "perl -e 'opendir(D, \"/sys/class/infiniband\"); print grep(!/^\\./, readdir D); print -c \"/dev/infiniband/uverbs0\" ? \" c\" : \"\"'",
                "softhca0 c",
            ),
        ] {
            let outcome = script(&room, words);
            assert_eq!(outcome.output.trim_end(), said, "{}", outcome.told());
        }
    }
}

/// Does what Debian's `ibstatus` does: a shell script walks through folders and reads files.
#[test]
fn a_script_in_the_manner_of_ibstatus() {
    let room = Room::new().expect("a room");
    let words = "cd /sys/class/infiniband || exit 1; for ca in *; do cd /sys/class/infiniband/$ca/ports; for port in *; do \
                 cd $port; echo \"$ca port $port: gid $(cat gids/0) lid $(cat lid) sm $(cat sm_lid) $(cat state), \
                 $(cat phys_state), $(cat rate), $(cat link_layer)\"; cd ..; done; done";
    let said = script(&room, words).output;
    assert!(said.starts_with("softhca0 port 1: gid fe80:0000:0000:0000:"), "{said}");
    let (_, rate) = said.split_once("lid 0x0 sm 0x0 4: ACTIVE, 5: LinkUp, ").unwrap_or_else(|| panic!("{said}"));
    assert!(rate.ends_with("), Ethernet\n") && rate.contains(" Gb/sec ("), "{said}");
}

/// Linux gives an adapter on a link of 10 Gb/s, as every veth is, this rate.
#[test]
fn the_rate_is_that_of_the_interface() {
    let Some(hosts) = Hosts::joined(1500, User::Nobody).expect("two namespaces") else { return };
    let words = "cat /sys/class/infiniband/softhca0/ports/1/rate; ibv_devinfo -v | grep active_";
    let said = hosts.left.room().finish_run(&["sh", "-c", words]).expect("it ends").expect_success().output;
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let expected = [
        "10 Gb/sec (1X FDR10)",
        "active_mtu:\t\t1024 (3)",
        "active_width:\t\t1X (1)",
        "active_speed:\t\t10.0 Gbps (8)",
    ];
    assert_eq!(lines, expected, "{said}");
}

#[test]
fn python() {
    let words = "\
import glob, os, stat, pathlib
root = '/sys/class/infiniband'
device = root + '/softhca0'
assert os.path.exists(device) and os.path.isdir(root) and not os.path.exists(root + '/mlx5_0')
assert os.listdir(root) == ['softhca0'], os.listdir(root)
assert glob.glob(root + '/*/ports/*/gids/0') == [device + '/ports/1/gids/0']
assert sorted(e.name for e in os.scandir('/dev/infiniband')) == ['rdma_cm', 'umad0', 'uverbs0']
walked = {d: files for d, _, files in os.walk(root)}
assert 'state' in walked[device + '/ports/1'] and len(walked[device + '/ports/1/gids']) == 64
assert os.path.realpath(device + '/ports') == device + '/ports'
assert os.path.realpath('/dev/infiniband/uverbs0') == '/dev/infiniband/uverbs0'
s = os.stat('/dev/infiniband/uverbs0')
assert stat.S_ISCHR(s.st_mode) and (os.major(s.st_rdev), os.minor(s.st_rdev)) == (231, 192)
assert all(stat.S_ISCHR(os.lstat('/dev/infiniband/' + name).st_mode) for name in ('uverbs0', 'umad0', 'rdma_cm'))
assert os.access('/dev/infiniband/uverbs0', os.R_OK | os.W_OK)
assert pathlib.Path(device, 'node_type').read_text() == '1: CA\\n'
assert (pathlib.Path(root) / 'softhca0' / 'device' / 'net').is_dir()
os.chdir(device)
assert os.getcwd() == device and open('fw_ver').read()
assert os.path.abspath('ports') == device + '/ports'
folder = os.open('/dev/infiniband', os.O_RDONLY)
assert stat.S_ISCHR(os.stat('uverbs0', dir_fd=folder, follow_symlinks=False).st_mode)
try:
    open(device + '/node_desc', 'w')
    raise SystemExit('a fact could be written')
except PermissionError:
    pass
";
    for room in rooms() {
        room.finish_run(&["/usr/bin/python3", "-c", words]).expect("it ends").expect_success();
    }
}

/// A mount that makes the host seem to have devices of its own. Only root can make it.
#[test]
fn real_devices_of_the_host_are_hidden() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let room = Room::new().expect("a room");
    let host = room.folder().join("host");
    std::fs::create_dir_all(host.join("infiniband/mlx5_0")).expect("made");
    std::fs::create_dir_all(host.join("infiniband_mad/umad7")).expect("made");
    std::fs::create_dir_all(host.join("misc/rdma_cm")).expect("made");
    std::fs::create_dir_all(host.join("dev/infiniband")).expect("made");
    std::fs::write(host.join("dev/infiniband/uverbs7"), "").expect("written");
    let enter = format!(
        "mount --bind {0} /sys/class && mount --bind /dev/null {0}/dev/infiniband/uverbs7 && \
         for n in null zero urandom shm; do [ -d /dev/$n ] && mkdir {0}/dev/$n || touch {0}/dev/$n; mount --bind /dev/$n {0}/dev/$n; done && \
         mount --rbind {0}/dev /dev && exec \"$@\"",
        host.display()
    );
    let room = room.entered_by(&["unshare", "--mount", "sh", "-c", &enter, "sh"]);
    let look =
        "ls /sys/class /sys/class/infiniband /sys/class/infiniband_mad /sys/class/misc/rdma_cm /dev/infiniband 2>&1";
    let bare = room.finish(room.command("sh", ["-c", look])).expect("it ends").expect_success().output;
    for real in ["mlx5_0", "umad7", "uverbs7"] {
        assert!(bare.contains(real), "no {real} to hide: {bare}");
    }
    let seen = room.finish_run(&["sh", "-c", look]).expect("it ends").everything();
    for real in ["mlx5_0", "umad7", "uverbs7"] {
        assert!(!seen.contains(real), "{seen}");
    }
    assert!(seen.contains("softhca0") && seen.contains("uverbs0"), "{seen}");
}

#[test]
fn preloaded_libraries_stay_and_children_inherit_the_redirector() {
    let room = Room::new().expect("a room");
    let redirector = room.dist().redirector().canonicalize().expect("there");
    let redirector = redirector.to_str().expect("a plain path");
    let mut command = room.run(&["sh", "-c", "echo $LD_PRELOAD; sh -c 'ls /dev/infiniband'"]);
    command.env("LD_PRELOAD", "libm.so.6");
    let said = room.finish(command).expect("it ends").expect_success().output;
    assert_eq!(said, format!("libm.so.6:{redirector}\nrdma_cm\numad0\nuverbs0\n"));
    // Runs softhca under softhca, and a program that was built with the address sanitizer.
    let softhca = room.dist().softhca();
    let nested = script(&room, &format!("{} run -- sh -c 'echo $LD_PRELOAD; ls /dev/infiniband'", softhca.display()));
    assert_eq!(nested.output, format!("{redirector}\nrdma_cm\numad0\nuverbs0\n"));
}

#[test]
fn a_program_with_the_address_sanitizer_starts() {
    let room = Room::new().expect("a room");
    let source = room.folder().join("sanitized.c");
    let text = "#include <stdio.h>\n#include <sys/stat.h>\nint main(void) { struct stat st; return stat(\"/dev/infiniband/uverbs0\", &st) != 0; }\n";
    std::fs::write(&source, text).expect("written");
    let program = room.folder().join("sanitized");
    let gcc = std::process::Command::new("gcc").arg("-fsanitize=address").arg("-o").args([&program, &source]).status();
    assert!(gcc.expect("gcc").success());
    room.finish_run(&[program.to_str().expect("a plain path")]).expect("it ends").expect_success();
}

#[test]
fn a_folder_with_a_space_in_its_name() {
    let room = Room::new().expect("a room");
    let copy = room.dist().copy_to(&room.folder().join("two words")).expect("copied");
    let command = room.command(copy.softhca(), ["run", "--", "ls", "/dev/infiniband"]);
    let outcome = room.finish(command).expect("it ends").expect_success();
    assert_eq!((outcome.output.as_str(), outcome.errors.as_str()), ("rdma_cm\numad0\nuverbs0\n", ""));
}

#[test]
fn ucx_and_libfabric_show_the_device() {
    for room in rooms() {
        let ucx = room.finish_run(&["ucx_info", "-d"]).expect("it ends").expect_success();
        for words in ["Memory domain: softhca0", "Transport: rc_verbs", "Transport: ud_verbs", "Device: softhca0:1"] {
            assert!(ucx.output.contains(words), "no {words:?}: {}", ucx.told());
        }
        let fabric = room.finish_run(&["fi_info", "-p", "verbs"]).expect("it ends").expect_success();
        for words in ["provider: verbs", "domain: softhca0-dgram", "type: FI_EP_DGRAM"] {
            assert!(fabric.output.contains(words), "no {words:?}: {}", fabric.told());
        }
    }
}

/// libfabric's reliable datagrams over the device's UD. The program compares the content.
#[test]
fn libfabric_pingpong_over_datagrams() {
    let room = Room::new().expect("a room");
    for size in ["64", "4096", "65536"] {
        let port = Port::reserve().expect("a port");
        let at = port.number().to_string();
        let words =
            ["fi_pingpong", "-p", "verbs;ofi_rxd", "-e", "rdm", "-d", "softhca0-dgram", "-c", "-I", "50", "-S", size];
        let mut server = room.start(room.run(&[&words[..], &["-B", &at]].concat())).expect("it starts");
        port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
        let client = room.finish_run(&[&words[..], &["-P", &at, "127.0.0.1"]].concat()).expect("it ends");
        assert!(client.expect_success().output.contains("=50"), "{}", server.everything());
        server.wait(HANG).expect("it ends").expect_success();
    }
}

/// UCX connects over UD, so the list names both transports. When it sleeps, it arms the completion
/// queues and does not poll them again.
#[test]
fn ucx_perftest_over_reliable_connections() {
    const TESTS: [&str; 6] = [
        "tag_bw -s 65536",
        "tag_lat -s 8",
        "tag_bw -s 1048576",
        "ucp_put_bw -s 4096",
        "ucp_cswap -s 8",
        "tag_lat -s 8 -E sleep",
    ];
    // This version of UCX reads from a completion's service level a value that only one vendor's
    // adapters write there.
    let environment = ["env", "UCX_NET_DEVICES=softhca0:1", "UCX_TLS=rc_verbs,ud_verbs", "ucx_perftest"];
    let room = Room::new().expect("a room");
    for test in TESTS {
        let mut words = environment.to_vec();
        words.push("-t");
        words.extend(test.split(' '));
        words.extend(["-n", "500", "-w", "50"]);
        let mut pair = Pair::start_different(&room, &environment, &room, &words).expect("both start");
        let sides = pair.wait(HANG * 2).expect("both end");
        sides.client.expect_success();
        sides.server.expect_success();
    }
}
