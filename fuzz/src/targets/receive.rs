//! Packets for an engine, from the right address and with a fitting ICRC: all but what a peer knows better than a stranger is up to
//! the bytes.
//!
//! Two hosts have a reliable and an unreliable connection and two datagram queue pairs. The wire between them loses everything, so
//! what one side has posted waits for answers, which the bytes may give. Then the wire is mended, and those who were not part of it talk.

use std::time::Duration;

use fabric::{Fabric, Faults};
use softhca::{Access, Context, Cq, DatagramQp, Endpoint, Pd, Qp, Reliable, Unreliable};
use wire::icrc::Envelope;
use wire::{Headers, Opcode, Psn, Qpn};

use crate::Feed;

const PORT: u16 = 0xc123;
const MOST: usize = 48;
const REGION: usize = 4096;
/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// What one host has.
struct Side {
    pd: Pd,
    cq: Cq,
    reliable: Qp<Reliable>,
    unreliable: Qp<Unreliable>,
    datagrams: DatagramQp,
}

pub(crate) fn run(bytes: &[u8]) {
    let fabric = Fabric::builder().host("10.0.0.1").host("10.0.0.2").mtu(1024).build().expect("two hosts");
    let contexts = [0, 1].map(|host| fabric.host(host).open().expect("a device"));
    let sides = sides(&contexts);
    let opened = sides.each_ref().map(|side| side.pd.expose(REGION, Access::ALL).expect("memory"));
    let secret = sides.each_ref().map(|side| side.pd.expose(REGION, Access::READ).expect("memory"));
    for secret in &secret {
        secret.write(0, &[0x5a; REGION]);
    }
    let bystanders = connected(&contexts);

    fabric.switch().set_faults(Faults::loss(1.0, 1));
    for (side, opened) in sides.iter().zip([&opened[1], &opened[0]]) {
        let buffer = || side.pd.buffer(2048).expect("a buffer");
        for id in 0..4 {
            side.reliable.receive(id, buffer()).expect("posted");
            side.unreliable.receive(id, buffer()).expect("posted");
            side.datagrams.receive(id, buffer()).expect("posted");
        }
        let token = opened.token();
        side.reliable.read(10, buffer(), &token.part(..2048).expect("inside")).expect("posted");
        side.reliable
            .fetch_add(11, side.pd.buffer(8).expect("a buffer").part(..), &token.part(..8).expect("inside"), 1)
            .expect("posted");
        side.reliable.send(12, buffer()).expect("posted");
    }

    let mut feed = Feed(bytes);
    let ends = sides.each_ref().map(|side| (side.reliable.endpoint(), side.unreliable.endpoint()));
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let what = feed.byte();
        let to = usize::from(what & 1);
        let packet = packet(
            &mut feed,
            what >> 1,
            &sides[to],
            (&ends[1 - to], &ends[to]),
            &[(opened[to].token().addr, opened[to].token().rkey), (secret[to].token().addr, secret[to].token().rkey)],
        );
        let (from, to) = (ends[1 - to].0.gid, ends[to].0.gid);
        let packet = [&packet[..], &Envelope::new(&from.0, &to.0, PORT).icrc(0, &packet)].concat();
        fabric.switch().inject(from, PORT, to, &packet);
        for side in &sides {
            while let Some(completion) = side.cq.poll().expect("a queue") {
                drop(completion.ok());
            }
        }
    }

    fabric.switch().set_faults(Faults::default());
    let [(left, _), (_right, heard)] = bystanders;
    left.send_inline(1, b"still here", None).expect("posted");
    let completion = heard.wait_for(PATIENCE).expect("a queue").expect("it comes");
    assert_eq!(completion.ok().expect("well").data(), b"still here");
    for secret in &secret {
        assert!(secret.to_vec(..) == [0x5a; REGION], "memory that nobody may write has changed");
    }
}

/// One packet for a queue pair of `to`, whose peer is `from`, up to its last pad byte.
fn packet(
    feed: &mut Feed<'_>,
    what: u8,
    to: &Side,
    (from, own): (&(Endpoint, Endpoint), &(Endpoint, Endpoint)),
    memory: &[(u64, u32)],
) -> Vec<u8> {
    let (opcode, flags, near, len) = (feed.byte(), feed.byte(), feed.byte().cast_signed(), usize::from(feed.half()));
    let Some(opcode) = Opcode::from_u8(opcode) else { return feed.take(len % 64).to_vec() };
    let reliable = what & 3 < 2;
    // Requests count from what the peer sends first, answers from what we sent.
    let first = match (reliable, opcode.is_response()) {
        (true, false) => from.0.psn,
        (true, true) => own.0.psn,
        (false, _) => from.1.psn,
    };
    let dest = match what & 3 {
        0 | 1 => own.0.qpn,
        2 => own.1.qpn,
        _ => to.datagrams.number(),
    };
    let mut bytes = vec![0; 128];
    let body = feed.take(usize::from(flags >> 4) * 4);
    bytes[12..12 + body.len()].copy_from_slice(body);
    bytes[0] = opcode.as_u8();
    let Ok(mut headers) = Headers::parse(&bytes) else { return bytes };
    headers.dest_qp = Qpn::new(dest);
    headers.psn = Psn::new(first.wrapping_add_signed(near.into()) & 0xff_ffff);
    headers.pkey = 0xffff;
    (headers.solicited, headers.ack_req) = (flags & 1 != 0, flags & 2 != 0);
    let (addr, rkey) = memory[usize::from(flags >> 2 & 1)];
    let offset = |va: u64| addr.wrapping_add(u64::from(va as u16 % 8192)).wrapping_sub(2048);
    if flags & 8 == 0 {
        (headers.reth.va, headers.reth.rkey) = (offset(headers.reth.va), rkey);
        (headers.atomic.va, headers.atomic.rkey) = (offset(headers.atomic.va), rkey);
        headers.deth.qkey = to.datagrams.endpoint().qkey;
    }
    let len = len % 1100;
    headers.pad = (len.wrapping_neg() & 3) as u8;
    let mut packet = vec![0; headers.len()];
    headers.emit(&mut packet).expect("room");
    packet.resize(packet.len() + len.next_multiple_of(4), 0xa5);
    packet
}

fn sides(contexts: &[Context; 2]) -> [Side; 2] {
    let made = contexts.each_ref().map(|context| {
        let (pd, cq) = (context.pd().expect("a PD"), context.cq(64).expect("a CQ"));
        // So long that nobody gives up while packets come.
        let reliable = pd
            .reliable(&cq)
            .sends(8)
            .receives(8)
            .timeout(std::time::Duration::from_secs(1))
            .build()
            .expect("a queue pair");
        let unreliable = pd.unreliable(&cq).sends(8).receives(8).build().expect("a queue pair");
        let datagrams = pd.datagrams(&cq).receives(8).build().expect("a queue pair");
        (pd, cq, reliable, unreliable, datagrams)
    });
    let ends = made.each_ref().map(|(_, _, reliable, unreliable, _)| (reliable.endpoint(), unreliable.endpoint()));
    let [a, b] = made;
    [(a, ends[1]), (b, ends[0])].map(|((pd, cq, reliable, unreliable, datagrams), (peer, unreliable_peer))| Side {
        reliable: reliable.connect(&peer).expect("connected"),
        unreliable: unreliable.connect(&unreliable_peer).expect("connected"),
        pd,
        cq,
        datagrams,
    })
}

/// A connection that has nothing to do with all that.
fn connected(contexts: &[Context; 2]) -> [(Qp<Reliable>, Cq); 2] {
    let made = contexts.each_ref().map(|context| {
        let (pd, cq) = (context.pd().expect("a PD"), context.cq(4).expect("a CQ"));
        let qp = pd.reliable(&cq).build().expect("a queue pair");
        qp.receive(1, pd.buffer(16).expect("a buffer")).expect("posted");
        (qp, cq)
    });
    let ends = made.each_ref().map(|(qp, _)| qp.endpoint());
    let [a, b] = made;
    [(a, ends[1]), (b, ends[0])].map(|((qp, cq), peer)| (qp.connect(&peer).expect("connected"), cq))
}
