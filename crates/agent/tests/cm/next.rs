//! NEXT_EVENT: with an event comes what the client would ask about its id next, and it equals the
//! answers to these questions.

use abi::qp::state;
use abi::ucma::address::{PathRecData, Query, QueryPathAnswer, query};
use abi::ucma::command;
use abi::ucma::connection::{NextEvent, NextEventAnswer, event, known};

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, bind, here, param, resolve};

const ROOM: usize = size_of::<NextEventAnswer>() + 512;

fn next(channel: &mut Channel) -> NextEventAnswer {
    channel.wait();
    let answer = channel.call(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], ROOM).get(0);
    assert_eq!(channel.take(1), 1);
    answer
}

/// The path that QUERY answers.
fn path(channel: &mut Channel, id: u32) -> PathRecData {
    let body = Query { response: 1, id, option: query::PATH };
    channel.call(command::QUERY, &body, &[], 80).get(size_of::<QueryPathAnswer>())
}

#[test]
fn next_events() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(100, TCP, here(0), 5);
    let to = here(server.port(listener));
    let active = client.create(200, TCP);
    client.ok(command::BIND, &bind(active, here(0)), &[]);
    client.ok(command::RESOLVE_ADDR, &resolve(active, to), &[]);
    let told = next(&mut client);
    assert_eq!((told.event.event, told.known), (event::ADDR_RESOLVED, known::ADDRESSES | known::INIT));
    assert_eq!(told.addresses, client.addresses(active).2);
    assert_eq!(told.init, client.qp_attr(active, state::INIT));
    let (sgid, dgid) = (told.sgid, told.dgid);

    let body = abi::ucma::address::ResolveRoute { id: active, timeout_ms: 2000 };
    client.ok(command::RESOLVE_ROUTE, &body, &[]);
    let told = next(&mut client);
    assert_eq!((told.event.event, told.known), (event::ROUTE_RESOLVED, known::PATH | known::INIT));
    assert_eq!(told.path, path(&mut client, active));
    assert_eq!((&told.path.path_rec[24..40], &told.path.path_rec[8..24]), (&sgid[..], &dgid[..]));

    client.connect(active, param(0x1234, b"hello"));
    let asked = next(&mut server);
    let passive = asked.event.id;
    let all = known::ADDRESSES | known::PATH | known::INIT | known::RTR | known::RTS;
    assert_eq!((asked.event.event, asked.known), (event::CONNECT_REQUEST, all));
    assert_eq!(asked.addresses, server.addresses(passive).2);
    assert_eq!(asked.path, path(&mut server, passive));
    assert_eq!((asked.rtr, asked.rts), (server.qp_attr(passive, state::RTR), server.qp_attr(passive, state::RTS)));
    assert_eq!(asked.rtr.dest_qp_num, 0x1234);

    server.accept(300, passive, param(0x4321, b"welcome"));
    let told = next(&mut client);
    assert_eq!((told.event.event, told.known), (event::CONNECT_RESPONSE, known::INIT | known::RTR | known::RTS));
    assert_eq!((told.rtr.dest_qp_num, told.rtr.rq_psn), (0x4321, asked.rts.sq_psn));
    client.use_it(active);
    let told = next(&mut server);
    assert_eq!((told.event.event, told.known), (event::ESTABLISHED, 0));
}
