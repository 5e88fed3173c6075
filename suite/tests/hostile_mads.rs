//! A program that sends management datagrams as no honest one does, and what others still get.

use harness::{HANG, Room, User, process};

const ROW: &str = "\
Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\n\
Switch 8 \"S2\"\n[1] \"H3\"[1]\n\n\
Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n";

/// Asks subnet administration for tables and acknowledges no segment of an answer; sends the first
/// segment of requests and no other; and answers requests that nobody has sent. The argument is
/// the manager's LID. The program waits until it is ended.
const HALF: &str = "
import ctypes, signal, struct, sys
u = ctypes.CDLL('libibumad.so.3')
assert u.umad_init() == 0
port = u.umad_open_port(None, 0)
# Without an RMPP version, the program itself handles the segments.
agent = u.umad_register(port, 3, 2, 0, None)
assert port >= 0 and agent >= 0, (port, agent)
size = u.umad_size()
def send(method, tid, segment, timeout):
    umad = ctypes.create_string_buffer(size + 256)
    mad = struct.pack('>BBBBHHQHHI', 1, 3, 2, method, 0, 0, tid, 0x11, 0, 0) + segment
    ctypes.memmove(ctypes.addressof(umad) + size, mad, len(mad))
    u.umad_set_addr(umad, int(sys.argv[1]), 1, 0, 0x80010000)
    return u.umad_send(port, agent, umad, 256, timeout, 0) == 0
GET_TABLE, GET_MULTI, RESPONSE = 0x12, 0x14, 0x80
ACTIVE, FIRST = 1, 2
def segment(number, flags):
    return struct.pack('>BBBBII', 1, 1, flags, 0, number, 2000)
sent = [0, 0, 0]
for n in range(300):
    sent[0] += send(GET_TABLE, n, bytes(12), 60000)
    sent[1] += send(GET_MULTI, 1000 + n, segment(1, ACTIVE | FIRST), 0)
    sent[2] += send(GET_TABLE | RESPONSE, 2000 + n, segment(1, ACTIVE | FIRST), 0)
print('sent', *sent, flush=True)
signal.pause()
";

#[test]
fn half_transfers_of_one_program_take_nothing_from_others() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &[]).expect("an agent");
    room.wait_for_path("H1", "H3", true).expect("it comes up");
    let said = |words: &[&str]| room.finish(room.on("H3", words)).expect("it ends").expect_success().output;
    let nodes = said(&["saquery", "-N"]);
    assert_eq!(nodes.matches("NodeRecord dump:").count(), 5, "{nodes}");
    let lid = said(&["sminfo"]).split_whitespace().nth(3).expect("a LID").to_owned();
    let memory = || process::own_memory(room.agent().expect("it runs")).expect("known");
    let (mut programs, mut before) = (Vec::new(), 0);
    for number in 0..4 {
        let mut hostile = room.start(room.on("H2", &["python3", "-c", HALF, &lid])).expect("it starts");
        hostile.wait_for_words("sent", HANG).expect("it sends");
        programs.push(hostile);
        assert_eq!(said(&["saquery", "-N"]), nodes);
        assert!(said(&["saquery", "-p"]).matches("PathRecord dump:").count() >= 9);
        // The first one leads to tables and buffers that stay.
        if number == 0 {
            before = memory();
        }
    }
    assert!(memory() < before + (8 << 20), "{before} bytes became {}", memory());
    drop(programs);
    assert_eq!(said(&["saquery", "-N"]), nodes);
}
