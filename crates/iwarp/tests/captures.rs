//! Captures of siw, the software iWARP driver of Linux 6.1. Each frame and each segment is parsed
//! and put together again, and a stream of this crate takes the place of either side. `kk_*` and
//! `knob_*` have siw on both sides, `pk_*` and `race_*` a program with a plain socket as initiator,
//! `kp_*` one as responder.

mod captured;
mod common;

use captured::Captured;
use common::{Host, NOW, Region};
use softhca_iwarp::ddp::{Header, Place};
use softhca_iwarp::fpdu::{self, Receiver, Sender};
use softhca_iwarp::negotiation::Asked;
use softhca_iwarp::rdmap::{Opcode, ReadRequest};
use softhca_iwarp::startup::{Frame, Kind};
use softhca_iwarp::terminate::Layout;
use softhca_iwarp::{
    Answer, Config, Error, Event, Initiator, Operation, Quirks, Reason, Received, Request, Responder, Side, Stag,
    Status, Terminate, Terms,
};

/// Captures whose start-up is invalid: the side, and why.
const BAD_START_UPS: &[(&str, Kind, Error)] = &[
    ("kp_rep_badkey", Kind::Reply, Error::Key),
    ("pk_badkey", Kind::Request, Error::Key),
    ("pk_rev0", Kind::Request, Error::Revision(0)),
    ("pk_rev3", Kind::Request, Error::Revision(3)),
    ("pk_short_v2", Kind::Request, Error::EnhancedLength(0)),
    // siw's own mistake: the length says 0, and 256 bytes follow.
    ("kk_pdata_252", Kind::Request, Error::EnhancedLength(0)),
];

/// Captures with one FPDU that is wrong on purpose, which must not be parsed.
const BAD_FPDUS: &[(&str, Reason)] = &[
    ("pk_rdmapver0", Reason::RdmapVersion),
    ("pk_term_badcrc", Reason::MpaCrc),
    ("pk_term_ddpver", Reason::UntaggedVersion),
    ("pk_term_opcode15", Reason::RdmapOpcode),
    ("pk_term_rdmapver", Reason::RdmapVersion),
];

/// Captures after which this side says another reason than siw: ours, and siw's.
const OTHER_REASONS: &[(&str, Option<Reason>, Option<Reason>)] = &[
    // The STag is valid; siw fails at the next SEND.
    ("kk_term_sendinvbad", None, Some(Reason::DdpCatastrophic)),
    ("kk_term_toolong", Some(Reason::UntaggedTooLong), Some(Reason::UntaggedNoBuffer)),
    ("pk_rresp_unasked", Some(Reason::TaggedStag), Some(Reason::DdpCatastrophic)),
    // siw goes on after a failed invalidation.
    ("pk_term_inv", Some(Reason::ProtectionStag), None),
    // siw has no immediate data.
    ("pk_term_opcode8", None, Some(Reason::RdmapOpcode)),
    ("pk_term_wwrap", Some(Reason::TaggedWrap), Some(Reason::DdpCatastrophic)),
    // siw overlooks FPDUs that arrive just after its reply.
    ("race_first_fpdu_terminate", Some(Reason::UntaggedOffset), None),
];

fn reply_has_crc(captured: &Captured) -> bool {
    captured.responder.get(16).is_some_and(|flags| flags & 0x40 != 0)
}

/// Where the start-up frame of a side ends.
fn frame_len(bytes: &[u8]) -> usize {
    20 + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]))
}

/// The segments of a side, up to the first one with a wrong CRC.
fn segments(bytes: &[u8], crc: bool) -> Vec<Vec<u8>> {
    let (mut receiver, mut rest, mut found) = (Receiver::new(crc, false), bytes, Vec::new());
    while let Ok(Some(segment)) = receiver.next(&mut rest) {
        found.push(segment.to_vec());
    }
    found
}

fn is_invalid(captured: &Captured) -> bool {
    BAD_START_UPS.iter().any(|(name, ..)| *name == captured.name)
        || ["pk_extra_data", "pk_pd_300"].contains(&&captured.name[..])
}

fn opcode(segment: &[u8]) -> Option<Opcode> {
    Opcode::parse(segment[1]).ok()
}

#[test]
fn every_start_up_frame_is_put_together_again() {
    let mut frames = 0;
    for captured in captured::all() {
        for (kind, bytes) in [(Kind::Request, &captured.initiator), (Kind::Reply, &captured.responder)] {
            let bad = BAD_START_UPS.iter().find(|(name, bad, _)| *name == captured.name && *bad == kind);
            match Frame::parse(kind, bytes) {
                Ok(Some((frame, len))) => {
                    assert_eq!(frame.emit().expect("a valid frame"), bytes[..len], "{}", captured.name);
                    frames += 1;
                }
                // No reply, or one in the revision or form of a bad request.
                Ok(None) => assert!(bytes.is_empty(), "{}", captured.name),
                Err(_) if kind == Kind::Reply && bad.is_none() => assert!(is_invalid(&captured), "{}", captured.name),
                Err(error) => assert_eq!(Some(&error), bad.map(|(.., error)| error), "{}", captured.name),
            }
        }
    }
    assert_eq!(frames, 139);
}

#[test]
fn every_fpdu_is_put_together_again() {
    let (mut fpdus, mut with_crc, mut padded) = (0, 0, 0);
    for captured in captured::all().iter().filter(|captured| !is_invalid(captured)) {
        let crc = reply_has_crc(captured);
        for side in [&captured.initiator, &captured.responder] {
            let bytes = side.get(frame_len(side)..).unwrap_or_default();
            let mut sender = Sender::new(crc, false);
            let mut at = 0;
            for segment in segments(bytes, crc) {
                let mut out = vec![0; sender.room(segment.len())];
                let len =
                    sender.frame(&mut out, &segment, 0, |_, _, _| Ok::<_, ()>(false)).expect("no payload is fetched");
                let (original, body) = (&bytes[at..at + len], 2 + segment.len());
                assert_eq!((&original[..body], len), (&out[..body], fpdu::size(segment.len())), "{}", captured.name);
                // siw pads short FPDUs with what is in its buffer.
                if original[body..len - 4].iter().any(|byte| *byte != 0) {
                    padded += 1;
                } else {
                    assert_eq!(original, &out[..len], "{}", captured.name);
                }
                at += len;
                (fpdus, with_crc) = (fpdus + 1, with_crc + usize::from(crc));
                check_segment(captured, &segment);
            }
            let left = &bytes[at..];
            match &captured.name[..] {
                "pk_term_badcrc" => assert!(left.is_empty() || left.len() == 32),
                "pk_cut_fin" => assert!(left.is_empty() || left.len() == 12),
                name => assert!(left.is_empty(), "{name}: {left:x?}"),
            }
        }
    }
    assert_eq!((fpdus, with_crc, padded), (397, 158, 7));
}

/// Parses the headers of a segment and puts them together again.
fn check_segment(captured: &Captured, segment: &[u8]) {
    let bad = BAD_FPDUS.iter().find(|(name, _)| *name == captured.name).map(|(_, reason)| *reason);
    let parsed = Header::parse(segment).and_then(|(header, data)| Ok((header, data, Opcode::parse(header.rdmap)?)));
    let (header, data, opcode) = match parsed {
        Ok(parsed) => parsed,
        Err(reason) => return assert_eq!(Some(reason), bad, "{}", captured.name),
    };
    let mut bytes = [0; 18];
    let len = header.emit(&mut bytes);
    assert_eq!(bytes[..len], segment[..len], "{}", captured.name);
    if let (Opcode::ReadRequest, Ok(payload)) = (opcode, data.try_into()) {
        let mut bytes = [0; ReadRequest::LEN];
        ReadRequest::parse(payload).emit(&mut bytes);
        assert_eq!(bytes, *payload, "{}", captured.name);
    }
    if opcode == Opcode::Terminate {
        let (terminate, layout) = Terminate::parse(data, Layout::Siw).expect("a Terminate message");
        assert!(terminate.reason.is_known() && (layout == Layout::Siw || captured.name == "pk_terminate"));
        let mut bytes = [0; Terminate::MOST];
        let len = terminate.emit(&mut bytes);
        // A program with a plain socket sent the RFC's layout. All others are siw's.
        if captured.name != "pk_terminate" {
            to_siws_layout(&mut bytes, &terminate);
        }
        assert_eq!(bytes[..len], *data, "{}", captured.name);
    }
}

/// Changes a Terminate message of the RFC's layout to siw's.
fn to_siws_layout(bytes: &mut [u8; Terminate::MOST], terminate: &Terminate) {
    bytes[0] = bytes[0].rotate_left(4);
    bytes[2] = bytes[2].reverse_bits();
    if let Some(failed) = &terminate.failed {
        let header = failed.header().expect("a whole header").size() as u16;
        bytes[4..6].copy_from_slice(&(failed.len - header).to_be_bytes());
    }
}

/// The work requests that explain what a side sent, with their data.
fn requests(segments: &[Vec<u8>]) -> Vec<(Operation, Vec<u8>)> {
    let mut found: Vec<(Operation, Vec<u8>)> = Vec::new();
    let mut continues = false;
    for segment in segments {
        let Ok((header, data)) = Header::parse(segment) else { continue };
        let operation = match (opcode(segment), header.place) {
            (Some(Opcode::Write), Place::Tagged { stag, to }) => Operation::Write { stag, to, immediate: None },
            (Some(Opcode::ReadRequest), _) => {
                let request = ReadRequest::parse(data.try_into().expect("a whole request"));
                let ReadRequest { sink, sink_to, size, source, source_to } = request;
                found.push((Operation::Read { source, source_to, sink, sink_to }, vec![0; size as usize]));
                continue;
            }
            (Some(opcode), Place::Untagged { invalidate, queue: 0, .. }) => {
                let invalidate = opcode.invalidates().then_some(invalidate);
                Operation::Send { invalidate, solicited: opcode.is_solicited() }
            }
            _ => continue,
        };
        match found.last_mut() {
            Some((_, bytes)) if continues => bytes.extend_from_slice(data),
            _ => found.push((operation, data.to_vec())),
        }
        continues = !header.last;
    }
    found
}

fn post(host: &mut Host, requests: &[(Operation, Vec<u8>)]) {
    for (work, (operation, data)) in (0..).zip(requests) {
        host.ram.works.insert(work, data.clone());
        let request = Request { work, operation: *operation, len: data.len() as u32, fence: false };
        host.stream.post(request).expect("a place in the queue");
    }
}

/// The segments that a host has sent: messages of its own, and responses.
fn sent(host: &Host, crc: bool) -> [Vec<Vec<u8>>; 2] {
    split(segments(&host.output, crc))
}

/// Own messages and responses, without Terminate messages.
fn split(segments: Vec<Vec<u8>>) -> [Vec<Vec<u8>>; 2] {
    let without = segments.into_iter().filter(|segment| opcode(segment) != Some(Opcode::Terminate));
    let (responses, own) = without.partition(|segment| opcode(segment) == Some(Opcode::ReadResponse));
    [own, responses]
}

/// The Terminate message that a side sent.
fn message_of(segments: &[Vec<u8>], doubtful: Layout) -> Option<Terminate> {
    let segment = segments.iter().find(|segment| opcode(segment) == Some(Opcode::Terminate))?;
    Some(Terminate::parse(&segment[18..], doubtful).expect("a Terminate message").0)
}

/// The reason of the Terminate message that a side sent.
fn terminate_of(segments: &[Vec<u8>], doubtful: Layout) -> Option<Reason> {
    message_of(segments, doubtful).map(|terminate| terminate.reason)
}

fn terminated(host: &Host) -> Option<(Side, Reason)> {
    host.events.iter().find_map(|event| match event {
        Event::Terminated { by, terminate } => Some((*by, terminate.reason)),
        _ => None,
    })
}

/// The memory of the server program: a pattern, in two regions that its private data names.
fn expose_server(host: &mut Host, private: &[u8]) -> Option<Stag> {
    let pattern = |at: u32| (at * 7 + (at >> 8)) as u8;
    let regions = private.as_chunks::<16>().0;
    for (start, region) in (0..).step_by(1 << 20).zip(regions.iter().take(2)) {
        let base = u64::from_le_bytes(*region.first_chunk().expect("8 bytes"));
        let key = u32::from_le_bytes(region[8..12].try_into().expect("4 bytes"));
        host.ram.expose(key, base, (start..start + (1 << 20)).map(pattern).collect());
    }
    Some(Stag(u32::from_le_bytes(regions.first()?[8..12].try_into().expect("4 bytes"))))
}

/// Passes what the peer sent in a capture to a host, segment by segment. The host's program posts
/// all of its work requests before. `responses` are what the host sends as READ responses in the
/// capture, for memory that only the capture shows.
fn replay(host: &mut Host, captured: &[Vec<u8>], crc: bool, mut responses: &[Vec<u8>], shared: Option<Stag>) {
    let mut sender = Sender::new(crc, false);
    let serves = !responses.is_empty();
    for segment in captured {
        host.transmit();
        // rping's server reads from one buffer of its client, and writes to the other.
        if let (true, Some(Opcode::Write), Ok((Header { place: Place::Tagged { stag, to }, .. }, data))) =
            (serves, opcode(segment), Header::parse(segment))
        {
            let region = Region { base: to, bytes: vec![0; data.len()], writable: true, readable: false };
            host.ram.regions.insert(stag, region);
        }
        if opcode(segment) == Some(Opcode::ReadRequest) && shared.is_none() {
            let request = ReadRequest::parse(segment[18..].try_into().expect("a whole request"));
            let mut bytes = Vec::new();
            while bytes.len() < request.size as usize {
                let Some((first, rest)) = responses.split_first() else { break };
                bytes.extend_from_slice(&first[14..]);
                responses = rest;
            }
            let region = Region { base: request.source_to, bytes, writable: false, readable: true };
            host.ram.regions.insert(request.source, region);
        }
        let mut fpdu = vec![0; sender.room(segment.len())];
        let len = sender.frame(&mut fpdu, segment, 0, |_, _, _| Ok::<_, ()>(false)).expect("no payload is fetched");
        let before = host.events.len();
        host.receive(&fpdu[..len]);
        // All receive requests of the server program have the beginning of the first region.
        for event in &host.events[before..] {
            if let (Event::Received(Received { receive, len, .. }), Some(stag)) = (event, shared)
                && let Some(region) = host.ram.regions.get_mut(&stag)
            {
                let len = *len as usize;
                region.bytes[..len].copy_from_slice(&host.ram.receives[receive][..len]);
            }
        }
    }
    host.transmit();
}

#[test]
fn a_responder_of_this_crate_answers_as_siw_does() {
    let (mut answered, mut repeated) = (0, (0, 0));
    for captured in captured::all() {
        let name = &captured.name[..];
        if is_invalid(&captured) || name.starts_with("kp_") {
            continue;
        }
        let depth = if name == "rping" { 1 } else { 4 };
        let terms = Terms { crc: false, sends_markers: false, quirks: Quirks::SIW, ..Terms::default() };
        let mut responder = Responder::new(terms, NOW);
        let request = &captured.initiator[..frame_len(&captured.initiator)];
        let (reply, len) = Frame::parse(Kind::Reply, &captured.responder).expect("a valid reply").expect("a whole one");
        let asked = responder.receive(request);
        if asked == Err(Error::Markers) {
            assert_eq!(responder.poll_transmit().expect("a rejection"), captured.responder, "{name}");
            continue;
        }
        asked.expect("a valid request").expect("a whole request");
        if reply.reject {
            let (bytes, _) = responder.reject(&reply.private).expect("short private data");
            assert_eq!(bytes, captured.responder, "{name}");
            continue;
        }
        let (bytes, agreement) = responder.accept(depth, depth, &reply.private).expect("short private data");
        if name == "pk_rtr_send" {
            assert_eq!((&bytes[..20], &bytes[20..24]), (&captured.responder[..20], &[0xc0, 4, 0, 4][..]));
            continue;
        }
        assert_eq!(bytes, captured.responder[..len], "{name}");

        let crc = reply_has_crc(&captured);
        let theirs = segments(&captured.initiator[request.len()..], crc);
        let siws = segments(&captured.responder[len..], crc);
        let mut host = Host::new(&agreement, Config::default());
        let shared = expose_server(&mut host, &reply.private);
        let (count, size) = match name {
            "kk_term_toolong" => (4, 100),
            "kk_term_norecv" | "knob_crc_term_norecv" => (1, 65536),
            _ => (16, 65536),
        };
        for id in 0..count {
            host.ram.post_receive(id, size);
        }
        post(&mut host, &requests(&siws));
        if ["pk_ird_exceeded", "pk_term_badcrc"].contains(&name) {
            // All at once: siw had not answered when a READ too many arrived.
            host.receive(&captured.initiator[request.len()..]);
            host.transmit();
        } else {
            replay(&mut host, &theirs, crc, &[], shared);
        }
        let ours = terminated(&host).filter(|(by, _)| *by == Side::Us).map(|(_, reason)| reason);
        let siws_reason = terminate_of(&siws, Layout::Siw);
        match OTHER_REASONS.iter().find(|(other, ..)| *other == name) {
            Some((_, our, their)) => assert_eq!((ours, siws_reason), (*our, *their), "{name}"),
            None => {
                assert_eq!(ours, siws_reason, "{name}");
                // Ours, as the peer reads it.
                let our = message_of(&segments(&host.output, crc), Layout::Rfc);
                let theirs = message_of(&siws, Layout::Siw);
                let failed = |terminate: Option<Terminate>| terminate.and_then(|terminate| terminate.failed);
                let (ours, theirs) = (failed(our), failed(theirs));
                if let (Some(ours), Some(theirs)) = (ours, theirs)
                    && let Some(request) = ours.read_request()
                {
                    // siw puts the length of the READ in place of the MSN, and counts no payload.
                    assert!(theirs.read_request().is_none_or(|theirs| theirs == request), "{name}");
                    assert_eq!((ours.opcode(), theirs.len), (theirs.opcode(), 18), "{name}");
                    repeated.1 += 1;
                } else if theirs.is_some() {
                    assert_eq!(ours, theirs, "{name}");
                    repeated.0 += 1;
                }
            }
        }
        // siw speaks first without being allowed to, and overlooks what arrives just after its
        // reply.
        if !["pk_responder_first", "race_first_fpdu"].contains(&name) {
            assert_eq!(sent(&host, crc), split(siws), "{name}");
        }
        answered += 1;
    }
    assert_eq!((answered, repeated), (56, (11, 7)));
}

/// The request of a capture, in one piece or byte by byte, and what the responder says and sends.
fn ask(captured: &Captured, piece: usize) -> (Result<Option<Asked>, Error>, Option<Vec<u8>>) {
    let mut responder = Responder::new(Terms::default(), NOW);
    for bytes in captured.initiator.chunks(piece) {
        match responder.receive(bytes) {
            Ok(None) => {}
            // More data may follow the request, which is an error.
            Ok(Some(asked)) if captured.initiator.len() == frame_len(&captured.initiator) => {
                return (Ok(Some(asked)), responder.poll_transmit());
            }
            Ok(Some(_)) => {}
            Err(error) => {
                assert_eq!(responder.receive(b"more"), Err(Error::Order), "{}", captured.name);
                assert_eq!(responder.accept(1, 1, b""), Err(Error::Order), "{}", captured.name);
                return (Err(error), responder.poll_transmit());
            }
        }
    }
    (Ok(None), responder.poll_transmit())
}

#[test]
fn a_request_that_is_invalid_gets_no_reply() {
    let early = ("pk_extra_data", Kind::Request, Error::Early);
    let mut refused = 0;
    for captured in captured::all() {
        let bad = BAD_START_UPS
            .iter()
            .chain([&early])
            .find(|(name, kind, _)| *name == captured.name && *kind == Kind::Request);
        let Some((name, _, error)) = bad else { continue };
        for piece in [usize::MAX, 7, 1] {
            assert_eq!(ask(&captured, piece), (Err(error.clone()), None), "{name}");
        }
        // siw answers two of them: it accepts revision 0, and rejects a request without fields.
        let siw_answers = ["pk_rev0", "pk_short_v2"].contains(name);
        assert_eq!(captured.responder.is_empty(), !siw_answers, "{name}");
        if siw_answers {
            let mut initiator = Initiator::new(Terms::default(), b"", NOW).expect("no private data");
            initiator.poll_transmit();
            assert_eq!(initiator.receive(&captured.responder), Err(error.clone()), "{name}");
            assert_eq!(initiator.poll_transmit(), None, "{name}");
        }
        refused += 1;
    }
    assert_eq!(refused, 6);
}

#[test]
fn private_data_that_siw_cannot_take_is_taken_and_not_sent_to_siw() {
    let all = captured::all();
    let find = |name| all.iter().find(|captured| captured.name == name).expect("a capture");
    for (name, len) in [("pk_pd_300", 300), ("kk_pdata_252", 252)] {
        let captured = find(name);
        let private = &captured.initiator[24..];
        assert_eq!(private.len(), len);
        let crc = captured.initiator[16] & 0x40 != 0;
        let terms = Terms { crc, ird: 4, ord: 4, ..Terms::default() };
        let siw = Terms { quirks: Quirks::SIW, ..terms };
        assert_eq!(Initiator::new(siw, private, NOW).map(drop), Err(Error::PrivateLength(len)));
        let mut request = captured.initiator.clone();
        // The length that siw does not write.
        request[18..20].copy_from_slice(&(4 + len as u16).to_be_bytes());
        let mut initiator = Initiator::new(terms, private, NOW).expect("less than 508 bytes");
        assert_eq!(initiator.poll_transmit(), Some(request.clone()), "{name}");
        let mut responder = Responder::new(siw, NOW);
        let asked = responder.receive(&request).expect("a valid request").expect("a whole request");
        assert_eq!((asked.ird, asked.ord, &asked.private[..]), (4, 4, private), "{name}");
        let (reply, _) = responder.accept(4, 4, b"").expect("no private data");
        assert!(matches!(initiator.receive(&reply), Ok((24, Some(Answer::Accepted(..))))), "{name}");
    }
}

#[test]
fn an_initiator_of_this_crate_asks_as_siw_does() {
    let (mut asked, mut denied_reads) = (0, 0);
    for captured in captured::all() {
        let name = &captured.name[..];
        let crc = reply_has_crc(&captured);
        let (request, len) = match Frame::parse(Kind::Request, &captured.initiator) {
            Ok(Some(parsed)) => parsed,
            _ => continue,
        };
        let fields = request.enhanced.unwrap_or_default();
        let terms = Terms {
            revision: request.revision,
            crc: request.crc,
            markers: request.markers,
            sends_markers: false,
            ird: if request.enhanced.is_some() { fields.ird } else { 4 },
            ord: if request.enhanced.is_some() { fields.ord } else { 4 },
            peer_to_peer: fields.peer_to_peer.then_some(fields.rtr),
            quirks: Quirks { any_rtr: true, ..Quirks::default() },
            ..Terms::default()
        };
        if request.revision == 2 && request.enhanced.is_none() {
            continue;
        }
        let mut initiator = Initiator::new(terms, &request.private, NOW).expect("short private data");
        assert_eq!(initiator.poll_transmit().expect("a request"), captured.initiator[..len], "{name}");
        let answer = initiator.receive(&captured.responder);
        let theirs = segments(captured.initiator.get(len..).unwrap_or_default(), crc);
        let agreement = match answer {
            Ok((_, Some(Answer::Accepted(agreement, _)))) => agreement,
            Ok((_, Some(Answer::Rejected(private)))) => {
                assert!(["kk_reject", "kp_rep_reject", "pk_markers"].contains(&name));
                assert_eq!(private, captured.responder[24..], "{name}");
                continue;
            }
            Ok((_, None)) => {
                assert!(captured.responder.is_empty(), "{name}");
                continue;
            }
            Err(error) => {
                let sent = initiator.poll_transmit().unwrap_or_default();
                let siws = if error == Error::Key { None } else { terminate_of(&theirs, Layout::Siw) };
                assert_eq!(terminate_of(&segments(&sent, crc), Layout::Rfc), siws, "{name}: {error}");
                continue;
            }
        };
        let siws = segments(&captured.responder[frame_len(&captured.responder)..], crc);
        let mut host = Host::new(&agreement, Config::default());
        for id in 0..16 {
            host.ram.post_receive(id, 65536);
        }
        let [own, responses] = split(theirs);
        let mut posted = requests(&own);
        if agreement.rtr.is_some() {
            posted.remove(0);
        }
        post(&mut host, &posted);
        replay(&mut host, &siws, crc, &responses, None);
        if !is_wrong_on_purpose(name) {
            assert_eq!(sent(&host, crc), [own, responses], "{name}");
            let peer = terminate_of(&siws, Layout::Siw).map(|reason| (Side::Peer, reason));
            assert_eq!(terminated(&host), peer, "{name}");
            let refused = message_of(&siws, Layout::Siw).and_then(|message| message.failed?.read_request());
            if refused.is_some() {
                let denied = host.completions().into_iter().filter(|(_, status)| *status == Status::RemoteAccess);
                assert_eq!(denied.count(), 1, "{name}: siw repeats the READ that it refuses");
                denied_reads += 1;
            }
        }
        host.receive_end();
        assert!(host.closed().is_some(), "{name}");
        asked += 1;
    }
    assert_eq!((asked, denied_reads), (59, 5));
}

/// Whether a program with a plain socket sent what no stream would send.
fn is_wrong_on_purpose(name: &str) -> bool {
    BAD_FPDUS.iter().any(|(bad, _)| *bad == name)
        || [
            "pk_cut_fin",
            "pk_extra_data",
            "pk_ird_exceeded",
            // It sends a Send as RTR, and siw's reply asks for a Write.
            "pk_rtr_send",
            "pk_rresp_unasked",
            "pk_term_interleave",
            "pk_term_mo",
            "pk_term_msn",
            "pk_term_opcode8",
            "pk_term_qn",
            "pk_term_rmsn",
            "pk_terminate",
            "race_first_fpdu_terminate",
        ]
        .contains(&name)
}
