//! The agent of performance management: reads and sets the counters of a node's ports, and samples
//! them. Not who counts. IBA 16.1. The function is [`handle`].

use crate::counters::{Counters, DISCARDS, Data, NARROW, RECEIVE_ERRORS, WIDE};
use crate::node::Node;
use crate::samples::Picoseconds;
use std::time::Duration;
use wire::class_port_info::ClassPortInfo;
use wire::layout::{Bits, Layout};
use wire::mad::{
    BASE_VERSION, CLASS_PM, Header, METHOD_GET, METHOD_SET, Mad, RESPONSE, STATUS_INVALID, STATUS_METHOD,
    STATUS_METHOD_ATTRIBUTE, STATUS_VERSION,
};
use wire::perf::{
    ALL_PORTS, CAP_ALL_PORTS, CAP_EXTENDED, CAP_QP1_DROPPED, CAP_XMIT_WAIT, CAP2_EXTENDED_ERRORS, CLASS_VERSION, DATA,
    PortCounters, PortCountersExtended, PortReceiveErrorDetails, PortSamplesControl, PortSamplesResult,
    PortXmitDiscardDetails,
};

/// Answers a request. `None`: the datagram is no request to this agent, so it is dropped. After a
/// Set, the owner of the node looks for the deadline of [`Node::samples`].
#[must_use]
pub fn handle(node: &mut Node, mad: &Mad, now: Duration) -> Option<Mad> {
    let header = Header::of(mad);
    if header.class != CLASS_PM || header.method & RESPONSE != 0 {
        return None;
    }
    let mut answer = *mad;
    let status = serve(node, &header, &mut answer, now).err().unwrap_or(0);
    Header { method: METHOD_GET | RESPONSE, status, ..header }.emit_to(&mut answer);
    Some(answer)
}

fn serve(node: &mut Node, header: &Header, mad: &mut Mad, now: Duration) -> Result<(), u16> {
    if header.base_version != BASE_VERSION || header.class_version != CLASS_VERSION {
        return Err(STATUS_VERSION);
    }
    if !matches!(header.method, METHOD_GET | METHOD_SET) {
        return Err(STATUS_METHOD);
    }
    let places = match header.attribute {
        ClassPortInfo::ATTRIBUTE if header.method == METHOD_GET => return class_port_info(mad),
        PortSamplesControl::ATTRIBUTE => return samples_control(node, header, mad, now),
        PortSamplesResult::ATTRIBUTE if header.method == METHOD_GET => return samples_result(node, header, mad),
        PortCounters::ATTRIBUTE => NARROW,
        PortCountersExtended::ATTRIBUTE => WIDE,
        PortReceiveErrorDetails::ATTRIBUTE => RECEIVE_ERRORS,
        PortXmitDiscardDetails::ATTRIBUTE => DISCARDS,
        _ => return Err(STATUS_METHOD_ATTRIBUTE),
    };
    let data: &mut Data = mad[DATA..].first_chunk_mut().ok_or(STATUS_INVALID)?;
    let port = data[1];
    let all = port == ALL_PORTS;
    if !all && node.port(port).is_none() {
        return Err(STATUS_INVALID);
    }
    let asked = |number: usize| all || number == usize::from(port);
    let first = usize::from(node.switch.is_none());
    let ports = node.ports.iter_mut().enumerate().skip(first).filter(|(number, _)| asked(*number));
    if header.method == METHOD_SET {
        let select2 = match header.attribute {
            PortCounters::ATTRIBUTE => u64::get(data, 144, 8),
            PortCountersExtended::ATTRIBUTE => u64::get(data, 32, 32),
            _ => 0,
        };
        let select = u64::get(data, 16, 16) | select2 << 16;
        ports.for_each(|(_, port)| port.counters.set(places, select, data));
    } else {
        let mut sum = Counters::default();
        ports.for_each(|(_, port)| sum.merge(&port.counters));
        let select: [u8; 4] = [data[0], data[1], data[2], data[3]];
        data.fill(0);
        data[..4].copy_from_slice(&select);
        sum.show(places, data);
    }
    Ok(())
}

/// A node has one sampling mechanism: number 0.
fn samples_control(node: &mut Node, header: &Header, mad: &mut Mad, now: Duration) -> Result<(), u16> {
    let asked = PortSamplesControl::read(&mad[DATA..]).ok_or(STATUS_INVALID)?;
    let port = node.port(asked.port).filter(|_| header.modifier == 0).ok_or(STATUS_INVALID)?;
    let tick = Picoseconds::of_symbol(&port.info.link);
    if header.method == METHOD_SET && !node.samples.begin(&asked, tick, now) {
        return Err(STATUS_INVALID);
    }
    mad[DATA..].fill(0);
    node.samples.control().write(&mut mad[DATA..]);
    Ok(())
}

fn samples_result(node: &Node, header: &Header, mad: &mut Mad) -> Result<(), u16> {
    if header.modifier != 0 {
        return Err(STATUS_INVALID);
    }
    mad[DATA..].fill(0);
    node.samples.result().write(&mut mad[DATA..]);
    Ok(())
}

fn class_port_info(mad: &mut Mad) -> Result<(), u16> {
    let info = ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: CLASS_VERSION,
        capability_mask: CAP_ALL_PORTS | CAP_EXTENDED | CAP_XMIT_WAIT | CAP_QP1_DROPPED,
        capability_mask2: CAP2_EXTENDED_ERRORS,
        response_time: crate::sma::RESPONSE_TIME,
        ..ClassPortInfo::default()
    };
    mad[DATA..].fill(0);
    info.write(&mut mad[DATA..]).then_some(()).ok_or(STATUS_INVALID)
}

/// The answer of a port to a Get or Set of a class that nobody there serves, as Linux gives it:
/// baseboard management, vendor classes, congestion control. Other requests are dropped.
#[must_use]
pub fn unserved(mad: &Mad) -> Option<Mad> {
    let header = Header::of(mad);
    if !matches!(header.method, METHOD_GET | METHOD_SET) {
        return None;
    }
    let mut answer = *mad;
    Header { method: METHOD_GET | RESPONSE, status: STATUS_METHOD_ATTRIBUTE, ..header }.emit_to(&mut answer);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counter;
    use wire::mad::{MAD_LEN, METHOD_TRAP};
    use wire::smp::{NodeInfo, NodeType, PortInfo, SwitchInfo};

    const NOW: Duration = Duration::ZERO;

    fn node() -> Node {
        let info = NodeInfo { ports: 2, ..NodeInfo::default() };
        let mut node = Node::new(NodeType::Ca, info, "", &PortInfo::default(), SwitchInfo::default());
        for port in [1, 2] {
            let counters = &mut node.port_mut(port).unwrap().counters;
            counters.add(Counter::XmitData, 5 << 32 | u64::from(port));
            counters.add(Counter::SymbolErrors, 40_000);
            counters.add(Counter::MulticastReceivePackets, 3);
        }
        node
    }

    fn request(method: u8, attribute: u16, port: u8) -> Mad {
        let mut mad = [0; MAD_LEN];
        let header =
            Header { base_version: 1, class: CLASS_PM, class_version: 1, method, attribute, ..Header::default() };
        header.emit_to(&mut mad);
        mad[DATA + 1] = port;
        mad
    }

    fn narrow(mad: &Mad) -> PortCounters {
        PortCounters::read(&mad[DATA..]).unwrap()
    }

    #[test]
    fn counters_stop_at_the_ends_of_their_fields() {
        let mut node = node();
        let one = narrow(&handle(&mut node, &request(METHOD_GET, PortCounters::ATTRIBUTE, 1), NOW).unwrap());
        assert_eq!((one.port, one.symbol_errors, one.xmit_data), (1, 40_000, u32::MAX));
        let all = handle(&mut node, &request(METHOD_GET, PortCounters::ATTRIBUTE, ALL_PORTS), NOW).unwrap();
        assert_eq!((narrow(&all).port, narrow(&all).symbol_errors), (ALL_PORTS, u16::MAX));
        let wide = handle(&mut node, &request(METHOD_GET, PortCountersExtended::ATTRIBUTE, 2), NOW).unwrap();
        let wide = PortCountersExtended::read(&wide[DATA..]).unwrap();
        assert_eq!((wide.xmit_data, wide.multicast_receive_packets, wide.symbol_errors), (5 << 32 | 2, 3, 40_000));
    }

    #[test]
    fn a_set_writes_the_selected_counters() {
        let mut node = node();
        let mut set = request(METHOD_SET, PortCounters::ATTRIBUTE, 1);
        PortCounters { port: 1, select: 1, xmit_data: 9, ..PortCounters::default() }.write(&mut set[DATA..]);
        assert_eq!(Header::of(&handle(&mut node, &set, NOW).unwrap()).status, 0);
        let counters = &node.port(1).unwrap().counters;
        assert_eq!((counters.value(Counter::SymbolErrors), counters.value(Counter::XmitData)), (0, 5 << 32 | 1));
        PortCounters { port: 1, select: 1 << 12, xmit_data: 9, ..PortCounters::default() }.write(&mut set[DATA..]);
        assert!(handle(&mut node, &set, NOW).is_some());
        assert_eq!(node.port(1).unwrap().counters.value(Counter::XmitData), 9);
        assert_eq!(node.port(2).unwrap().counters.value(Counter::SymbolErrors), 40_000);
        let mut set = request(METHOD_SET, PortCountersExtended::ATTRIBUTE, 2);
        PortCountersExtended { port: 2, select2: 1, symbol_errors: 8, ..PortCountersExtended::default() }
            .write(&mut set[DATA..]);
        assert!(handle(&mut node, &set, NOW).is_some());
        let counters = &node.port(2).unwrap().counters;
        assert_eq!((counters.value(Counter::SymbolErrors), counters.value(Counter::XmitData)), (8, 5 << 32 | 2));
    }

    #[test]
    fn what_does_not_exist_has_a_status() {
        let status = |method, attribute, port| {
            Header::of(&handle(&mut node(), &request(method, attribute, port), NOW).unwrap()).status
        };
        assert_eq!(status(METHOD_GET, PortCounters::ATTRIBUTE, 3), STATUS_INVALID);
        assert_eq!(status(METHOD_GET, PortCounters::ATTRIBUTE, 0), STATUS_INVALID, "an adapter has no port 0");
        assert_eq!(status(METHOD_GET, 0x36, 1), STATUS_METHOD_ATTRIBUTE);
        assert_eq!(status(METHOD_SET, ClassPortInfo::ATTRIBUTE, 1), STATUS_METHOD_ATTRIBUTE);
        assert_eq!(status(METHOD_TRAP, PortCounters::ATTRIBUTE, 1), STATUS_METHOD);
        let mut newer = request(METHOD_GET, PortCounters::ATTRIBUTE, 1);
        newer[2] = 2;
        assert_eq!(Header::of(&handle(&mut node(), &newer, NOW).unwrap()).status, STATUS_VERSION);
        assert_eq!(handle(&mut node(), &request(METHOD_GET | RESPONSE, PortCounters::ATTRIBUTE, 1), NOW), None);
        let info = handle(&mut node(), &request(METHOD_GET, ClassPortInfo::ATTRIBUTE, 0), NOW).unwrap();
        assert_eq!(ClassPortInfo::read(&info[DATA..]).unwrap().capability_mask, 0x9300);
    }

    #[test]
    fn counters_are_sampled_at_a_port_of_the_node() {
        let mut node = node();
        let mut set = request(METHOD_SET, PortSamplesControl::ATTRIBUTE, 2);
        let asked = |port, number| {
            let counter_select = std::array::from_fn(|nth| if nth == 0 { number } else { 0 });
            PortSamplesControl { port, tag: 9, interval: 250, counter_select, ..PortSamplesControl::default() }
        };
        let mut set = |node: &mut Node, asked: PortSamplesControl| {
            asked.write(&mut set[DATA..]);
            Header::of(&handle(node, &set, NOW).unwrap()).status
        };
        assert_eq!(set(&mut node, asked(3, 3)), STATUS_INVALID);
        assert_eq!(set(&mut node, asked(0, 3)), STATUS_INVALID, "an adapter has no port 0");
        assert_eq!(set(&mut node, asked(2, 6)), STATUS_INVALID, "there are no optional quantities");
        assert_eq!((set(&mut node, asked(2, 3)), node.samples.deadline()), (0, Some(NOW)));
        node.sample(NOW);
        node.port_mut(1).unwrap().counters.add(Counter::XmitPackets, 100);
        node.port_mut(2).unwrap().counters.add(Counter::XmitPackets, 7);
        let result = |node: &mut Node| {
            let answer = handle(node, &request(METHOD_GET, PortSamplesResult::ATTRIBUTE, 0), NOW).unwrap();
            PortSamplesResult::read(&answer[DATA..]).unwrap()
        };
        assert_eq!((result(&mut node).status, result(&mut node).counters[0]), (2, 0));
        node.sample(Duration::from_micros(1));
        assert_eq!((result(&mut node).tag, result(&mut node).status, result(&mut node).counters[0]), (9, 0, 7));
        let answer = handle(&mut node, &request(METHOD_GET, PortSamplesControl::ATTRIBUTE, 1), NOW).unwrap();
        let control = PortSamplesControl::read(&answer[DATA..]).unwrap();
        assert_eq!((control.port, control.interval, control.counter_width, control.last_masks[4]), (2, 250, 4, 1));
        let set = request(METHOD_SET, PortSamplesResult::ATTRIBUTE, 1);
        assert_eq!(Header::of(&handle(&mut node, &set, NOW).unwrap()).status, STATUS_METHOD_ATTRIBUTE);
    }

    #[test]
    fn every_counter_is_where_its_attribute_has_it() {
        let leaves =
            |fields: &[wire::layout::Field]| fields.iter().map(|field| (field.at, field.bits)).collect::<Vec<_>>();
        for (places, fields) in [
            (NARROW, PortCounters::FIELDS),
            (WIDE, PortCountersExtended::FIELDS),
            (DISCARDS, PortXmitDiscardDetails::FIELDS),
            (RECEIVE_ERRORS, PortReceiveErrorDetails::FIELDS),
        ] {
            let fields = leaves(fields);
            assert!(places.iter().all(|(_, at, bits, _)| fields.contains(&(*at, *bits))), "{places:?}");
        }
    }

    #[test]
    fn a_class_that_nobody_serves_is_unsupported() {
        let answer = unserved(&request(METHOD_GET, 0x11, 0)).unwrap();
        assert_eq!((Header::of(&answer).status, Header::of(&answer).method), (STATUS_METHOD_ATTRIBUTE, 0x81));
        assert_eq!(unserved(&request(METHOD_TRAP, 0x11, 0)), None);
    }
}
