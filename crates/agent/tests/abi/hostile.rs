//! Clients that send nonsense. Each request is answered, and other clients are not affected.

use crate::harness::{Client, Kind, Node, Request, hex};

/// A small random generator; its seed makes a failure repeatable.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A word as in a body: small, a handle, an extreme, or any value.
    fn word(&mut self, handles: &[String]) -> [u8; 4] {
        match self.below(6) {
            0 | 1 => u32::try_from(self.below(5)).unwrap().to_le_bytes(),
            2 | 3 => hex(&handles[usize::try_from(self.below(handles.len() as u64)).unwrap()]).try_into().unwrap(),
            4 => [0xff; 4],
            _ => u32::try_from(self.next() >> 32).unwrap().to_le_bytes(),
        }
    }
}

fn handles(client: &mut Client) -> Vec<String> {
    [Kind::Pd, Kind::Mr, Kind::Ah, Kind::Channel, Kind::Cq, Kind::Qp, Kind::UdQp, Kind::Srq, Kind::Mw, Kind::Dm]
        .into_iter()
        .map(|kind| client.make(kind))
        .collect()
}

#[test]
fn random_commands_are_answered() {
    let node = Node::start();
    let mut bystander = node.context();
    let mut client = node.context();
    let handles = handles(&mut client);
    let mut random = Random(0x5eed_0000_0000_0001);
    let mut carried_out = 0;
    for _ in 0..5_000 {
        let words = random.below(40);
        let body: Vec<u8> = (0..words).flat_map(|_| random.word(&handles)).collect();
        let number = u8::try_from(random.below(60)).unwrap();
        let room = u8::try_from(random.below(80)).unwrap();
        let mut bytes = if random.below(4) == 0 {
            let number = if number < 30 { number } else { 170 + number };
            let response = u8::from(room > 0);
            let in_words = u8::try_from(words / 2).unwrap();
            let body = &body[..usize::from(in_words) * 8];
            [&[number, 0, 0, 0x80, in_words, 0, room, 0, response], [0; 15].as_slice(), body].concat()
        } else {
            let in_words = u8::try_from(words + 2).unwrap();
            [&[number, 0, 0, 0, in_words, 0, room, 0], body.as_slice()].concat()
        };
        if random.below(10) == 0 && !bytes.is_empty() {
            let at = usize::try_from(random.below(bytes.len() as u64)).unwrap();
            bytes[at] ^= 1 << random.below(8);
        }
        let reply = client.call(&Request { bytes, fds: Vec::new() });
        assert!((-133..=0).contains(&reply.status), "status {}", reply.status);
        carried_out += u32::from(reply.status == 0);
    }
    assert!(carried_out > 100, "only {carried_out} commands made sense: the test does not reach far");
    bystander.make(Kind::Qp);
    drop(client);
    node.context().make(Kind::Qp);
}

#[test]
fn a_message_without_envelope_ends_the_connection_only() {
    let node = Node::start();
    let mut bystander = node.context();
    let client = node.context();
    assert!(client.exchange(&[1, 2, 3]).is_empty(), "closed");
    let nobody = node.connect();
    assert_eq!(nobody.exchange(&[0; 15]).len(), 16, "a short Open is turned away with an answer");
    bystander.make(Kind::Pd);
}
