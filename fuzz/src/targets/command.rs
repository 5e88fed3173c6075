//! Commands of a program, with its agent as a value.

use abi::command::{self, EXTENDED, ExtendedHeader, Header, ROWS, number};
use abi::cq::CreateCq;
use abi::device::GetContext;
use abi::layout::Record;
use abi::open::profile;
use abi::pd::{AllocPd, DeallocPd};
use abi::qp::{CreateQp, DestroyQp};
use agent::Config;
use agent::context::{ContextId, Peer};
use agent::dispatch::{Reply, dispatch};
use agent::world::World;

use crate::feed::{Feed, fill_in};

/// How many commands one program gives.
const MOST: usize = 64;

pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new(&Config::default(), "a fuzzer").expect("a world");
    let mut open = |profile, uid| {
        let peer = Peer { pid: std::process::id(), uid, comm: "fuzz".into() };
        world.open(0, profile, peer).expect("a context")
    };
    let mut feed = Feed(bytes);
    let profile = if feed.byte() & 1 == 0 { profile::MAINLINE } else { profile::OFED };
    let (other, id) = (open(profile::MAINLINE, 1), open(profile, 2));
    for id in [other, id] {
        answer(&call(&mut world, id, number::GET_CONTEXT, &GetContext { response: 1 }, 48));
    }
    let (pd_handle, cq, qp) = things(&mut world, other);

    let mut answers = Vec::new();
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let request = request(&mut feed, &answers);
        let reply = dispatch(&mut world, id, &request, Vec::new());
        if let (0, Some(word)) = (reply.status, reply.bytes.first_chunk()) {
            answers.push(u32::from_le_bytes(*word));
        }
        assert!(
            reply.status <= 0 && (reply.status == 0 || std::str::from_utf8(&reply.bytes).is_ok() || is_post(&request))
        );
        world.flush(true);
    }

    let body = DestroyQp { response: 1, qp_handle: qp, ..DestroyQp::default() };
    answer(&call(&mut world, other, number::DESTROY_QP, &body, 4));
    let body = abi::cq::DestroyCq { response: 1, cq_handle: cq, ..abi::cq::DestroyCq::default() };
    answer(&call(&mut world, other, number::DESTROY_CQ, &body, 8));
    answer(&call(&mut world, other, number::DEALLOC_PD, &DeallocPd { pd_handle }, 0));
    world.close(id);
    world.close(other);
}

/// POST_* answer with the request at fault before the sentence.
fn is_post(request: &[u8]) -> bool {
    let number = request.first().copied().unwrap_or(0);
    ROWS.iter().any(|row| row.number == number && row.name.starts_with("POST_"))
}

fn request(feed: &mut Feed<'_>, answers: &[u32]) -> Vec<u8> {
    let (which, len) = (feed.byte(), usize::from(feed.byte()));
    let mut body = feed.take(len * 4).to_vec();
    fill_in(&mut body, answers);
    let Some(row) = ROWS.get(usize::from(which)) else { return body };
    if !row.extended {
        body.resize(body.len().next_multiple_of(4).max(row.request_min), 0);
        let header = Header {
            command: u32::from(row.number),
            in_words: u16::try_from((body.len() + 8) / 4).expect("short"),
            out_words: u16::try_from(row.answer_min.div_ceil(4) + 16).expect("short"),
        };
        return [header.bytes(), &body].concat();
    }
    body.resize(body.len().next_multiple_of(8).max(row.request_min.next_multiple_of(8)), 0);
    let header = Header {
        command: EXTENDED | u32::from(row.number),
        in_words: u16::try_from(body.len() / 8).expect("short"),
        out_words: u16::try_from(row.answer_min.div_ceil(8) + 8).expect("short"),
    };
    let second = ExtendedHeader { response: command::RESPONSE, provider_out_words: 8, ..ExtendedHeader::default() };
    [header.bytes(), second.bytes(), &body].concat()
}

/// What the other program has: a PD, a CQ and a QP.
fn things(world: &mut World, id: ContextId) -> (u32, u32, u32) {
    let pd = answer(&call(world, id, number::ALLOC_PD, &AllocPd { response: 1 }, 12));
    let cq = CreateCq { response: 1, cqe: 10, comp_channel: -1, ..CreateCq::default() };
    let cq = answer(&call(world, id, number::CREATE_CQ, &cq, 64));
    let qp = CreateQp {
        response: 1,
        pd_handle: pd,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        qp_type: abi::qp::kind::RC,
        ..CreateQp::default()
    };
    let qp = answer(&call(world, id, number::CREATE_QP, &qp, 104));
    (pd, cq, qp)
}

fn call<T: Record>(world: &mut World, id: ContextId, number: u8, body: &T, room: usize) -> Reply {
    dispatch(world, id, &command::legacy(number, body, &[], room), Vec::new())
}

fn answer(reply: &Reply) -> u32 {
    assert_eq!(reply.status, 0, "{}", String::from_utf8_lossy(&reply.bytes));
    reply.bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}
