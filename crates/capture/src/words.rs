//! Describes a packet in words: in one line, in several lines, or as a JSON object.
//!
//! A line has the time, the device and path, the sender and receiver, and the content. Headers
//! describe themselves (`Display` in `wire`). The line of a dropped packet ends with the reason.
//! The principal functions are [`line()`], [`lines`] and [`json()`].

use std::fmt::Write;

use serde_json::{Value, json};
use wire::cm::{Attribute, Message};
use wire::mad::{self, MAD_LEN};
use wire::probe::{self, Probe};
use wire::{Headers, Opcode, Qpn};

use crate::link::Link;
use crate::packet::{End, Packet, Path, Tcp};

pub(crate) mod streams;

/// Bytes of payload in one row.
const ROW: usize = 16;

/// The packet in one line.
#[must_use]
pub fn line(packet: &Packet) -> String {
    let device = packet.device.as_deref().unwrap_or("agent");
    let mut text = format!("{} {device} {}  {}: {}", clock(packet.time), path(packet), who(packet), what(packet));
    fate(packet, &mut text);
    text
}

/// The packet in several lines: the parts of the line, one line for each header, and with `payload`
/// its bytes.
#[must_use]
pub fn lines(packet: &Packet, payload: bool) -> String {
    let device = packet.device.as_deref().unwrap_or("agent");
    let mut text = format!("{} {device}, {}\n", date(packet.time), packet.path);
    let hops = if packet.hop_limit == 0 { 64 } else { packet.hop_limit };
    if let Some(Link { slid, dlid, sl, vl, flow_label, .. }) = packet.link {
        let _ = writeln!(text, "    LRH  LID {slid} > LID {dlid}, SL {sl}, VL {vl}");
        if let Some(label) = flow_label {
            let (from, to, class) = (packet.from, packet.to, packet.traffic_class);
            let _ = writeln!(
                text,
                "    GRH  {from} > {to}, traffic class {class:#04x}, flow label {label:#x}, hop limit {hops}"
            );
        }
    } else if let Some(tcp) = &packet.tcp {
        let (port, to) = (packet.from_port, tcp.to_port);
        let _ = writeln!(text, "    IP   {} > {}", packet.from, packet.to);
        let _ = writeln!(text, "    TCP  {port} > {to}, {} bytes", packet.len);
    } else if !packet.bytes.is_empty() {
        let (class, port) = (packet.traffic_class, packet.from_port);
        let _ =
            writeln!(text, "    IP   {} > {}, traffic class {class:#04x}, hop limit {hops}", packet.from, packet.to);
        let _ = writeln!(text, "    UDP  {port} > 4791, {} bytes from the BTH to the ICRC", packet.len);
    }
    let _ = writeln!(text, "    QP   {}", qps(packet));
    for part in what(packet).split("; ") {
        let _ = writeln!(text, "         {part}");
    }
    let mut said = String::new();
    fate(packet, &mut said);
    if !said.is_empty() {
        let _ = writeln!(text, "    {}", said.trim_start_matches([' ', ';']));
    }
    let bytes = if packet.tcp.is_some() { &packet.bytes } else { packet.payload().0 };
    for (at, row) in bytes.chunks(ROW).enumerate().filter(|_| payload) {
        let hex: String = row.iter().map(|byte| format!("{byte:02x} ")).collect();
        let letter = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' };
        let _ = writeln!(text, "    {:#06x}  {hex:48} {}", at * ROW, row.iter().map(letter).collect::<String>());
    }
    text
}

/// A JSON object for scripts. Missing values are null.
#[must_use]
pub fn json(packet: &Packet) -> Value {
    let headers = packet.headers();
    let opcode = headers.map(|headers| headers.opcode);
    let lane = if let Path::Lane { lane, .. } = packet.path { Some(lane) } else { None };
    let name = match packet.path {
        Path::Lane { .. } => "lane",
        Path::Out(_) => "wire out",
        Path::In(_) => "wire in",
        Path::Inside(_) => "inside",
        Path::LinkOut(_) => "link out",
        Path::LinkIn(_) => "link in",
        Path::Nowhere(_) => "none",
    };
    let [from, to] = packet.processes().map(|process| json!({"pid": process.pid, "comm": &*process.comm}));
    let known = |known: bool, value: Value| if known { value } else { Value::Null };
    let reth = headers
        .filter(|headers| headers.opcode.has_reth())
        .map(|Headers { reth, .. }| json!({"va": reth.va, "rkey": reth.rkey, "len": reth.len}));
    let aeth = headers
        .filter(|headers| headers.opcode.has_aeth())
        .map(|Headers { aeth, .. }| json!({"syndrome": aeth.syndrome.to_string(), "msn": aeth.msn}));
    json!({
        "time": packet.time,
        "device": packet.device.as_deref(),
        "path": name,
        "lane": lane,
        "process": from,
        "peer": known(lane.is_some(), to),
        "from": packet.from.to_string(),
        "to": packet.to.to_string(),
        "link": packet.link.map(lids),
        "src_qp": (packet.src_qp != 0).then_some(packet.src_qp),
        "dest_qp": packet.dest_qp(),
        "transport": opcode.map(transport),
        "opcode": opcode.map(|opcode| opcode.operation.to_string()).or_else(|| streams::opcode(packet)),
        "tcp": packet.tcp.map(|tcp| segment(packet, &tcp)),
        "opcode_number": packet.bytes.first().filter(|_| packet.tcp.is_none()),
        "psn": headers.map(|headers| headers.psn.value()),
        "ack_req": headers.map(|headers| headers.ack_req),
        "solicited": headers.map(|headers| headers.solicited),
        "reth": reth,
        "aeth": aeth,
        "imm": headers.filter(|headers| headers.opcode.has_immdt()).map(|headers| headers.imm),
        "payload": packet.payload().1,
        "len": packet.len,
        "cm": message(packet).map(|(name, text)| json!({"message": name, "text": text})),
        "note": known(!packet.note.is_empty(), json!(packet.note)),
        "dropped": packet.dropped.map(|dropped| json!({
            "cause": dropped.cause().map(abi::reason::Cause::word),
            "sentence": dropped.sentence(),
        })),
        "text": line(packet),
    })
}

fn lids(link: Link) -> Value {
    let Link { slid, dlid, sl, vl, flow_label, .. } = link;
    json!({"slid": slid, "dlid": dlid, "sl": sl, "vl": vl, "grh": flow_label.is_some()})
}

fn segment(packet: &Packet, tcp: &Tcp) -> Value {
    let end = tcp.end.map(|end| match end {
        End::Finish => "fin",
        End::Reset => "reset",
    });
    json!({"from_port": packet.from_port, "to_port": tcp.to_port, "end": end})
}

fn transport(opcode: Opcode) -> String {
    opcode.to_string().split(' ').next().unwrap_or_default().to_owned()
}

/// The path in a short form.
fn path(packet: &Packet) -> String {
    match &packet.path {
        Path::Lane { lane, from, to } => format!("lane {lane} {}>{}", from.pid, to.pid),
        Path::Out(process) => format!("wire out {}", process.pid),
        Path::In(process) => format!("wire in {}", process.pid),
        Path::Inside(_) => "inside".to_owned(),
        Path::LinkOut(_) => "link out".to_owned(),
        Path::LinkIn(_) => "link in".to_owned(),
        Path::Nowhere(process) => format!("at {}", process.pid),
    }
}

fn who(packet: &Packet) -> String {
    let qp =
        |qpn: Option<u32>| qpn.filter(|qpn| *qpn != 0).map_or_else(|| "?".to_owned(), |qpn| Qpn::new(qpn).to_string());
    let (src, dest) = (qp(Some(packet.src_qp)), qp(packet.dest_qp()));
    if !packet.is_there() {
        return format!("QP {src} > QP {dest}");
    }
    if let Some(tcp) = &packet.tcp {
        let Packet { from, to, from_port, .. } = packet;
        return format!("{from} port {from_port} QP {src} > {to} port {} QP {dest}", tcp.to_port);
    }
    match packet.link {
        Some(Link { slid, dlid, .. }) => format!("LID {slid} QP {src} > LID {dlid} QP {dest}"),
        None => format!("{} QP {src} > {} QP {dest}", packet.from, packet.to),
    }
}

fn qps(packet: &Packet) -> String {
    let dest = packet.dest_qp().map_or_else(|| "?".to_owned(), |qpn| Qpn::new(qpn).to_string());
    match packet.src_qp {
        0 => format!("? > {dest}"),
        src => format!("{} > {dest}", Qpn::new(src)),
    }
}

/// The content: headers and payload.
fn what(packet: &Packet) -> String {
    if let Some(tcp) = &packet.tcp {
        return streams::what(packet, tcp);
    }
    if packet.bytes.is_empty() {
        let opcode = packet.dropped.and_then(|dropped| Opcode::from_u8(dropped.opcode as u8));
        let psn = packet.dropped.map_or(0, |dropped| dropped.psn);
        return opcode.map_or_else(|| "a packet".to_owned(), |opcode| format!("{opcode} psn {psn}"));
    }
    if matches!(packet.bytes[0], probe::PROBE | probe::ANSWER) {
        let probe = packet.bytes.first_chunk().and_then(|bytes| Probe::parse(bytes).ok());
        return probe.map_or_else(|| "a probe of softhca".to_owned(), |probe| format!("softhca's own {probe}"));
    }
    let Some(headers) = packet.headers() else {
        return format!("unknown packet (opcode {:#04x}), {} bytes", packet.bytes[0], packet.len);
    };
    let mut text = stack(&headers);
    if let Some((name, said)) = message(packet) {
        let _ = write!(text, "; {name}: {said}");
        return text;
    }
    match packet.payload() {
        (_, 0) => {}
        (kept, len) if kept.len() == len => drop(write!(text, "; {len} bytes")),
        (kept, len) => drop(write!(text, "; {len} bytes, of which {} were kept", kept.len())),
    }
    text
}

/// The headers. The destination QP comes before them, so it is removed here.
fn stack(headers: &Headers) -> String {
    headers.to_string().replacen(&format!(" to QP {}", headers.dest_qp), "", 1).replace(", ", "; ")
}

/// A management datagram: the message's name and content.
fn message(packet: &Packet) -> Option<(&'static str, String)> {
    let is_mad =
        |headers: &Headers| headers.dest_qp == Qpn::GSI || headers.dest_qp.value() == 0 && headers.opcode.has_deth();
    let headers = packet.headers().filter(is_mad)?;
    let (bytes, _) = packet.payload();
    let Ok(whole): Result<&[u8; MAD_LEN], _> = bytes.try_into() else {
        return headers.opcode.has_deth().then(|| ("MAD", "it was not kept".to_owned()));
    };
    Some(match Message::parse(whole) {
        Ok((_, message)) => (name(message.attribute()), message.to_string()),
        Err(_) => ("MAD", mad::Header::of(whole).to_string()),
    })
}

/// The names of the connection manager's messages in the IBA and in Wireshark.
fn name(attribute: Attribute) -> &'static str {
    match attribute {
        Attribute::Req => "ConnectRequest",
        Attribute::Mra => "MsgRcptAck",
        Attribute::Rej => "ConnectReject",
        Attribute::Rep => "ConnectReply",
        Attribute::Rtu => "ReadyToUse",
        Attribute::Dreq => "DisconnectRequest",
        Attribute::Drep => "DisconnectReply",
        Attribute::SidrReq => "ServiceIDResReq",
        Attribute::SidrRep => "ServiceIDResRep",
        Attribute::Lap => "LoadAlternatePath",
        Attribute::Apr => "AlternatePathResponse",
    }
}

/// Appends the packet's fate and its note.
fn fate(packet: &Packet, text: &mut String) {
    if !packet.note.is_empty() {
        let _ = write!(text, "; {}", packet.note);
    }
    if let Some(dropped) = &packet.dropped {
        let _ = write!(text, "; {}", dropped.sentence());
    }
}

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;

/// The time of day (UTC).
fn clock(time: u64) -> String {
    let (seconds, rest) = (time / SECOND % DAY, time % SECOND);
    format!("{:02}:{:02}:{:02}.{rest:09}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Day and time (UTC); the Gregorian calendar by 400 years of 146 097 days.
#[must_use]
pub fn date(time: u64) -> String {
    let days = time / SECOND / DAY + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {}", clock(time))
}

#[cfg(test)]
mod tests {
    use super::{clock, date};

    #[test]
    fn times_are_told_as_the_calendar_has_them() {
        assert_eq!(clock(1_700_000_000_000_000_007), "22:13:20.000000007");
        assert_eq!(date(0), "1970-01-01 00:00:00.000000000");
        assert_eq!(date(951_782_400 * super::SECOND), "2000-02-29 00:00:00.000000000");
        assert_eq!(date(1_700_000_000 * super::SECOND), "2023-11-14 22:13:20.000000000");
    }
}
