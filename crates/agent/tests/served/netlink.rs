//! The node of NETLINK_RDMA. Long answers come in bounded messages up to DONE. Several requests are
//! answered in order. The agent survives any bytes.

use crate::common::TestAgent;
use abi::netlink::{ANSWER_MAX, Header, NODE, attribute, command, flag, messages};
use shm::socket::Socket;

const NLDEV: u16 = 5 << 10;
const DONE: u16 = 3;
const ERROR: u16 = 2;

/// A request whose attributes are words.
fn request(command: u16, flags: u16, sequence: u32, words: &[(u16, u32)]) -> Vec<u8> {
    let mut bytes = (16 + 8 * words.len() as u32).to_ne_bytes().to_vec();
    bytes.extend((NLDEV | command).to_ne_bytes());
    bytes.extend((flag::REQUEST | flags).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    for (number, value) in words {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value.to_ne_bytes());
    }
    bytes
}

fn connect(agent: &TestAgent) -> Socket {
    Socket::connect(&agent.dir.join(NODE)).expect("the node is there")
}

/// The messages of answers, up to the message that ends or refuses request `last`.
fn answers(socket: &Socket, last: u32) -> Vec<(Header, Vec<u8>)> {
    let mut found = Vec::new();
    loop {
        let mut bytes = [0; 65536];
        let len = socket.recv(&mut bytes).expect("an answer").len;
        assert!(len > 0 && len <= ANSWER_MAX, "{len} bytes");
        let before = found.len();
        found.extend(messages(&bytes[..len]).map(|(header, body)| (header, body.to_vec())));
        assert!(found.len() > before, "whole messages");
        if found.iter().any(|(header, _)| header.sequence == last && matches!(header.kind, DONE | ERROR)) {
            return found;
        }
    }
}

/// The attributes of one level: number and value.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while bytes.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
        found.push((u16::from_ne_bytes([bytes[2], bytes[3]]), &bytes[4..len]));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

#[test]
fn a_long_answer_names_every_object_once_in_messages_that_programs_have_room_for() {
    const COUNT: usize = 500;
    let agent = TestAgent::start();
    let mut clients = [agent.client(), agent.client()];
    for client in &mut clients {
        (0..COUNT / 2).for_each(|_| _ = client.alloc_pd());
    }
    let socket = connect(&agent);
    let asked = request(command::RES_PD_GET, flag::DUMP | flag::ACK, 5, &[(attribute::DEV_INDEX, 0)]);
    socket.send(&asked, &[]).expect("sent");
    let found = answers(&socket, 5);
    assert!(found.len() > 3, "in several messages: {}", found.len());
    let mut numbers = Vec::new();
    for (header, body) in &found[..found.len() - 1] {
        assert_eq!((header.kind, header.flags, header.sequence), (NLDEV | command::RES_PD_GET, flag::MULTI, 5));
        let top = attributes(body);
        assert_eq!(top[..2], [(attribute::DEV_INDEX, &0_u32.to_ne_bytes()[..]), (attribute::DEV_NAME, b"softhca0\0")]);
        let (number, table) = top[2];
        assert_eq!(number, attribute::RES_PD);
        for (number, entry) in attributes(table) {
            assert_eq!(number, attribute::RES_PD + 1);
            let entry = attributes(entry);
            let (_, value) = entry.iter().find(|(number, _)| *number == attribute::RES_PDN).expect("a number");
            numbers.push(u32::from_ne_bytes(**value.first_chunk().as_ref().expect("a word")));
            assert!(entry.contains(&(attribute::RES_PID, &std::process::id().to_ne_bytes())));
        }
    }
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!((count, numbers.len()), (COUNT, COUNT));

    // An existing object, and one that does not exist.
    let one =
        request(command::RES_PD_GET, 0, 6, &[(attribute::DEV_INDEX, 0), (attribute::RES_PDN, numbers[COUNT - 1])]);
    let none = request(command::RES_PD_GET, 0, 7, &[(attribute::DEV_INDEX, 0), (attribute::RES_PDN, 0xffff_ffff)]);
    socket.send(&[one, none].concat(), &[]).expect("sent");
    let found = answers(&socket, 7);
    assert_eq!(
        found.iter().map(|(header, _)| (header.sequence, header.kind)).collect::<Vec<_>>(),
        [(6, NLDEV | command::RES_PD_GET), (7, ERROR)]
    );
    assert_eq!(found[1].1[..4], (-2_i32).to_ne_bytes());
}

#[test]
fn the_requests_of_one_datagram_are_answered_in_order() {
    let agent = TestAgent::start_with(
        "[[devices]]\nname = \"rxe0\"\n[[devices]]\nname = \"rxe1\"\n[[devices.ports]]\n[[devices.ports]]\n",
    );
    let socket = connect(&agent);
    let asked = [
        request(command::GET, flag::DUMP, 1, &[]),
        request(command::PORT_GET, flag::DUMP, 2, &[(attribute::DEV_INDEX, 1)]),
        request(command::PORT_GET, flag::ACK, 3, &[(attribute::DEV_INDEX, 0), (attribute::PORT_INDEX, 1)]),
        request(command::RES_GET, flag::DUMP, 4, &[]),
        request(command::RES_GET, 0, 5, &[(attribute::DEV_INDEX, 1)]),
        request(command::SET, flag::ACK, 6, &[(attribute::DEV_INDEX, 0)]),
        request(command::PORT_GET, 0, 7, &[(attribute::DEV_INDEX, 0), (attribute::PORT_INDEX, 2)]),
        request(command::PORT_GET, 0, 8, &[(attribute::DEV_INDEX, 2), (attribute::PORT_INDEX, 1)]),
    ];
    socket.send(&asked.concat(), &[]).expect("sent");
    let found = answers(&socket, 8);
    let told: Vec<_> = found
        .iter()
        .map(|(header, body)| {
            let errno = body.first_chunk().map_or(0, |word| -i32::from_ne_bytes(*word));
            (header.sequence, header.kind & 0x3ff, if header.kind == ERROR { errno } else { 0 })
        })
        .collect();
    let expected = [
        (1, command::GET, 0),
        (1, command::GET, 0),
        (1, DONE, 0),
        (2, command::PORT_GET, 0),
        (2, command::PORT_GET, 0),
        (2, DONE, 0),
        (3, command::PORT_GET, 0),
        (3, ERROR, 0),
        (4, command::RES_GET, 0),
        (4, command::RES_GET, 0),
        (4, DONE, 0),
        (5, command::RES_GET, 0),
        (6, ERROR, 95),
        (7, ERROR, 22),
        (8, ERROR, 19),
    ];
    assert_eq!(told, expected);
}

#[test]
fn whatever_comes_the_agent_goes_on() {
    let agent = TestAgent::start();
    let good = request(command::RES_QP_GET, flag::DUMP, 9, &[(attribute::DEV_INDEX, 0)]);
    // A fixed generator, so that each run sends the same bytes.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..400 {
        let socket = connect(&agent);
        let mut bytes = good.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes.truncate(1 + next() as usize % bytes.len());
        socket.send(&bytes, &[]).expect("sent");
        // Whether or not these bytes have an answer, the request after them has one.
        socket.send(&request(command::SYS_GET, flag::ACK, 0xffff_fff0, &[]), &[]).expect("sent");
        answers(&socket, 0xffff_fff0);
    }
    assert_eq!(agent.ask("status")["contexts"], 0);
}

#[test]
fn a_netlink_client_that_does_not_read_delays_no_other() {
    let agent = TestAgent::start();
    let mut client = agent.client();
    (0..1000).for_each(|_| _ = client.alloc_pd());
    let silent = connect(&agent);
    let asked = request(command::RES_PD_GET, flag::DUMP, 1, &[(attribute::DEV_INDEX, 0)]);
    // More answers than fit into the socket; meanwhile the agent reads no more requests.
    silent.set_nonblocking(true).expect("set");
    while silent.try_send(&asked.repeat(50), &[]).is_ok() {}
    let other = connect(&agent);
    other.send(&request(command::GET, flag::DUMP, 2, &[]), &[]).expect("sent");
    assert_eq!(answers(&other, 2).len(), 2);
}
