//! Mistakes of a peer, each in a connection of its own: the Terminate message that the peer gets,
//! and the reason that softhca tells.

use harness::manager::Server;
use iwarp::ddp::{Header, Place};
use iwarp::fpdu::Receiver;
use iwarp::rdmap::{QUEUE_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, ReadRequest};
use iwarp::terminate::{Layout, Terminate};
use iwarp::{Reason, Stag};

use super::*;

/// The first byte of a segment that is the last one of its message, and RDMAP's byte of a SEND.
const TAGGED: u8 = 0xc1;
const UNTAGGED: u8 = 0x41;
const SEND: u8 = 0x43;

/// An untagged segment from its fields.
fn untagged(first: u8, rdmap: u8, queue: u32, msn: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let numbers = [0, queue, msn, offset].map(u32::to_be_bytes).concat();
    [&[first, rdmap], &numbers[..], payload].concat()
}

/// A tagged segment of a WRITE.
fn tagged(first: u8, stag: Stag, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[first, Opcode::Write.emit()], &stag.0.to_be_bytes()[..], &to.to_be_bytes(), payload].concat()
}

type Mistake = fn(&Initiator) -> Vec<u8>;

const MISTAKES: &[(Mistake, Reason)] = &[
    (|_| untagged(UNTAGGED, 0x03, QUEUE_SEND, 1, 0, b""), Reason::RdmapVersion),
    (|_| untagged(UNTAGGED, 0x4c, QUEUE_SEND, 1, 0, b""), Reason::RdmapOpcode),
    (|_| untagged(UNTAGGED, SEND, QUEUE_REQUEST, 1, 0, b""), Reason::RdmapOpcode),
    (|_| untagged(UNTAGGED, 0x47, QUEUE_TERMINATE, 1, 0, &[0; 3]), Reason::RdmapCatastrophic),
    (|peer| untagged(UNTAGGED, 0x41, QUEUE_REQUEST, 1, 0, &wrapping(peer)), Reason::ProtectionWrap),
    (|_| vec![UNTAGGED], Reason::DdpCatastrophic),
    (|peer| tagged(TAGGED, peer.stag, u64::MAX, b"x"), Reason::TaggedWrap),
    (|peer| tagged(0xc0, peer.stag, peer.address, b"x"), Reason::TaggedVersion),
    (|_| untagged(UNTAGGED, SEND, 5, 1, 0, b""), Reason::UntaggedQueue),
    (|_| untagged(UNTAGGED, SEND, QUEUE_SEND, 9, 0, b""), Reason::UntaggedMsn),
    (|_| untagged(UNTAGGED, 0x41, QUEUE_REQUEST, 1, 4, &[0; ReadRequest::LEN]), Reason::UntaggedOffset),
    (|_| untagged(0x01, 0x41, QUEUE_REQUEST, 1, 0, &[0; ReadRequest::LEN]), Reason::UntaggedTooLong),
    (|_| untagged(0x42, SEND, QUEUE_SEND, 1, 0, b""), Reason::UntaggedVersion),
];

/// A READ request beyond the end of the address space.
fn wrapping(peer: &Initiator) -> [u8; ReadRequest::LEN] {
    let mut payload = [0; ReadRequest::LEN];
    ReadRequest { size: 8, source: peer.stag, source_to: u64::MAX - 3, ..ReadRequest::default() }.emit(&mut payload);
    payload
}

fn listener() -> (Room, Server) {
    let room = room();
    let path = cprogram::build_with(&room, "pressure", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let server = room.place(Family::V4).serve(&format!("{path} -a ADDRESS -p PORT -l")).expect("it listens");
    (room, server)
}

/// The peer gets this reason, behind responses, and then the end. softhca tells the reason.
#[track_caller]
fn must_end(room: &Room, mut server: Server, mut peer: Initiator, reason: Reason) -> Terminate {
    let payload = loop {
        let (header, data) = peer.next();
        if header.rdmap != Opcode::ReadResponse.emit() {
            let place = Place::Untagged { invalidate: Stag(0), queue: QUEUE_TERMINATE, msn: 1, offset: 0 };
            assert_eq!((header.rdmap, header.place), (Opcode::Terminate.emit(), place), "{reason}");
            break data;
        }
    };
    let (terminate, layout) = Terminate::parse(&payload, Layout::Rfc).expect("a Terminate message");
    let (layer, kind, code) = reason.numbers();
    assert_eq!((payload[..2].to_vec(), layout), (vec![layer << 4 | kind, code], Layout::Rfc), "{reason}");
    assert!(peer.is_at_end(), "{reason}: more follows");
    drop(peer);
    assert!(server.program.wait(HANG).expect("it ends").succeeded(), "{reason}");
    let told = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success().output;
    assert!(told.contains(&format!("ended the stream: {reason}")), "{reason} is not in\n{told}");
    terminate
}

#[test]
fn iw_terminate_each_mistake_of_a_live_peer_has_its_reason() {
    for (mistake, reason) in MISTAKES {
        let (room, server) = listener();
        let mut peer = Initiator::connect(server.port());
        let segment = mistake(&peer);
        peer.send(&segment);
        let terminate = must_end(&room, server, peer, *reason);
        // One that is shorter than its header cannot be repeated.
        let failed = terminate.failed.map(|failed| usize::from(failed.len));
        assert_eq!(failed, (segment.len() > 1).then_some(segment.len()), "{reason}");
    }
}

/// The responses are too long for the sockets' buffers, so all READs are outstanding.
#[test]
fn iw_ird_more_reads_of_a_live_peer_end_the_stream() {
    let (room, server) = listener();
    let mut peer = Initiator::connect(server.port());
    (0..24).for_each(|_| peer.read(4 << 20));
    must_end(&room, server, peer, Reason::RdmapStream);
}

/// The reply to a client's request that no connection can follow.
#[test]
fn iw_terminate_a_reply_that_does_not_fit_gets_its_reason() {
    for (fields, reason) in [
        // 200 READs of the peer outstanding.
        (*b"\x00\x04\x00\xc8", Reason::MpaIrd),
        // The peer-to-peer model without a ready-to-receive message, and with one that was not offered.
        (*b"\x80\x04\x00\x04", Reason::MpaNoRtr),
        (*b"\xc0\x04\x00\x04", Reason::MpaNoRtr),
    ] {
        let room = room();
        let reply = [&REPLY[..REPLY.len() - fields.len()], &fields].concat();
        let (mut client, mut socket) = replied(&room, "lastwords", &[], &reply);
        let mut sent = Vec::new();
        socket.read_to_end(&mut sent).expect("the client's end");
        let (mut receiver, mut bytes) = (Receiver::new(true, false), &sent[..]);
        let segment = receiver.next(&mut bytes).expect("a good FPDU").expect("a whole one");
        let (header, payload) = Header::parse(segment).expect("a header");
        assert_eq!(header.rdmap, Opcode::Terminate.emit());
        let terminate = Terminate::parse(payload, Layout::Rfc).expect("a Terminate message");
        assert_eq!(terminate, (Terminate { reason, failed: None }, Layout::Rfc));
        let outcome = client.wait(HANG).expect("it ends");
        assert!(outcome.everything().contains("RDMA_CM_EVENT_CONNECT_ERROR with -22"), "{}", outcome.told());
    }
}
