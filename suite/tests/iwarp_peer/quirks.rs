//! What a work-around for siw changes on the TCP connection, with it and without it.

use iwarp::Stag;
use iwarp::ddp::Place;
use iwarp::fpdu::Sender;
use iwarp::rdmap::QUEUE_TERMINATE;

use super::initiator::{framed, segment};
use super::*;

/// A room whose device has this value of the key `iwarp`.
fn configured(iwarp: &str) -> Room {
    let room = Room::of(User::Me).expect("a room");
    let file = room.folder().join("agent.toml");
    let config = format!("[[devices]]\nname = \"softhca0\"\ntransport = \"iwarp\"\niwarp = {iwarp}\n");
    std::fs::write(&file, config).expect("a configuration");
    room.with_agent(&["--config", &file.display().to_string()]).expect("an agent")
}

/// The server of `ucmatose` sends first. Its peer does not ask for the peer-to-peer model.
#[test]
fn with_responder_first_a_server_sends_before_its_peer_has_sent() {
    for (siw, is_first) in [("[]", false), ("[\"responder_first\"]", true)] {
        let room = configured(&format!("{{ siw = {siw} }}"));
        let line = "stdbuf -oL ucmatose -b ADDRESS -p PORT -c 1 -C 1";
        let mut server = room.place(Family::V4).serve(line).expect("it listens");
        let mut peer = Initiator::connect(server.port());
        server.program.wait_for_words("completing sends", HANG).expect("it has posted its message");
        if !is_first {
            let rows = room.show("qp").expect("shown");
            let stream = &rows[0]["stream"];
            assert_eq!((&stream["state"], &stream["sent_bytes"]), (&"waiting".into(), &0.into()), "{rows:#}");
            peer.write(&[]);
        }
        let (header, _) = peer.next();
        assert_eq!(header.rdmap, Opcode::Send.emit(), "{siw}");
    }
}

/// Layer and type are 0 and 2 as the RFC orders them, and 2 and 0 as siw does.
#[test]
fn with_siw_terminate_a_doubtful_terminate_message_has_the_layout_of_siw() {
    const DOUBTFUL: [u8; 4] = [0x02, 0x06, 0, 0];
    for (siw, reason) in [
        ("[]", "RDMAP, remote operation: unexpected opcode (0/2/0x6)"),
        ("[\"siw_terminate\"]", "MPA, connection: the IRD is too small (2/0/0x6)"),
    ] {
        let room = configured(&format!("{{ siw = {siw} }}"));
        let (mut client, mut socket) = accepted(&room, "lastwords", &[]);
        let place = Place::Untagged { invalidate: Stag(0), queue: QUEUE_TERMINATE, msn: 1, offset: 0 };
        let segment = segment(Opcode::Terminate, place, &DOUBTFUL);
        socket.write_all(&framed(&mut Sender::new(true, false), &segment)).expect("sent");
        program::send(stopped(&mut client), Signal::CONT);
        let outcome = client.wait(HANG).expect("it ends");
        assert!(outcome.everything().contains(&format!("got a Terminate message: {reason}")), "{}", outcome.told());
    }
}
