//! Datagrams to an agent with a link to another agent, from who knows its cookie. Each begins with
//! a length and a time. With the lowest bit of the time's byte set, the header is a valid one, and
//! the input has the kind and the body.

use crate::feed::Feed;
use mad::topology::Topology;
use std::net::SocketAddr;
use subnet::Managed;
use subnet::managed::Output;
use subnet::rate::{MICROSECOND, Mtu, Time};
use subnet::tunnel::{Message, SILENCE, Tunnel};

/// The cookies of the agent and of its peer.
const OWN: u64 = 0xa;
const PEER: u64 = 0xb;
/// The longest datagram of an input, and the most that are taken.
const LONGEST: usize = 400;
const MOST: usize = 64;

/// The agent with its switch, whose port 1 leads to the peer.
fn agent(peer: SocketAddr) -> Managed {
    let text = format!("Switch 4 \"S1\"\n[1] \"@{peer}/S2\"[1]\n[2] \"H1\"[1]\n\nHca 1 \"H1\"\n");
    let mut net = Managed::new(&Topology::from_text(&text).expect("a topology")).expect("a fabric");
    let ends: Vec<_> = net.tunnels().collect();
    ends.into_iter().for_each(|(near, _)| net.open_tunnel(near, OWN, Mtu::B4096));
    net
}

/// Takes what leaves the agent, and gives it to the peer, if there is one.
fn advance(net: &mut Managed, time: Time, peer: Option<&mut Tunnel>) -> usize {
    let now = net.now() + time;
    let outputs = net.advance(now);
    let count = outputs.len();
    let datagrams = outputs.into_iter().filter_map(|output| match output {
        Output::Tunnel { bytes, .. } => Some(bytes),
        _ => None,
    });
    if let Some(peer) = peer {
        datagrams.for_each(|bytes| drop(peer.handle(&bytes, now)));
    }
    count
}

pub(crate) fn run(bytes: &[u8]) {
    if let Some((receiver, message)) = Message::parse(bytes) {
        assert_eq!(message.to_bytes(receiver), bytes);
    }
    let address = SocketAddr::from(([10, 0, 0, 2], 4792));
    let (mut net, mut feed) = (agent(address), Feed(bytes));
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        let (length, time) = (usize::from(feed.half()).min(LONGEST), feed.byte());
        let body = feed.take(length);
        let whole = match body.split_first() {
            Some((kind, rest)) if time & 1 == 1 => {
                [b"IBtu\x02", &[*kind][..], &[0; 2], &OWN.to_be_bytes(), rest].concat()
            }
            _ => body.to_vec(),
        };
        let _ = net.tunnel_arrived(address, &whole);
        let count = advance(&mut net, Time::from(time) * MICROSECOND, None);
        assert!(count < 1000, "a datagram causes bounded work");
    }
    // The real peer still finds the link.
    advance(&mut net, SILENCE + SILENCE, None);
    let offer = subnet::tunnel::Offer { widths: 3, speeds: 0x1f, mtu: Mtu::B4096 };
    let mut peer = Tunnel::new(PEER, "S2[1]", "S1[1]", offer);
    for _ in 0..8 {
        while let Some(bytes) = peer.poll_transmit(net.now()) {
            let _ = net.tunnel_arrived(address, &bytes);
        }
        advance(&mut net, 200_000 * MICROSECOND, Some(&mut peer));
    }
    assert!(peer.is_up(), "the agent answers its peer");
}
