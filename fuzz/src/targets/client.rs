//! Management datagrams to a client with requests and RMPP, and messages that the client sends.
//! What it keeps stays bounded, and afterwards a new client can still exchange a message with
//! another one.

use crate::Feed;
use mad::client::{Client, Event, FLOWS};
use mad::transactions::{self, Registration};
use std::time::Duration;
use wire::mad::{CLASS_SA, Header, MAD_LEN, METHOD_GET_TABLE, Mad, RESPONSE};
use wire::rmpp::{FLAG_ACTIVE, OFFSET};

const LONGEST: usize = 4096;
const NUMBER: u32 = 7;

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    let mut client = Client::new(Registration(NUMBER), true, LONGEST);
    let mut now = Duration::ZERO;
    while !feed.is_empty() {
        now += Duration::from_millis(u64::from(feed.byte()) * 10);
        let (what, peer, len) = (feed.byte(), feed.byte() % 8, usize::from(feed.byte()));
        let body = feed.take(len);
        match what % 4 {
            0 => {
                let long = usize::from(feed.half()) % (LONGEST + 500);
                let message = [body, &vec![7; long][..]].concat();
                let timeout = Duration::from_millis(u64::from(feed.byte()) * 4);
                let _ = client.send(peer, &message, timeout, u32::from(what >> 6), now);
            }
            1 => client.handle_timeout(now),
            _ => {
                let mut datagram = base(what & 0x80 != 0);
                datagram[..body.len()].copy_from_slice(body);
                client.receive(peer, &datagram, now);
            }
        }
        while client.poll_transmit().is_some() {}
        while let Some(event) = client.poll_event() {
            let (Event::Received(_, message) | Event::Unanswered(_, message)) = event;
            assert!(message.len() <= LONGEST.max(MAD_LEN));
        }
        assert!(client.held() <= 2 * FLOWS * (LONGEST + 66 * MAD_LEN) + transactions::MOST * MAD_LEN);
    }
    well(&mut client, now);
}

/// A whole message reaches another client, after the timers of everything else.
fn well(client: &mut Client<u8>, mut now: Duration) {
    while let Some(due) = client.deadline() {
        now = now.max(due);
        client.handle_timeout(now);
        while client.poll_transmit().is_some() {}
    }
    while client.poll_event().is_some() {}
    assert_eq!(client.held(), 0, "nothing is left");
    let mut other = Client::new(Registration(NUMBER + 1), true, LONGEST);
    let message = [&base(false)[..], &[9; 900]].concat();
    client.send(0, &message, Duration::ZERO, 0, now).expect("nothing is outstanding");
    loop {
        let (there, back) = (client.poll_transmit(), other.poll_transmit());
        if there.is_none() && back.is_none() {
            break;
        }
        there.into_iter().for_each(|(_, mad)| other.receive(0, &mad, now));
        back.into_iter().for_each(|(_, mad)| client.receive(0, &mad, now));
    }
    assert!(matches!(other.poll_event(), Some(Event::Received(0, got)) if got[56..] == message[56..]));
}

/// A segmented message of subnet administration.
fn base(is_answer: bool) -> Mad {
    let mut mad = [0; MAD_LEN];
    let method = if is_answer { METHOD_GET_TABLE | RESPONSE } else { METHOD_GET_TABLE };
    let transaction = u64::from(NUMBER) << 32 | 5;
    Header { base_version: 1, class: CLASS_SA, class_version: 2, method, transaction, ..Header::default() }
        .emit_to(&mut mad);
    (mad[OFFSET], mad[OFFSET + 1], mad[OFFSET + 2]) = (1, 1, FLAG_ACTIVE);
    mad
}
