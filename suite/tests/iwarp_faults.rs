//! Fault rules on iWARP, for both directions: a reset, a changed bit and a delay, each with its
//! effect on both sides.

use harness::{Family, HANG, Outcome, Room, User};

/// Runs rping, whose client has a fault rule. Returns what the client says, and all reasons of both
/// sides.
fn rping(rule: &str) -> (Outcome, String) {
    let room = Room::of(User::Me).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent");
    let mut server = room.place(Family::V4).serve("rping -s -a ADDRESS -p PORT -C 5 -V").expect("it listens");
    let port = server.port().to_string();
    let client = ["run", "--fault", rule, "--", "rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "5", "-V"];
    let mut client = room.start(room.softhca(&client)).expect("it starts");
    let client = client.wait(HANG).expect("it ends");
    server.program.wait(HANG).expect("it ends");
    let errors = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success();
    (client, errors.output)
}

#[track_caller]
fn says(text: &str, words: &str) {
    assert!(text.contains(words), "{words:?} is not in\n{text}");
}

#[test]
fn iw_crc_a_changed_bit_ends_both_sides_with_its_reason() {
    let (client, reasons) = rping("corrupt opcode send nth 2");
    let reason = "MPA, connection: the CRC is wrong (2/0/0x2)";
    says(&reasons, &format!("ended the stream: {reason}"));
    says(&reasons, &format!("got a Terminate message: {reason}"));
    says(&client.everything(), "softhca: fault rule 1 (corrupt opcode send nth 2): 1 packet was damaged");
}

#[test]
fn a_lost_packet_resets_the_connection() {
    let (_, reasons) = rping("loss opcode send nth 2");
    says(&reasons, "the connection was aborted");
    says(&reasons, "the TCP connection was lost");
}

#[test]
fn a_delayed_stream_goes_on() {
    let (client, reasons) = rping("delay 20ms");
    assert!(client.succeeded(), "{}", client.told());
    says(&client.everything(), "packets were delayed");
    assert!(!reasons.contains("lost"), "{reasons}");
}

#[test]
fn iw_crc_a_bit_that_changes_on_arrival_ends_both_sides_with_its_reason() {
    let (client, reasons) = rping("corrupt opcode send direction in nth 2");
    let reason = "MPA, connection: the CRC is wrong (2/0/0x2)";
    says(&reasons, &format!("ended the stream: {reason}"));
    says(&reasons, &format!("got a Terminate message: {reason}"));
    says(&client.everything(), "1 packet was damaged");
}

#[test]
fn a_packet_that_is_lost_on_arrival_resets_the_connection() {
    let (client, reasons) = rping("loss opcode send direction in nth 2");
    says(&reasons, "the connection was aborted");
    says(&reasons, "the TCP connection was lost");
    says(&client.everything(), "1 packet was lost");
}

#[test]
fn a_stream_that_is_delayed_on_arrival_goes_on() {
    let (client, reasons) = rping("delay 20ms direction in");
    assert!(client.succeeded(), "{}", client.told());
    says(&client.everything(), "packets were delayed");
    assert!(!reasons.contains("lost"), "{reasons}");
}
