//! Ids, addresses, ports and options, and which channel they belong to.

use abi::Errno;
use abi::layout::Record;
use abi::qp::kind;
use abi::ucma::address::{
    PathRecData, Query, QueryPathAnswer, QueryRouteAnswer, ResolveIp, ResolveRoute, path_flags, query,
};
use abi::ucma::connection::{Connect, EventAnswer, GetEvent, Listen, WriteCmEvent, event};
use abi::ucma::id::{
    Channel as Token, ChannelAnswer, CreateId, DestroyId, DestroyIdAnswer, FreezeQp, MigrateId, RenewId, RenewIdAnswer,
    SetOption, ib_option, level, option,
};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command, port_space};
use agent::Config;

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, UDP, bind, here, param, resolve};

#[test]
fn ids() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(7, TCP);
    let write = WriteCmEvent { id, event: event::USER, status: 5, ..WriteCmEvent::default() };
    channel.ok(command::WRITE_CM_EVENT, &write, &[]);
    channel.ok(command::WRITE_CM_EVENT, &write, &[]);
    let told = channel.expect(id, event::USER);
    assert_eq!((told.answer.uid, told.answer.status), (7, 5));
    assert!(channel.is_readable());
    assert_eq!(channel.destroy(id), 1, "one was given out, one went with the id");
    assert!(!channel.is_readable());
    channel.refused(command::GET_EVENT, &GetEvent { response: 1 }, Errno::EAGAIN);
    channel.refused(command::DESTROY_ID, &DestroyId { response: 1, id, reserved: 0 }, Errno::ENOENT);
    for (ps, qp_type) in [(0, 2), (7, 2), (port_space::IB, 8), (port_space::IB, 0)] {
        channel.refused(command::CREATE_ID, &CreateId { ps, qp_type, ..CreateId::default() }, Errno::EINVAL);
    }
    let id = channel.create(1, TCP);
    let renew = |id, ps| RenewId { uid: 2, id, ps, qp_type: kind::RC, reserved: 0 };
    let answer: RenewIdAnswer = channel.call(command::RENEW_ID, &renew(id, TCP), &[], 12).get(0);
    assert_eq!((answer.events_reported, answer.event_bytes), (0, 0));
    channel.refused(command::RENEW_ID, &renew(id, TCP), Errno::ENOENT);
    let again = answer.id;
    channel.ok(command::WRITE_CM_EVENT, &WriteCmEvent { id: again, ..write }, &[]);
    assert_eq!(channel.expect(again, event::USER).answer.uid, 2);
    let answer: RenewIdAnswer = channel.call(command::RENEW_ID, &renew(again, 7), &[], 12).get(0);
    assert_eq!((answer.events_reported, answer.id), (1, 0), "the old one ends, and there is no new one");
    let id = channel.create(1, TCP);
    let refused = WriteCmEvent { id, event: event::ESTABLISHED, ..WriteCmEvent::default() };
    channel.refused(command::WRITE_CM_EVENT, &refused, Errno::EINVAL);
    agent.eventually("status", |status| status["manager"]["ids"] == 1);
    drop(channel);
    agent.eventually("status", |status| status["manager"]["ids"] == 0 && status["manager"]["channels"] == 0);
}

#[test]
fn an_id_is_its_channels_own() {
    let agent = TestAgent::start();
    let (mut ours, mut theirs) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let id = ours.create(1, TCP);
    theirs.refused(command::DESTROY_ID, &DestroyId { response: 1, id, reserved: 0 }, Errno::ENOENT);
    theirs.refused(command::BIND, &bind(id, here(0)), Errno::ENOENT);
    theirs.refused(command::LISTEN, &Listen { id, backlog: 1 }, Errno::ENOENT);
    theirs.refused(command::CONNECT, &Connect { id, ..Connect::default() }, Errno::ENOENT);
    theirs.refused(command::QUERY, &Query { response: 1, id, option: query::ADDR }, Errno::ENOENT);
    theirs.refused(command::MIGRATE_ID, &MigrateId { response: 1, id, fd: 0 }, Errno::EINVAL);
    ours.destroy(id);
}

#[test]
fn nonsense_is_refused_and_harms_nobody() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, TCP);
    for number in (0..30).chain([192, 193, 194, 195, 196, 197, u32::MAX]) {
        for fill in [0, 0xff] {
            for len in [0, 1, 7, 8, 16, 64, 152, 288, 320, 1000] {
                for declared in [len, 0, 0xffff] {
                    let mut request = Vec::from(number.to_le_bytes());
                    request.extend((declared as u16).to_le_bytes());
                    request.extend(0xffff_u16.to_le_bytes());
                    request.resize(8 + len, fill);
                    channel.raw(&request);
                }
            }
        }
    }
    channel.raw(&[1]);
    channel.destroy(id);
    let id = channel.create(1, TCP);
    channel.destroy(id);
}

#[test]
fn a_port_of_every_address_conflicts_with_eaddrnotavail() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let ids: Vec<u32> = (1..=4).map(|cookie| channel.create(cookie, TCP)).collect();
    channel.bind(ids[0], here(0));
    let port = channel.port(ids[0]);
    let every = ([0, 0, 0, 0], port).into();
    let reason = channel.refused(command::BIND, &bind(ids[1], every), Errno::EADDRNOTAVAIL);
    assert!(reason.contains("every address"), "{reason}");
    channel.refused(command::BIND, &bind(ids[1], here(port)), Errno::EADDRINUSE);
    channel.bind(ids[1], ([0, 0, 0, 0], 0).into());
    let port = channel.port(ids[1]);
    channel.refused(command::BIND, &bind(ids[2], here(port)), Errno::EADDRNOTAVAIL);
    // An IPv6 id takes IPv4 as well, so only an id with AFONLY can also have the port.
    let every6 = (std::net::Ipv6Addr::UNSPECIFIED, port).into();
    channel.refused(command::BIND, &bind(ids[2], every6), Errno::EADDRNOTAVAIL);
    let optlen = 4;
    let alone = SetOption { optval: 1, id: ids[2], level: level::ID, optname: option::AFONLY, optlen };
    assert_eq!(channel.call(command::SET_OPTION, &alone, &1_u32.to_ne_bytes(), 0).status, 0);
    channel.bind(ids[2], every6);
}

#[test]
fn binding() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let (a, b, c) = (channel.create(1, TCP), channel.create(2, TCP), channel.create(3, UDP));
    channel.bind(a, here(0));
    let port = channel.port(a);
    assert_ne!(port, 0);
    let reason = channel.refused(command::BIND, &bind(b, here(port)), Errno::EADDRINUSE);
    assert!(reason.contains(&port.to_string()), "{reason}");
    channel.bind(c, here(port));
    channel.refused(command::BIND, &bind(a, here(0)), Errno::EINVAL);
    let nowhere = ([203, 0, 113, 77], 0).into();
    channel.refused(command::BIND, &bind(b, nowhere), Errno::EADDRNOTAVAIL);
    let mut bad = bind(b, here(0));
    bad.addr[0] = 1;
    channel.refused(command::BIND, &bad, Errno::EAFNOSUPPORT);
    bad = bind(b, here(0));
    bad.addr_size = 8;
    channel.refused(command::BIND, &bad, Errno::EINVAL);
    bad.addr_size = 129;
    channel.refused(command::BIND, &bad, Errno::EINVAL);
    // A listener without an address listens at any address, at a port that the agent chooses.
    channel.ok(command::LISTEN, &Listen { id: b, backlog: 0 }, &[]);
    assert_ne!(channel.port(b), 0);
    channel.destroy(a);
    let again = channel.create(4, TCP);
    channel.bind(again, here(port));
}

#[test]
fn resolving() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(9, TCP);
    channel.refused(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1 }, Errno::EINVAL);
    channel.ok(command::RESOLVE_ADDR, &resolve(id, here(4711)), &[]);
    assert!(channel.is_readable(), "an address of this host is resolved before the command's reply");
    assert_eq!(channel.expect(id, event::ADDR_RESOLVED).answer.uid, 9);
    let (source, destination, answer) = channel.addresses(id);
    assert!(matches!(source, Some(Sockaddr::Ip(addr)) if addr.ip().is_loopback() && addr.port() != 0), "{source:?}");
    assert_eq!(destination, Some(Sockaddr::Ip(here(4711))));
    assert_eq!((answer.port_num, answer.pkey), (1, 0xffff));
    assert_ne!(answer.node_guid, 0);
    let route = |channel: &mut Channel| -> QueryRouteAnswer {
        channel.call(command::QUERY_ROUTE, &Query { response: 1, id, option: 0 }, &[], 208).get(0)
    };
    assert_eq!(route(&mut channel).num_paths, 0);
    channel.refused(command::CONNECT, &Connect { conn_param: param(1, &[]), id, ..Connect::default() }, Errno::EINVAL);
    channel.ok(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1000 }, &[]);
    channel.expect(id, event::ROUTE_RESOLVED);
    let path = route(&mut channel);
    assert_eq!((path.num_paths, path.ib_route[0].reversible, path.ib_route[0].pkey), (1, 1, 0xffff));
    assert_eq!(path.ib_route[0].sgid, path.ib_route[0].dgid, "to itself");
    let hundred_gbps = 16; // IBV_RATE_100_GBPS: 4X EDR, as loopback has no speed
    assert_eq!(path.ib_route[0].rate, hundred_gbps);
    let gids = channel.ask_addresses(id, query::GID);
    assert!(matches!(gids.0, Some(Sockaddr::Ib(record)) if record.addr == path.ib_route[0].sgid), "{gids:?}");
    let paths = channel.call(command::QUERY, &Query { response: 1, id, option: query::PATH }, &[], 8 + 72);
    assert_eq!(paths.get::<QueryPathAnswer>(0).num_paths, 1);
    let record = paths.get::<PathRecData>(8).path_rec;
    assert_eq!((&record[8..24], record[55] & 0x3f), (&path.ib_route[0].dgid[..], hundred_gbps));
    channel.refused(command::QUERY, &Query { response: 1, id, option: query::IB_SERVICE }, Errno::ENOSYS);
    // The older form.
    let id = channel.create(1, TCP);
    let body = ResolveIp { dst_addr: Sockaddr::Ip(here(1)).short(), id, timeout_ms: 1, ..ResolveIp::default() };
    channel.ok(command::RESOLVE_IP, &body, &[]);
    channel.expect(id, event::ADDR_RESOLVED);
}

#[test]
fn both_families_resolve_to_this_host() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    for to in ["0.0.0.0:5", "127.0.0.1:5", "127.3.4.5:5", "[::1]:5", "[::]:5"] {
        let id = channel.create(1, TCP);
        channel.ok(command::RESOLVE_ADDR, &resolve(id, to.parse().expect(to)), &[]);
        channel.expect(id, event::ADDR_RESOLVED);
        let (source, ..) = channel.addresses(id);
        assert!(matches!(source, Some(Sockaddr::Ip(addr)) if !addr.ip().is_unspecified()), "{to}: {source:?}");
    }
    let id = channel.create(1, TCP);
    channel.bind(id, here(0));
    channel.refused(command::RESOLVE_ADDR, &resolve(id, "[::1]:5".parse().expect("an address")), Errno::EINVAL);
}

#[test]
fn an_address_without_a_way_is_an_error_event() {
    let agent = TestAgent::start_with("addresses = ['127.77.0.1']\nwire = 'off'");
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, TCP);
    channel.ok(command::RESOLVE_ADDR, &resolve(id, ([127, 77, 0, 2], 5).into()), &[]);
    let told = channel.expect(id, event::ADDR_ERROR);
    assert!(told.status() < 0);
    assert!(told.sentence.contains("switched off") || told.sentence.contains("reaches"), "{}", told.sentence);
    // The id may try again.
    channel.ok(command::RESOLVE_ADDR, &resolve(id, ([127, 77, 0, 1], 5).into()), &[]);
    channel.expect(id, event::ADDR_RESOLVED);
}

#[test]
fn options() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, TCP);
    let body = |id, level, optname, optlen| SetOption { optval: 1, id, level, optname, optlen };
    let set = |channel: &mut Channel, id, level, name, value: &[u8]| {
        channel.call(command::SET_OPTION, &body(id, level, name, value.len() as u32), value, 0).status
    };
    assert_eq!(set(&mut channel, id, level::ID, option::TOS, &[0x20]), 0);
    assert_eq!(set(&mut channel, id, level::ID, option::ACK_TIMEOUT, &[12]), 0);
    assert_eq!(set(&mut channel, id, level::ID, option::REUSEADDR, &1_u32.to_ne_bytes()), 0);
    assert_eq!(set(&mut channel, id, level::ID, option::AFONLY, &1_u32.to_ne_bytes()), 0);
    for (name, value) in [(option::TOS, &[0; 4][..]), (option::REUSEADDR, &[1]), (option::ACK_TIMEOUT, &[32])] {
        assert_eq!(set(&mut channel, id, level::ID, name, value), Errno::EINVAL.to_status());
    }
    assert_eq!(set(&mut channel, id, level::ID, 77, &[0]), Errno::ENOSYS.to_status());
    let lies = channel.call(command::SET_OPTION, &body(id, level::ID, option::TOS, 1), &[], 0);
    assert_eq!(lies.status, Errno::EINVAL.to_status(), "an option without its value");
    // Two ids that allow reuse share a port; an id that does not allow it cannot.
    channel.bind(id, here(0));
    let port = channel.port(id);
    let (second, third) = (channel.create(2, TCP), channel.create(3, TCP));
    assert_eq!(set(&mut channel, second, level::ID, option::REUSEADDR, &1_u32.to_ne_bytes()), 0);
    channel.bind(second, here(port));
    channel.refused(command::BIND, &bind(third, here(port)), Errno::EADDRINUSE);
    channel.refused(command::LISTEN, &Listen { id, backlog: 1 }, Errno::EADDRINUSE);
    channel.destroy(second);
    // The type of service becomes the path's traffic class, and the timeout becomes the QP's.
    channel.ok(command::RESOLVE_ADDR, &resolve(id, here(9)), &[]);
    channel.expect(id, event::ADDR_RESOLVED);
    channel.ok(command::RESOLVE_ROUTE, &ResolveRoute { id, timeout_ms: 1 }, &[]);
    channel.expect(id, event::ROUTE_RESOLVED);
    let query_paths = Query { response: 1, id, option: query::PATH };
    let path: PathRecData = channel.call(command::QUERY, &query_paths, &[], 80).get(8);
    assert_eq!((path.path_rec[48], path.path_rec[56] & 0x3f), (0x20, 11));
    // A route that the program chose.
    let id = channel.create(4, TCP);
    channel.ok(command::RESOLVE_ADDR, &resolve(id, here(9)), &[]);
    channel.expect(id, event::ADDR_RESOLVED);
    let flags = path_flags::GMP | path_flags::PRIMARY | path_flags::OUTBOUND | path_flags::INBOUND_REVERSE;
    let foreign = PathRecData { path_rec: [9; 64], ..path };
    assert_eq!(set(&mut channel, id, level::IB, ib_option::PATH, foreign.bytes()), Errno::EINVAL.to_status());
    let own = PathRecData { flags, ..path };
    assert_eq!(set(&mut channel, id, level::IB, ib_option::PATH, own.bytes()), 0);
    channel.expect(id, event::ROUTE_RESOLVED);
}

#[test]
fn migration() {
    let agent = TestAgent::start();
    let (mut from, mut to) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let token: ChannelAnswer = from.call(command::CHANNEL, &Token::default(), &[], 4).get(0);
    let id = from.create(3, TCP);
    let write = WriteCmEvent { id, event: event::USER, ..WriteCmEvent::default() };
    from.ok(command::WRITE_CM_EVENT, &write, &[]);
    from.event();
    from.ok(command::WRITE_CM_EVENT, &write, &[]);
    to.refused(command::MIGRATE_ID, &MigrateId { response: 1, id, fd: token.channel ^ 1 }, Errno::EINVAL);
    let moved: DestroyIdAnswer =
        to.call(command::MIGRATE_ID, &MigrateId { response: 1, id, fd: token.channel }, &[], 8).get(0);
    assert_eq!((moved.events_reported, moved.event_bytes), (1, 1));
    assert_eq!(from.take(1), 1);
    to.expect(id, event::USER);
    from.refused(command::WRITE_CM_EVENT, &write, Errno::ENOENT);
    drop(from);
    agent.eventually("status", |status| status["manager"]["channels"] == 1);
    to.ok(command::WRITE_CM_EVENT, &write, &[]);
    to.expect(id, event::USER);
    assert_eq!(to.destroy(id), 3);
}

#[test]
fn frozen_qps() {
    let agent = TestAgent::start();
    let mut device = agent.client();
    let (_, cq_handle, qp) = device.qp();
    let mut channel = Channel::open(&agent.dir);
    channel.refused(command::FREEZE_QP, &FreezeQp { qp_num: 0xabcdef, frozen: 1 }, Errno::EINVAL);
    channel.refused(command::FREEZE_QP, &FreezeQp { qp_num: qp.qpn, frozen: 2 }, Errno::EINVAL);
    let to_init = abi::command::legacy(
        abi::command::number::MODIFY_QP,
        &abi::qp::ModifyQp {
            qp_handle: qp.qp_handle,
            qp_state: abi::qp::state::INIT,
            port_num: 1,
            attr_mask: abi::qp::attr::STATE
                | abi::qp::attr::PKEY_INDEX
                | abi::qp::attr::PORT
                | abi::qp::attr::ACCESS_FLAGS,
            ..abi::qp::ModifyQp::default()
        },
        &[],
        0,
    );
    let state = |device: &mut crate::common::Client| {
        let query = abi::qp::QueryQp { response: 1, qp_handle: qp.qp_handle, attr_mask: 1 };
        let room = size_of::<abi::qp::QueryQpAnswer>();
        let command = abi::command::legacy(abi::command::number::QUERY_QP, &query, &[], room);
        device.call(&command).get::<abi::qp::QueryQpAnswer>(0).qp_state
    };
    channel.ok(command::FREEZE_QP, &FreezeQp { qp_num: qp.qpn, frozen: 1 }, &[]);
    assert_eq!(device.call(&to_init).status, 0);
    assert_eq!(state(&mut device), abi::qp::state::RESET);
    channel.ok(command::FREEZE_QP, &FreezeQp { qp_num: qp.qpn, frozen: 0 }, &[]);
    assert_eq!(device.call(&to_init).status, 0);
    assert_eq!(state(&mut device), abi::qp::state::INIT);

    // A client without an engine gets a proxy engine with its first work.
    let poll = abi::cq::PollCq { response: 1, cq_handle, ne: 1 };
    assert_eq!(device.call(&abi::command::legacy(abi::command::number::POLL_CQ, &poll, &[], 8 + 48)).status, 0);
    let to_err = abi::qp::ModifyQp {
        qp_handle: qp.qp_handle,
        qp_state: abi::qp::state::ERR,
        attr_mask: abi::qp::attr::STATE,
        ..abi::qp::ModifyQp::default()
    };
    let to_err = abi::command::legacy(abi::command::number::MODIFY_QP, &to_err, &[], 0);
    for (frozen, expected) in [(1, abi::qp::state::INIT), (0, abi::qp::state::ERR)] {
        channel.ok(command::FREEZE_QP, &FreezeQp { qp_num: qp.qpn, frozen }, &[]);
        assert_eq!(device.call(&to_err).status, 0);
        assert_eq!(state(&mut device), expected);
    }
}

#[test]
fn a_client_that_takes_no_events_costs_the_agent_a_bounded_queue() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, UDP);
    let write = WriteCmEvent { id, event: event::USER, ..WriteCmEvent::default() };
    let request = build(command::WRITE_CM_EVENT, &write, &[], 0);
    let mut written = 0_usize;
    let last = loop {
        let answer = channel.raw(&request);
        match answer.status {
            0 => written += 1,
            _ => break answer,
        }
    };
    assert_eq!(last.status, Errno::ENOMEM.to_status());
    assert_eq!(written, 1 << 14);
    // Every event comes, with its byte, even if the event socket had no room for it.
    for _ in 0..written {
        channel.expect(id, event::USER);
    }
    assert!(!channel.is_readable());
    channel.ok(command::WRITE_CM_EVENT, &write, &[]);
    channel.expect(id, event::USER);
}

#[test]
fn a_small_answer_gets_no_sentence_and_a_command_without_room_is_refused() {
    let agent = TestAgent::start_as(&Config::default());
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(5, port_space::IB);
    channel.ok(command::WRITE_CM_EVENT, &WriteCmEvent { id, event: event::INTERNAL, ..WriteCmEvent::default() }, &[]);
    let short = channel.call(command::GET_EVENT, &GetEvent { response: 1 }, &[], 323);
    assert_eq!(short.status, Errno::ENOSPC.to_status());
    let old = channel.call(command::GET_EVENT, &GetEvent { response: 1 }, &[], 324);
    assert_eq!((old.status, old.bytes.len()), (0, 324));
    assert_eq!(EventAnswer::read_zero_extended(&old.bytes).uid, 5);
    channel.take(1);
    let kinds = [kind::RC, kind::UC, kind::UD];
    for qp_type in kinds {
        let body = CreateId { uid: 1, ps: port_space::IB, qp_type, ..CreateId::default() };
        assert_eq!(channel.call(command::CREATE_ID, &body, &[], 4).status, 0);
    }
}
