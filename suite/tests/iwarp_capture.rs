//! Captures of iWARP (`softhca capture`): tshark takes the segments apart as MPA, DDP and RDMAP,
//! from the start-up frames to a Terminate message. It knows each opcode, and which FPDU a fault
//! rule has damaged.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Family, HANG, Hosts, Outcome, Program, Room, User, cprogram};
use rustix::process::Signal;

/// What tshark shows of a segment.
const FIELDS: &[&str] = &[
    "_ws.col.Protocol",
    "tcp.flags.str",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_rdma.opcode",
    "iwarp_rdma.term_layer",
];

/// What tshark prints of a file. It would take SENDs without data for broken RPCs.
fn tshark(file: &Path, options: &[&str]) -> String {
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.check_checksum:TRUE"]);
    let output = command.args(["--disable-protocol", "rpcordma", "-r"]).arg(file).args(options).output();
    let output = output.expect("tshark");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The rows of FIELDS, one for each segment.
fn rows(file: &Path) -> Vec<Vec<String>> {
    let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
    let text = tshark(file, &["-T", "fields"].into_iter().chain(fields).collect::<Vec<_>>());
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// The FPDUs: tshark's word for the opcode, and its verdict on the CRC.
fn fpdus(file: &Path) -> Vec<(String, String)> {
    let text = tshark(file, &["-V"]);
    assert!(!text.contains("[Malformed Packet"), "{text}");
    // RDMAP's opcode has four bits of its byte. That of an atomic is another field.
    let opcode = |line: &str| Some(line.trim_start().get("0000 0000".len()..)?.strip_prefix(" = OpCode: ")?.to_owned());
    let crc = |line: &str| Some(line.trim_start().strip_prefix("CRC check: ")?.to_owned());
    let opcodes: Vec<String> = text.lines().filter_map(opcode).collect();
    let crcs: Vec<String> = text.lines().filter_map(crc).collect();
    assert_eq!(opcodes.len(), crcs.len(), "each FPDU has a CRC and an opcode\n{text}");
    opcodes.into_iter().zip(crcs).collect()
}

/// A room with a capture that has begun, and its file.
fn capturing() -> (Room, Program, PathBuf) {
    let room = Room::of(User::Me).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent");
    let (capture, file) = capture_in(&room);
    (room, capture, file)
}

fn capture_in(room: &Room) -> (Program, PathBuf) {
    let file = room.folder().join("capture.pcapng");
    let to = file.display().to_string();
    let mut capture = room.start(room.softhca(&["capture", "-w", &to, "--print"])).expect("it starts");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    (capture, file)
}

/// Ends a capture, which has lost nothing.
fn ended(mut capture: Program) -> Outcome {
    capture.signal(Signal::INT);
    let outcome = capture.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.errors.contains("\n0 packets dropped by the capture"), "{}", outcome.told());
    outcome
}

#[test]
fn tshark_takes_every_kind_of_message_apart() {
    let (room, capture, file) = capturing();
    let place = room.place(Family::V4);
    place.must_meet("rping -s -a ADDRESS -p PORT -C 3 -S 3000 -V", "rping -c -a ADDRESS -p PORT -C 3 -S 3000 -V");
    let program = cprogram::build_with(&room, "terminates", &["-lrdmacm"]).expect("it compiles");
    let line = |option: &str| format!("{} -a ADDRESS -p PORT {option}", program.display());
    let mut serving = place.serve(&line("-l")).expect("it listens");
    let mut calling = place.call(&serving, &line("-c write")).expect("it starts");
    for side in [&mut calling, &mut serving.program] {
        assert_eq!(side.wait(HANG).expect("it ends").code, 2);
    }
    let outcome = ended(capture);

    let rows = rows(&file);
    let count = |field: &str, value: &str| {
        let at = FIELDS.iter().position(|name| *name == field).expect("a field");
        rows.iter().filter(|row| row.get(at).is_some_and(|text| text.split(',').any(|part| part == value))).count()
    };
    let all = || rows.iter().map(|row| row.join(" | ")).collect::<Vec<_>>().join("\n");
    let has = |field: &str| {
        let at = FIELDS.iter().position(|name| *name == field).expect("a field");
        rows.iter().filter(|row| row.get(at).is_some_and(|text| !text.is_empty())).count()
    };
    // Two connections.
    assert_eq!((has("iwarp_mpa.key.req"), has("iwarp_mpa.key.rep")), (2, 2), "{}", all());
    assert_eq!(count("tcp.flags.str", "·········AS·") + count("tcp.flags.str", "·······A··S·"), 2, "{}", all());
    // rping: each ping is a READ and a WRITE, with SENDs around them.
    let opcodes = ["0x00", "0x01", "0x02", "0x03", "0x07"].map(|opcode| count("iwarp_rdma.opcode", opcode));
    assert_eq!(opcodes[1..3], [3, 3], "READ requests and responses\n{}", all());
    assert!(opcodes[0] >= 4 && opcodes[3] >= 12 && opcodes[4] == 1, "{opcodes:?}\n{}", all());
    for words in
        ["MPA request: revision 2", "MPA reply: revision 2", "READ request msn 1", "Terminate msn 1: ", "(FIN)"]
    {
        assert!(outcome.output.contains(words), "{words} is not in\n{}", outcome.output);
    }
}

/// Every opcode that programs can use. tshark has no word for immediate data, which they cannot
/// send.
#[test]
fn tshark_knows_every_opcode_and_finds_each_crc_good() {
    let (room, capture, file) = capturing();
    let program = cprogram::build_with(&room, "streams", &["-lrdmacm"]).expect("it compiles").display().to_string();
    for (row, code) in [("bind-2", 0), ("atomics", 0), ("solicited", 0), ("send-inv", 2)] {
        assert_eq!(room.finish_run(&[&program, row]).expect("it ends").code, code, "{row}");
    }
    ended(capture);
    let fpdus = fpdus(&file);
    for (number, word) in [
        (0x0, "Write"),
        (0x1, "Read Request"),
        (0x2, "Read Response"),
        (0x3, "Send"),
        (0x4, "Send with Invalidate"),
        (0x5, "Send with SE"),
        (0x6, "Send with SE and Invalidate"),
        (0x7, "Terminate"),
        (0xa, "Atomic Request"),
        (0xb, "Atomic Response"),
    ] {
        let word = format!("{word} ({number:#x})");
        assert!(fpdus.iter().any(|(opcode, _)| *opcode == word), "no {word} in {fpdus:#?}");
    }
    let bad: Vec<_> = fpdus.iter().filter(|(_, crc)| !crc.ends_with("(Good CRC32)")).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

/// Long messages between two hosts over IPv6, in the capture of the host that receives them.
#[test]
fn tshark_finds_each_crc_good_of_what_arrives_from_another_host() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("namespaces") else { return };
    let hosts = hosts.with_agents(&["--transport", "iwarp"]).expect("agents");
    let room = hosts.left.room();
    let (capture, file) = capture_in(room);
    let place = hosts.place(Family::V6);
    place.must_meet("rping -s -a ADDRESS -p PORT -C 10 -S 60000 -V", "rping -c -a ADDRESS -p PORT -C 10 -S 60000 -V");
    ended(capture);
    let fpdus = fpdus(&file);
    for word in ["Write (0x0)", "Read Response (0x2)", "Send (0x3)"] {
        assert!(fpdus.iter().any(|(opcode, _)| opcode == word), "no {word} in {fpdus:#?}");
    }
    assert!(fpdus.len() > 10 * 2 * 60_000 / (32 << 10), "{}", fpdus.len());
    let bad: Vec<_> = fpdus.iter().filter(|(_, crc)| !crc.ends_with("(Good CRC32)")).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn tshark_finds_the_crc_bad_of_the_fpdu_that_is_damaged() {
    let (room, capture, file) = capturing();
    let place = room.place(Family::V4);
    let mut server = place.serve("rping -s -a ADDRESS -p PORT -C 5 -V").expect("it listens");
    let port = server.port().to_string();
    let rule = ["run", "--fault", "corrupt opcode send nth 2", "--"];
    let client = ["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "5", "-V"];
    let mut client = room.start(room.softhca(&[&rule[..], &client].concat())).expect("it starts");
    for side in [&mut client, &mut server.program] {
        side.wait(HANG).expect("it ends");
    }
    ended(capture);
    let fpdus = fpdus(&file);
    let sends: Vec<_> = fpdus.iter().filter(|(opcode, _)| opcode == "Send (0x3)").collect();
    // The client's first, the server's, and the client's second.
    let [_, _, (_, crc)] = sends[..] else { panic!("{fpdus:#?}") };
    assert!(crc.contains("(Bad CRC32, should be 0x"), "{crc}");
    let good = fpdus.iter().filter(|(_, crc)| crc.ends_with("(Good CRC32)")).count();
    assert_eq!(good, fpdus.len() - 1, "{fpdus:#?}");
}
