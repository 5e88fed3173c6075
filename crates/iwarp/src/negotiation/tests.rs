//! Both sides of the start-up against each other, and against literal frames.

use super::*;
use crate::terminate::Reason;

const END: Duration = Duration::from_secs(10);

/// What both sides agree on when they start with these terms.
fn meet(terms: Terms, responder: Terms) -> Result<(Agreement, Agreement), Error> {
    let mut initiator = Initiator::new(terms, b"ask", END)?;
    let mut other = Responder::new(responder, END);
    let asked = other.receive(&initiator.poll_transmit().unwrap())?.expect("a whole request");
    assert_eq!(asked.private, b"ask");
    let (reply, theirs) = other.accept(responder.ird, responder.ord, b"answer")?;
    match initiator.receive(&[&reply[..], b"fpdu"].concat())? {
        (len, Some(Answer::Accepted(ours, private))) => {
            assert_eq!((len, &private[..]), (reply.len(), &b"answer"[..]));
            Ok((ours, theirs))
        }
        other => panic!("{other:?}"),
    }
}

fn rtr(send: bool, write: bool, read: bool) -> Option<RtrSet> {
    Some(RtrSet { send, write, read })
}

/// A reply with these flags and revision, and these bytes of private data.
fn reply(flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    [&b"MPA ID Rep Frame"[..], &[flags, revision, 0, private.len() as u8], private].concat()
}

fn answer(terms: Terms, reply: &[u8]) -> (Result<Answer, Error>, Option<Vec<u8>>) {
    let mut initiator = Initiator::new(terms, b"", END).unwrap();
    initiator.poll_transmit();
    let result = initiator.receive(reply).map(|(_, answer)| answer.expect("a whole reply"));
    (result, initiator.poll_transmit())
}

#[test]
fn iw_crc_agreed_if_either_side_asks() {
    for (one, two, used) in [(false, false, false), (true, false, true), (false, true, true), (true, true, true)] {
        let (ours, theirs) =
            meet(Terms { crc: one, ..Terms::default() }, Terms { crc: two, ..Terms::default() }).unwrap();
        assert_eq!((ours.crc, theirs.crc), (used, used), "{one} {two}");
    }
}

#[test]
fn iw_markers_are_agreed_on_for_each_direction() {
    for (one, two) in [(false, false), (true, false), (false, true), (true, true)] {
        let with = |markers| Terms { markers, ..Terms::default() };
        let (ours, theirs) = meet(with(one), with(two)).unwrap();
        assert_eq!((ours.receives_markers, theirs.sends_markers), (one, one));
        assert_eq!((theirs.receives_markers, ours.sends_markers), (two, two));
    }
}

#[test]
fn iw_markers_a_responder_without_them_rejects_a_peer_that_asks() {
    let request = b"MPA ID Req Frame\xd0\x02\0\x06\0\x04\0\x04hi";
    let mut responder = Responder::new(Terms { sends_markers: false, ..Terms::default() }, END);
    assert_eq!(responder.receive(request), Err(Error::Markers));
    assert_eq!(responder.poll_transmit().unwrap(), reply(0x70, 2, &[0; 4]));
}

#[test]
fn iw_depth_no_side_has_more_reads_outstanding_than_the_other_serves() {
    let depth = |ird, ord, most_ird| Terms { ird, ord, most_ird, ..Terms::default() };
    let (ours, theirs) = meet(depth(4, 8, 128), depth(2, 16, 6)).unwrap();
    assert_eq!((theirs.ird, theirs.ord), (6, 4), "raised towards the peer's ORD, as far as allowed");
    assert_eq!((ours.ird, ours.ord), (4, 6));
}

#[test]
fn iw_depth_an_unknown_one_changes_nothing() {
    let terms = Terms { ird: 3, ord: 5, ..Terms::default() };
    let (result, _) = answer(terms, &reply(0x50, 2, &[0x3f, 0xff, 0x3f, 0xff]));
    let Ok(Answer::Accepted(agreement, _)) = result else { panic!("{result:?}") };
    assert_eq!((agreement.ird, agreement.ord), (3, 5));
}

#[test]
fn revision_1_has_the_local_depths_and_serves_what_a_request_without_a_number_stands_for() {
    let old = |ird, ord| Terms { revision: 1, ird, ord, ..Terms::default() };
    let (ours, theirs) = meet(old(4, 8), Terms { ird: 20, ord: 16, ..Terms::default() }).unwrap();
    assert_eq!((ours.ird, ours.ord, theirs.ird, theirs.ord), (PLAIN_DEPTH, 8, 20, 16));
    assert_eq!((ours.revision, theirs.revision), (1, 1));
    let mut responder = Responder::new(Terms::default(), END);
    let asked = Asked { revision: 1, ird: PLAIN_DEPTH, ord: PLAIN_DEPTH, private: b"hi".to_vec() };
    assert_eq!(responder.receive(b"MPA ID Req Frame\x40\x01\0\x02hi"), Ok(Some(asked)));
}

#[test]
fn iw_depth_refused_with_a_terminate() {
    let terms = Terms { crc: false, ..Terms::default() };
    let (result, sent) = answer(terms, &reply(0x10, 2, &[0, 4, 0, 200]));
    assert_eq!(result, Err(Error::Ird { asked: 200, most: 128 }));
    let fpdu = b"\0\x16\x41\x47\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0\x20\x06\0\0\0\0\0\0";
    assert_eq!(sent.unwrap(), fpdu);
}

#[test]
fn iw_rtr_choice_is_one_message_that_both_sides_know() {
    let chosen = |offered| {
        let (ours, theirs) = meet(Terms { peer_to_peer: offered, ..Terms::default() }, Terms::default()).unwrap();
        assert_eq!(ours.rtr, theirs.rtr);
        ours.rtr
    };
    assert_eq!(chosen(rtr(true, true, true)), Some(Rtr::Write));
    assert_eq!(chosen(rtr(true, false, true)), Some(Rtr::Read));
    assert_eq!(chosen(rtr(true, false, false)), Some(Rtr::Send));
    assert_eq!(chosen(None), None);
}

#[test]
fn iw_rtr_choice_that_was_not_offered_gets_a_terminate_unless_the_peer_is_siw() {
    let terms = Terms { peer_to_peer: rtr(true, false, false), ..Terms::default() };
    let writes = reply(0x50, 2, &[0x80, 4, 0x80, 4]);
    let (result, sent) = answer(terms, &writes);
    assert_eq!(result, Err(Error::Rtr));
    assert_eq!(sent.unwrap()[20..22], [0x20, 7]);
    let (result, _) = answer(Terms { quirks: Quirks::SIW, ..terms }, &writes);
    assert!(matches!(result, Ok(Answer::Accepted(Agreement { rtr: Some(Rtr::Write), .. }, _))), "{result:?}");
    let (result, _) = answer(terms, &reply(0x50, 2, &[0xc0, 4, 0x80, 4]));
    assert_eq!(result, Err(Error::Rtr), "two choices are none");
    let (result, _) = answer(terms, &reply(0x50, 2, &[0, 4, 0, 4]));
    assert!(matches!(result, Ok(Answer::Accepted(Agreement { rtr: None, .. }, _))), "a responder may decline");
}

#[test]
fn iw_revision_of_the_reply_is_that_of_the_request() {
    assert_eq!(answer(Terms::default(), &reply(0x40, 1, b"")).0, Err(Error::Revision(1)));
    assert_eq!(answer(Terms::default(), &reply(0x40, 2, b"")).0, Err(Error::Mode));
    let old = Terms { revision: 1, ..Terms::default() };
    assert_eq!(answer(old, &reply(0x50, 2, &[0; 4])).0, Err(Error::Revision(2)));
    let without = Terms { sends_markers: false, ..Terms::default() };
    assert_eq!(answer(without, &reply(0xd0, 2, &[0; 4])).0, Err(Error::Markers));
}

#[test]
fn iw_revision_1_is_asked_for_if_the_peer_knows_no_other() {
    let asked = |reply: &[u8]| {
        let mut initiator = Initiator::new(Terms::default(), b"hello", END).unwrap();
        initiator.poll_transmit();
        let _ = initiator.receive(reply);
        initiator.in_revision_1(END).map(|mut again| again.poll_transmit().unwrap())
    };
    let request = b"MPA ID Req Frame\x40\x01\0\x05hello".to_vec();
    assert_eq!(asked(b""), Some(request.clone()), "closed without a reply");
    assert_eq!(asked(&reply(0x60, 1, b"")), Some(request), "rejected in revision 1");
    assert_eq!(asked(&reply(0x70, 2, &[0; 4])), None, "rejected by the program");
    assert_eq!(asked(&[7; 20]), None, "no reply frame");
    let old = Initiator::new(Terms { revision: 1, ..Terms::default() }, b"", END).unwrap();
    assert!(old.in_revision_1(END).is_none(), "asked in revision 1 before");
}

#[test]
fn iw_reject_carries_private_data() {
    let mut responder = Responder::new(Terms { quirks: Quirks::SIW, ..Terms::default() }, END);
    responder.receive(b"MPA ID Req Frame\x10\x02\0\x04\0\x04\0\x04").unwrap();
    let (bytes, linger) = responder.reject(b"because").unwrap();
    assert_eq!(linger, Duration::from_secs(1));
    assert_eq!(bytes, reply(0x70, 2, b"\0\x04\0\x04because"));
    assert_eq!(answer(Terms::default(), &bytes).0, Ok(Answer::Rejected(b"because".to_vec())));
    assert_eq!(responder.accept(1, 1, b""), Err(Error::Order));
}

#[test]
fn iw_early_data_behind_the_request_is_an_error() {
    let request = b"MPA ID Req Frame\x10\x02\0\x04\0\x04\0\x04";
    let mut responder = Responder::new(Terms::default(), END);
    assert_eq!(responder.receive(&[&request[..], b"x"].concat()), Err(Error::Early));
    let mut responder = Responder::new(Terms::default(), END);
    assert!(responder.receive(request).unwrap().is_some());
    assert_eq!(responder.receive(b"x"), Err(Error::Early));
    let mut responder = Responder::new(Terms::default(), END);
    assert_eq!(responder.receive(&[&request[..], &[0; 600]].concat()), Err(Error::Early));
}

#[test]
fn a_frame_may_arrive_byte_by_byte() {
    let mut initiator = Initiator::new(Terms::default(), &[7; 508], END).unwrap();
    let mut responder = Responder::new(Terms::default(), END);
    let request = initiator.poll_transmit().unwrap();
    let (last, first) = request.split_last().unwrap();
    for byte in first {
        assert_eq!(responder.receive(&[*byte]), Ok(None));
    }
    assert_eq!(responder.receive(&[*last]).unwrap().unwrap().private, [7; 508]);
    let (reply, _) = responder.accept(1, 1, b"").unwrap();
    let (last, first) = reply.split_last().unwrap();
    for byte in first {
        assert_eq!(initiator.receive(&[*byte]), Ok((1, None)));
    }
    let (len, answer) = initiator.receive(&[*last, 1, 2]).unwrap();
    assert!(len == 1 && matches!(answer, Some(Answer::Accepted(..))));
}

#[test]
fn deadlines_end_the_wait_for_a_frame_and_nothing_else() {
    let mut initiator = Initiator::new(Terms::default(), b"", END).unwrap();
    let mut responder = Responder::new(Terms::default(), END);
    assert_eq!((initiator.poll_timeout(), responder.poll_timeout()), (Some(END), Some(END)));
    let early = END - Duration::from_nanos(1);
    assert_eq!((initiator.expire(early), responder.expire(early)), (Ok(()), Ok(())));
    responder.receive(&initiator.poll_transmit().unwrap()).unwrap();
    assert_eq!((responder.poll_timeout(), responder.expire(END)), (None, Ok(())), "the program may take its time");
    assert_eq!(initiator.expire(END), Err(Error::Timeout));
    assert_eq!(initiator.receive(b"MPA"), Err(Error::Order));
    let mut slow = Responder::new(Terms::default(), END);
    assert_eq!(slow.expire(END), Err(Error::Timeout));
    assert_eq!(slow.receive(b"MPA"), Err(Error::Order));
}

#[test]
fn iw_private_data_has_its_limits() {
    let length = |terms, len| Initiator::new(terms, &vec![0; len], END).map(|_| ());
    let old = Terms { revision: 1, ..Terms::default() };
    let siw = Terms { quirks: Quirks::SIW, ..Terms::default() };
    for (terms, most) in [(Terms::default(), 508), (old, 512), (siw, 251)] {
        assert_eq!(length(terms, most), Ok(()));
        assert_eq!(length(terms, most + 1), Err(Error::PrivateLength(most + 1)));
    }
}

#[test]
fn only_errors_of_enhanced_mode_have_a_terminate() {
    assert_eq!(Error::Ird { asked: 2, most: 1 }.terminate(), Some(Reason::MpaIrd));
    assert_eq!(Error::Rtr.terminate(), Some(Reason::MpaNoRtr));
    assert_eq!((Error::Key.terminate(), Error::Timeout.terminate()), (None, None));
}

#[test]
fn a_peer_that_closes_ends_the_exchange() {
    let mut initiator = Initiator::new(Terms::default(), b"", END).unwrap();
    let mut responder = Responder::new(Terms::default(), END);
    assert_eq!((initiator.closed(), responder.closed()), (Error::Closed, Error::Closed));
    assert_eq!((initiator.poll_timeout(), responder.poll_timeout()), (None, None));
}
