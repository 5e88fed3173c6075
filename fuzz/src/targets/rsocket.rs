//! The peer of an rsocket: its greeting, its messages, and the headers of datagrams.

use crate::Feed;
use rsocket::connect::Hello;
use rsocket::datagram;
use rsocket::ring::Pieces;
use rsocket::stream::{Sizes, Stream};
use rsocket::target::Target;

const SIZES: Sizes = Sizes { send_ring: 4096, receive_ring: 8192, send_queue: 16, receive_queue: 16 };

pub(crate) fn run(bytes: &[u8]) {
    if let Some((source, rest)) = datagram::Source::parse(bytes) {
        let mut again = vec![0; source.size()];
        assert_eq!((source.emit(&mut again), rest.len()), (again.len(), bytes.len() - again.len()));
        assert_eq!(datagram::Source::parse(&again), Some((source, &[][..])));
    }
    if let Some((resolve, rest)) = datagram::Resolve::parse(bytes) {
        assert!(rest.len() < bytes.len() && !format!("{resolve:?}").is_empty());
    }
    let mut feed = Feed(bytes);
    let Ok(hello) = Hello::parse(feed.take(Hello::SIZE)) else { return };
    let mut stream = Stream::new(SIZES, &hello);
    stream.set_ring(0x10_0000, 2);
    let mut posted = Vec::new();
    while !feed.is_empty() {
        match feed.byte() % 8 {
            0 | 1 => {
                let _ = stream.received(feed.word());
            }
            2 => {
                if stream.wanted_entry().is_some() {
                    let (address, key, length) = (u64::from(feed.word()), feed.word(), feed.word());
                    stream.take_entry(Target { address, key, length });
                }
            }
            3 => {
                let length = u32::from(feed.half()).min(stream.room());
                if length > 0 {
                    let (transfer, pieces) = stream.send(length);
                    assert_eq!(pieces.length(), length);
                    inside(pieces, SIZES.send_ring);
                    posted.push(transfer.work);
                }
            }
            4 => {
                let length = u32::from(feed.half()).min(stream.inbox().unread());
                inside(stream.inbox().pieces(0, length), SIZES.receive_ring);
                stream.consume(length);
            }
            5 => posted.extend(stream.grant().map(|grant| grant.transfer.work)),
            6 => {
                if let Some(work) = posted.pop() {
                    stream.completed(work, feed.byte() != 0);
                }
            }
            _ => {
                posted.extend(stream.shut_down(false, true).and_then(|what| stream.control(what)).map(|sent| sent.work))
            }
        }
        assert!(stream.inbox().unread() <= SIZES.receive_ring && stream.room() <= SIZES.send_ring);
        assert!(posted.len() <= 32, "no more than the queue holds: {posted:?}");
    }
}

fn inside(pieces: Pieces, size: u32) {
    let (offset, length) = pieces.first;
    assert!(offset.checked_add(length).is_some_and(|end| end <= size) && pieces.second <= size, "{pieces:?}");
}
