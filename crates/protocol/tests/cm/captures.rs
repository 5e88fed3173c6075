//! Captured messages of two Linux drivers for rping, ucmatose and udaddy, byte for byte. Our
//! communication manager replaces one of the drivers.

use super::world::{SERVICE, outputs};
use softhca_protocol::Time;
use softhca_protocol::cm::{
    Cm, CmState, Config, Event, Gid, Id, Kind, Mad, Origin, Output, Path, Reason, Reply, Request, SidrReply,
    SidrRequest,
};
use wire::cm::{Message, ip};
use wire::{Psn, Qpn};

const CLIENT: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 12];
const SERVER: Gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 11];
const CLIENT_GUID: u64 = 0x5054_00ff_fe77_0002;
const SERVER_GUID: u64 = 0x5054_00ff_fe77_0001;

/// rping -c: REQ.
const REQ: &str = "010702030000000000000002024016090010000000000000\
    09164002000000000000000001061c06505400fffe770002000000000000000000004b0100000001000000a0b4d933a7ffff37f0ffffffff\
    00000000000000000000ffff0a4d000c00000000000000000000ffff0a4d000b6c48900000400098\
    0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
    0040bb1d0000000000000000000000000a4d000c0000000000000000000000000a4d000b";
/// rping -s: REP.
const REP: &str = "010702030000000000000002024016090013000000000000\
    f5283db4091640020000000000004b0000000000363c8900010178e0505400fffe770001";
const RTU: &str = "01070203000000000000000202401609001400000000000009164002f5283db4";
const DREQ: &str = "01070203000000000000000202401609001500000000000009164002f5283db400004b";
const DREP: &str = "010702030000000000000002024016090016000000000000f5283db409164002";
/// ucmatose without a listener: REJ.
const REJ: &str = "0107020300000000000000020240160c0012000000000000000000000c16400200000008";
/// udaddy: SIDR_REQ.
const SIDR_REQ: &str = "0107020300000000000000020240160d0017000000000000\
    0d164002ffff00000000000001111c060040cc280000000000000000000000000a4d000c0000000000000000000000000a4d000b";
const SIDR_REP: &str = "0107020300000000000000020240160d0018000000000000\
    0d1640020000000000004f000000000001111c0601234567";
/// rping over IPv6: REQ.
const REQ_IPV6: &str = "010702030000000000000002024016080010000000000000\
    08164002000000000000000001061c06505400fffe770002000000000000000000004c0100000001000000a04758faa7ffff37f0ffffffff\
    fd770000000000000000000000000012fd77000000000000000000000000001101c4300000400098\
    0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000\
    00608423fd770000000000000000000000000012fd770000000000000000000000000011";

fn mad(hex: &str) -> Mad {
    let mut mad = [0; 256];
    for (place, digits) in hex.as_bytes().chunks(2).enumerate() {
        mad[place] = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    mad
}

/// The message with one of its numbers replaced, because our numbers differ from Linux's.
fn with(hex: &str, at: usize, number: u32) -> Mad {
    let mut mad = mad(hex);
    mad[24 + at..28 + at].copy_from_slice(&number.to_be_bytes());
    mad
}

fn from(source: Gid, destination: Gid) -> Origin {
    Origin { source, destination, pkey: 0xffff, hop_limit: 64, ..Origin::default() }
}

fn sent(output: &Output) -> (Path, Mad) {
    match output {
        Output::Send { path, mad, .. } => (*path, *mad),
        Output::Event(event) => panic!("{event:?}"),
    }
}

fn told(output: &Output) -> Event {
    match output {
        Output::Event(event) => *event,
        Output::Send { .. } => panic!("something was sent"),
    }
}

/// Our server, after rping's REQ.
fn asked() -> (Cm, Id) {
    let mut cm = Cm::new(Config::default());
    cm.on_mad(Time(1), &from(CLIENT, SERVER), &mad(REQ)).unwrap();
    let event = told(&outputs(&mut cm)[0]);
    let Kind::Incoming { req, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(ip::Service::from_id(req.service_id), Some(ip::Service { protocol: 6, port: 7174 }));
    let header = ip::Header::parse(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!(header.to_string(), "from 10.77.0.12 port 47901 to 10.77.0.11");
    (cm, event.id)
}

#[test]
fn a_server_answers_linux_as_linux_did() {
    let (mut cm, id) = asked();
    let facts = cm.connection(id).unwrap();
    assert_eq!((facts.path.sgid, facts.path.dgid, facts.path.mtu, facts.path.pkey), (SERVER, CLIENT, 3, 0xffff));
    assert_eq!((facts.ack_timeout, facts.retry_count, facts.rnr_retry_count), (19, 7, 7));
    let reply = Reply {
        ca_guid: SERVER_GUID,
        qpn: Qpn::new(0x4b),
        psn: Psn::new(0x36_3c89),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        rnr_retry_count: 7,
        ..Reply::default()
    };
    cm.reply(Time(2), id, &reply).unwrap();
    let (path, rep) = sent(&outputs(&mut cm)[0]);
    assert_eq!(path.dgid, CLIENT);
    assert_eq!(rep, with(REP, 0, facts.local_comm_id));
    let known = cm.connection(id).unwrap();
    assert_eq!((known.send_psn.value(), known.receive_psn.value()), (11_852_083, 3_554_441));
    cm.on_mad(Time(3), &from(CLIENT, SERVER), &with(RTU, 4, facts.local_comm_id)).unwrap();
    assert!(matches!(told(&outputs(&mut cm)[0]).kind, Kind::Established { .. }));
    cm.on_mad(Time(4), &from(CLIENT, SERVER), &with(DREQ, 4, facts.local_comm_id)).unwrap();
    outputs(&mut cm);
    cm.disconnect(Time(5), id, &[]).unwrap();
    assert_eq!(sent(&outputs(&mut cm)[0]).1, with(DREP, 0, facts.local_comm_id));
    assert_eq!(cm.state(id), Ok(CmState::TimeWait));
}

#[test]
fn a_client_asks_linux_as_linux_did() {
    let mut cm = Cm::new(Config::default());
    let path = Path {
        sgid: CLIENT,
        dgid: SERVER,
        flow_label: 0x6_c489,
        hop_limit: 64,
        pkey: 0xffff,
        mtu: 3,
        packet_life: 18,
        ..Path::default()
    };
    let header = mad(REQ);
    let request = Request {
        path,
        service_id: 0x0106_1c06,
        ca_guid: CLIENT_GUID,
        qpn: Qpn::new(0x4b),
        psn: Psn::new(0xb4_d933),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: 19,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        max_cm_retries: 15,
        private_data: &header[24 + 140..24 + 140 + 36],
        ..Request::default()
    };
    let id = cm.request(Time(1), &request).unwrap();
    let comm_id = cm.connection(id).unwrap().local_comm_id;
    let (_, req) = sent(&outputs(&mut cm)[0]);
    assert_eq!(req[24..], with(REQ, 0, comm_id)[24..]);
    cm.on_mad(Time(2), &from(SERVER, CLIENT), &with(REP, 4, comm_id)).unwrap();
    assert!(matches!(told(&outputs(&mut cm)[0]).kind, Kind::Agreed { .. }));
    let facts = cm.connection(id).unwrap();
    // The data of the same capture begin with these PSNs: the client's with the server's number,
    // and the other way round.
    assert_eq!((facts.send_psn.value(), facts.receive_psn.value()), (3_554_441, 11_852_083));
    assert_eq!(facts.remote_qpn.value(), 0x4b);
    assert_eq!((facts.initiator_depth, facts.responder_resources, facts.rnr_retry_count), (1, 1, 7));
    cm.ready(id, &[]).unwrap();
    assert_eq!(sent(&outputs(&mut cm)[0]).1, with(RTU, 0, comm_id));
    cm.disconnect(Time(3), id, &[]).unwrap();
    assert_eq!(sent(&outputs(&mut cm)[0]).1[24..], with(DREQ, 0, comm_id)[24..]);
    cm.on_mad(Time(4), &from(SERVER, CLIENT), &with(DREP, 4, comm_id)).unwrap();
    assert!(matches!(told(&outputs(&mut cm)[0]).kind, Kind::Disconnected { .. }));
}

#[test]
fn a_client_hears_that_nobody_listens() {
    let mut cm = Cm::new(Config::default());
    let path = Path { sgid: CLIENT, dgid: SERVER, ..Path::default() };
    let request = Request { path, service_id: SERVICE, ..Request::default() };
    let id = cm.request(Time(1), &request).unwrap();
    outputs(&mut cm);
    let comm_id = cm.connection(id).unwrap().local_comm_id;
    cm.on_mad(Time(2), &from(SERVER, CLIENT), &with(REJ, 4, comm_id)).unwrap();
    assert!(matches!(told(&outputs(&mut cm)[0]).kind, Kind::Rejected(rej) if rej.reason == Reason::INVALID_SERVICE_ID));
    assert_eq!(cm.state(id), Ok(CmState::Idle));
}

#[test]
fn a_server_says_that_nobody_listens_as_linux_did() {
    let (mut cm, id) = asked();
    cm.reject(Time(2), id, Reason::INVALID_SERVICE_ID, &[], &[]).unwrap();
    let (_, ours) = sent(&outputs(&mut cm)[0]);
    let (Ok((_, Message::Rej(ours))), Ok((_, Message::Rej(theirs)))) =
        (Message::parse(&ours), Message::parse(&mad(REJ)))
    else {
        panic!("not a REJ");
    };
    assert_eq!((ours.message, ours.reason, ours.info_len), (theirs.message, theirs.reason, theirs.info_len));
    assert_eq!(ours.remote_comm_id, 0x0916_4002);
}

#[test]
fn datagram_services_both_ways() {
    let mut cm = Cm::new(Config::default());
    cm.on_mad(Time(1), &from(CLIENT, SERVER), &mad(SIDR_REQ)).unwrap();
    let event = told(&outputs(&mut cm)[0]);
    let reply = SidrReply { qpn: Qpn::new(0x4f), qkey: 0x0123_4567, ..SidrReply::default() };
    cm.sidr_reply(Time(2), event.id, &reply).unwrap();
    assert_eq!(sent(&outputs(&mut cm)[0]).1, mad(SIDR_REP));

    let mut cm = Cm::new(Config::default());
    let path = Path { sgid: CLIENT, dgid: SERVER, pkey: 0xffff, ..Path::default() };
    let header = mad(SIDR_REQ);
    let private_data = &header[24 + 16..24 + 16 + 36];
    let request = SidrRequest { path, service_id: 0x0111_1c06, private_data, ..SidrRequest::default() };
    let id = cm.sidr_request(Time(1), &request).unwrap();
    let comm_id = cm.connection(id).unwrap().local_comm_id;
    assert_eq!(sent(&outputs(&mut cm)[0]).1[24..], with(SIDR_REQ, 0, comm_id)[24..]);
    cm.on_mad(Time(2), &from(SERVER, CLIENT), &with(SIDR_REP, 0, comm_id)).unwrap();
    assert!(matches!(told(&outputs(&mut cm)[0]).kind, Kind::SidrAnswered { rep, .. } if rep.qkey == 0x0123_4567));
}

#[test]
fn ipv6() {
    let mut cm = Cm::new(Config::default());
    let [client, server] = ["fd77::12", "fd77::11"].map(|text| text.parse::<std::net::Ipv6Addr>().unwrap().octets());
    cm.on_mad(Time(1), &from(client, server), &mad(REQ_IPV6)).unwrap();
    let Kind::Incoming { req, .. } = told(&outputs(&mut cm)[0]).kind else { panic!("no request") };
    let header = ip::Header::parse(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!(header.to_string(), "from fd77::12 port 33827 to fd77::11");
}
