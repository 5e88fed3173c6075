//! Captures of iWARP (`softhca capture`): tshark takes the segments apart as MPA, DDP and RDMAP,
//! from the start-up frames to a Terminate message.

use std::path::Path;
use std::process::Command;

use harness::{Family, HANG, Room, User, cprogram};
use rustix::process::Signal;

/// What tshark shows of a segment.
const FIELDS: &[&str] = &[
    "_ws.col.Protocol",
    "tcp.flags.str",
    "iwarp_mpa.key.req",
    "iwarp_mpa.key.rep",
    "iwarp_rdma.opcode",
    "iwarp_rdma.term_layer",
    "iwarp_mpa.crc_check",
    "_ws.expert.message",
];

/// The rows of FIELDS, one for each segment.
fn rows(file: &Path) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-o", "tcp.try_heuristic_first:TRUE", "-o", "tcp.check_checksum:TRUE", "-T", "fields", "-r"]);
    command.arg(file).args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn tshark_takes_every_kind_of_message_apart() {
    let room = Room::of(User::Me).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent");
    let file = room.folder().join("capture.pcapng");
    let to = file.display().to_string();
    let mut capture = room.start(room.softhca(&["capture", "-w", &to, "--print"])).expect("it starts");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    let place = room.place(Family::V4);
    place.must_meet("rping -s -a ADDRESS -p PORT -C 3 -S 3000 -V", "rping -c -a ADDRESS -p PORT -C 3 -S 3000 -V");
    let program = cprogram::build_with(&room, "terminates", &["-lrdmacm"]).expect("it compiles");
    let line = |option: &str| format!("{} -a ADDRESS -p PORT {option}", program.display());
    let mut serving = place.serve(&line("-l")).expect("it listens");
    let mut calling = place.call(&serving, &line("-c write")).expect("it starts");
    for side in [&mut calling, &mut serving.program] {
        assert_eq!(side.wait(HANG).expect("it ends").code, 2);
    }
    capture.signal(Signal::INT);
    let outcome = capture.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.errors.contains("\n0 packets dropped by the capture"), "{}", outcome.told());

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
