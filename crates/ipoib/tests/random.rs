//! Random packets, answers and times: an interface never panics, and what it keeps is bounded.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::test_runner::Config as Runs;
use softhca_ipoib::arp::Arp;
use softhca_ipoib::ndisc::Message;
use softhca_ipoib::{Config, EtherType, Event, HostPacket, Interface, LinkAddress, OwnAddress, Partition};

#[derive(Clone, Debug)]
enum Input {
    Outgoing([u8; 10], Vec<u8>),
    Incoming(Vec<u8>),
    Time(u16),
    /// Grants or refuses what was asked for.
    Answer(bool),
    Rejoin,
}

/// Addresses that meet each other often.
fn small() -> impl Strategy<Value = [u8; 4]> {
    (0..4_u8).prop_map(|last| [10, 0, 0, last])
}

fn address() -> impl Strategy<Value = LinkAddress> {
    (any::<u8>(), 0..6_u32).prop_map(|(flags, qpn)| LinkAddress { flags, qpn, gid: [3; 16] })
}

fn arp() -> impl Strategy<Value = Vec<u8>> {
    (any::<bool>(), address(), small(), small()).prop_map(|(reply, sender, from, to)| {
        let arp = Arp { reply, sender, sender_ip: from.into(), target: [0; 20], target_ip: to.into() };
        [&EtherType::Arp.header()[..], &arp.bytes()].concat()
    })
}

fn discovery() -> impl Strategy<Value = Vec<u8>> {
    let ip = || (0..4_u128).prop_map(|last| std::net::Ipv6Addr::from(0xfe80_u128 << 112 | last));
    (any::<[bool; 3]>(), address(), ip(), ip()).prop_map(|([advertisement, solicited, named], link, from, target)| {
        let from = if named { from } else { std::net::Ipv6Addr::UNSPECIFIED };
        let message = Message { from, to: target, target, advertisement, solicited, link: named.then_some(link) };
        [&EtherType::Ipv6.header()[..], &message.bytes()].concat()
    })
}

/// A packet with valid addresses and any content.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    (small(), prop_oneof![small(), any::<[u8; 4]>()], vec(any::<u8>(), 20..80)).prop_map(|(from, to, mut packet)| {
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&from);
        packet[16..20].copy_from_slice(&to);
        packet
    })
}

/// Nothing to do in most cases.
fn offload() -> impl Strategy<Value = [u8; 10]> {
    prop_oneof![Just([0; 10]), vec(0..40_u8, 10).prop_map(|bytes| bytes.try_into().expect("10 bytes"))]
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        (offload(), prop_oneof![packet(), vec(any::<u8>(), 0..80)])
            .prop_map(|(offload, packet)| Input::Outgoing(offload, packet)),
        prop_oneof![arp(), discovery(), vec(any::<u8>(), 0..120)].prop_map(Input::Incoming),
        any::<u16>().prop_map(Input::Time),
        any::<bool>().prop_map(Input::Answer),
        Just(Input::Rejoin),
    ]
}

fn interface() -> Interface {
    let link = LinkAddress { flags: 0, qpn: 5, gid: [3; 16] };
    let partition = Partition { pkey: 0xffff, scope: 2 };
    let mut interface = Interface::new(
        Config { link, partition, mtu: 60, connected: Some(softhca_ipoib::Connect::Reliable) },
        Duration::ZERO,
    );
    let own = ["10.0.0.1", "fe80::1"].map(|text| OwnAddress { ip: text.parse().expect(text), prefix: 24 });
    interface.set_routes(own.to_vec(), Vec::new(), Duration::ZERO);
    interface
}

proptest! {
    #![proptest_config(Runs::with_cases(400))]

    #[test]
    fn whatever_comes_the_interface_stays_bounded(inputs in vec(input(), 1..120)) {
        let mut interface = interface();
        let (mut now, mut open) = (Duration::ZERO, Vec::new());
        for input in inputs {
            match input {
                Input::Outgoing(offload, packet) => if let Some(packet) = HostPacket::parse(&offload, &packet) {
                    interface.outgoing(&packet, now);
                },
                Input::Incoming(payload) => drop(interface.incoming(&payload, now).map(<[u8]>::len)),
                Input::Time(milliseconds) => {
                    now += Duration::from_millis(milliseconds.into());
                    interface.tick(now);
                }
                Input::Answer(granted) => for event in std::mem::take(&mut open) {
                    match event {
                        Event::Resolve(link) => drop(interface.resolved(link, granted, now)),
                        Event::Connect(link) => drop(interface.connected(link, granted.then_some(70), now)),
                        Event::Join(mgid, _) => drop(interface.joined(&mgid, granted, now)),
                        _ => {}
                    }
                },
                Input::Rejoin => interface.rejoin(now),
            }
            let mut events = 0;
            while let Some(event) = interface.poll() {
                events += 1;
                assert!(events < 400, "one input causes few events");
                match event {
                    Event::Send(_, payload) => assert!(payload.len() <= 4 + 88, "own messages are short"),
                    other => open.push(other),
                }
            }
            let (neighbours, groups, connections) = interface.sizes();
            assert!(neighbours <= 1024 && groups <= 256 && connections <= 256);
        }
    }
}
