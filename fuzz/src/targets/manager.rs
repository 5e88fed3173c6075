//! Commands of a program to the connection manager of an agent in this process.

use abi::layout::Record;
use abi::ucma::{ManagerHeader, ROWS};
use engine::Control;
use fabric::Fabric;

use super::datagram::meet;
use crate::feed::{Feed, fill_in};

/// How many commands one program gives.
const MOST: usize = 32;

pub(crate) fn run(bytes: &[u8]) {
    let fabric = Fabric::two_hosts().expect("two hosts");
    let (channel, _bell) = fabric.host(0).agent().connect_manager().expect("a channel");
    let mut feed = Feed(bytes);
    let mut answers = Vec::new();
    for _ in 0..MOST {
        if feed.is_empty() {
            break;
        }
        if let Ok(answer) = channel.call(&request(&mut feed, &answers), &[])
            && let Some(word) = answer.bytes.first_chunk()
        {
            answers.push(u32::from_le_bytes(*word));
        }
    }
    meet(&fabric, 17);
}

fn request(feed: &mut Feed<'_>, answers: &[u32]) -> Vec<u8> {
    let (which, len) = (feed.byte(), usize::from(feed.half()));
    let mut body = feed.take(len).to_vec();
    fill_in(&mut body, answers);
    let Some(row) = ROWS.get(usize::from(which)) else { return body };
    body.resize(body.len().max(row.request_min), 0);
    let header = ManagerHeader {
        command: row.number,
        in_len: u16::try_from(body.len()).unwrap_or(u16::MAX),
        out_len: u16::try_from(row.answer_min).unwrap_or(u16::MAX).saturating_add(64),
    };
    [header.bytes(), &body].concat()
}
