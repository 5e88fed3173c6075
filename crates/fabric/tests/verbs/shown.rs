//! The agent shows for each queue pair the PSN of the next packet, and the engine keeps it up to
//! date.

use fabric::Fabric;
use serde_json::Value;
use softhca::{Context, Endpoint};

/// The PSN of the next packet of a queue pair, as `softhca show qp` shows it.
fn sq_psn(host: &fabric::Host, qpn: u32) -> u64 {
    let socket = host.agent().admin().expect("an admin node");
    socket.send(br#"{"request":"show"}"#, &[]).expect("sent");
    let bytes = agent::admin::receive::<std::io::Error>(&socket, || Ok(())).expect("an answer");
    let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
    let contexts = answer["contexts"].as_array().expect("contexts").iter();
    let mut qps = contexts.flat_map(|context| context["qps"].as_array().expect("queue pairs"));
    let qp = qps.find(|qp| qp["qpn"] == qpn).expect("it is shown");
    qp["sq_psn"].as_u64().expect("a number")
}

/// Sends messages one by one, and compares the shown PSN with the number of messages.
fn counts(host: &fabric::Host, near: &Context, far: &Context) {
    let (pd, cq) = (near.pd().expect("a PD"), near.cq(8).expect("a CQ"));
    let (other_pd, other_cq) = (far.pd().expect("a PD"), far.cq(8).expect("a CQ"));
    let qp = pd.reliable(&cq).build().expect("a QP");
    let other = other_pd.reliable(&other_cq).build().expect("a QP");
    let (mine, theirs): (Endpoint, Endpoint) = (qp.endpoint(), other.endpoint());
    let qp = qp.connect(&theirs).expect("connected");
    let other = other.connect(&mine).expect("connected");
    assert_eq!(sq_psn(host, mine.qpn), u64::from(mine.psn));
    for sent in 1..=20 {
        other.receive(sent, other_pd.buffer(8).expect("a buffer")).expect("posted");
        qp.send(sent, pd.buffer(8).expect("a buffer")).expect("posted");
        cq.wait().expect("completed").ok().expect("sent");
        other_cq.wait().expect("completed").ok().expect("received");
        let expected = (u64::from(mine.psn) + sent) & 0xff_ffff;
        assert_eq!(sq_psn(host, mine.qpn), expected, "after {sent} messages");
    }
}

#[test]
fn the_next_packet_number_is_shown_over_a_lane() {
    let fabric = Fabric::start().expect("an agent");
    counts(fabric.host(0), &fabric.open().expect("a device"), &fabric.open().expect("a device"));
}

#[test]
fn the_next_packet_number_is_shown_over_the_wire() {
    let fabric = Fabric::two_hosts().expect("two agents");
    let (here, there) = (fabric.host(0), fabric.host(1));
    counts(here, &here.open().expect("a device"), &there.open().expect("a device"));
}
