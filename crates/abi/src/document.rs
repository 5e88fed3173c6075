//! `docs/abi.md`, generated from the tables of this crate, so that the page always matches the
//! code.
//!
//! The prose is a template (`document/abi.md`). This module replaces lines that begin with `@` and
//! names in braces. The principal function is [`document()`]; `cargo xtask abi-doc` writes its
//! result.

use std::fmt::Write;

use crate::command::{ROWS, Row, Support};
use crate::errno::Errno;
use crate::layout::{Constant, Layout, Record};
use crate::{
    ah, board, command, cq, device, envelope, event, fault, mr, open, post, private, qp, queue, reason, srq, stream,
    target, ucma, umad, wire,
};

mod example;
mod manager;

const TEMPLATE: &str = include_str!("document/abi.md");

/// Records that the template shows by name; those of single commands are found through the command
/// table.
const RECORDS: &[Layout] = &[
    open::Open::LAYOUT,
    open::OpenAnswer::LAYOUT,
    envelope::RequestEnvelope::LAYOUT,
    envelope::ReplyEnvelope::LAYOUT,
    command::Header::LAYOUT,
    command::ExtendedHeader::LAYOUT,
    queue::Mapping::LAYOUT,
    queue::ContextOut::LAYOUT,
    queue::PdOut::LAYOUT,
    queue::CqOut::LAYOUT,
    queue::QpOut::LAYOUT,
    queue::SrqOut::LAYOUT,
    queue::MrIn::LAYOUT,
    target::TargetState::LAYOUT,
    target::TargetAnswer::LAYOUT,
    event::AsyncRecord::LAYOUT,
    event::CompRecord::LAYOUT,
    cq::Wc::LAYOUT,
    post::SendWr::LAYOUT,
    post::Rdma::LAYOUT,
    post::Atomic::LAYOUT,
    post::Ud::LAYOUT,
    post::XrcSend::LAYOUT,
    post::RecvWr::LAYOUT,
    post::Sge::LAYOUT,
    private::Push::LAYOUT,
    private::LaneOut::LAYOUT,
    wire::Arrival::LAYOUT,
    reason::ReasonRecord::LAYOUT,
    reason::DropRecord::LAYOUT,
    queue::DatagramFlow::LAYOUT,
    queue::DatagramRoute::LAYOUT,
    ucma::ManagerHeader::LAYOUT,
    umad::FileRequest::LAYOUT,
    umad::FileReply::LAYOUT,
    umad::UserMad::LAYOUT,
    umad::RegisterAgent::LAYOUT,
    umad::RegisterAgent2::LAYOUT,
];

/// Records inside of other records, shown before the commands.
const PARTS: &[Layout] = &[ah::AhAttr::LAYOUT, qp::Dest::LAYOUT, wire::WireSocket::LAYOUT];

/// Values that the template shows by name.
const PLACED: &[(&str, &str, &[Constant])] = &[
    ("open::flag", open::flag::MEANING, open::flag::ALL),
    ("envelope::request", envelope::request::MEANING, envelope::request::ALL),
    ("open::profile", open::profile::MEANING, open::profile::ALL),
    ("queue::cq", queue::cq::MEANING, queue::cq::ALL),
    ("queue::cqe", queue::cqe::MEANING, queue::cqe::ALL),
    ("queue::qp", queue::qp::MEANING, queue::qp::ALL),
    ("queue::srq", queue::srq::MEANING, queue::srq::ALL),
    ("queue::recv_wqe", queue::recv_wqe::MEANING, queue::recv_wqe::ALL),
    ("queue::hw_counter", queue::hw_counter::MEANING, queue::hw_counter::ALL),
    ("queue::context_page", queue::context_page::MEANING, queue::context_page::ALL),
    ("target::target_word", target::target_word::MEANING, target::target_word::ALL),
    ("event::kind", event::kind::MEANING, event::kind::ALL),
    ("fault::area", fault::area::MEANING, fault::area::ALL),
    ("fault::state", fault::state::MEANING, fault::state::ALL),
    ("private::hello", private::hello::MEANING, private::hello::ALL),
    ("private::violation", private::violation::MEANING, private::violation::ALL),
    ("private::push", private::push::MEANING, private::push::ALL),
    ("private::gid_type", private::gid_type::MEANING, private::gid_type::ALL),
    ("board::word", board::word::MEANING, board::word::ALL),
    ("board::port_word", board::port_word::MEANING, board::port_word::ALL),
    ("board::path_word", board::path_word::MEANING, board::path_word::ALL),
    ("board::remote_word", board::remote_word::MEANING, board::remote_word::ALL),
    ("wire::arrival_kind", wire::arrival_kind::MEANING, wire::arrival_kind::ALL),
    ("wire::arrival_flags", wire::arrival_flags::MEANING, wire::arrival_flags::ALL),
    ("wire::open_flags", wire::open_flags::MEANING, wire::open_flags::ALL),
    ("wire::socket_flags", wire::socket_flags::MEANING, wire::socket_flags::ALL),
    ("wire::lease", wire::lease::MEANING, wire::lease::ALL),
    ("umad::kind", umad::kind::MEANING, umad::kind::ALL),
    ("umad::ioctl", umad::ioctl::MEANING, umad::ioctl::ALL),
    ("umad::agent_flag", umad::agent_flag::MEANING, umad::agent_flag::ALL),
];

/// Values that have a section of their own.
const VALUES: &[(&str, &str, &[Constant])] = &[
    ("Access rights", "access_flags, qp_access_flags", mr::access::ALL),
    ("What REREG_MR changes", "ReregMr.flags", mr::rereg::ALL),
    ("QP types", "qp_type", qp::kind::ALL),
    ("QP states", "qp_state, cur_qp_state", qp::state::ALL),
    ("QP attributes", "ModifyQp.attr_mask, QueryQp.attr_mask", qp::attr::ALL),
    ("Path migration states", "path_mig_state", qp::migration::ALL),
    ("Flags of multicast groups", "McastResolveAnswer.flags", private::mcast_flags::ALL),
    ("QP create flags", "ExCreateQp.create_flags", qp::create_flags::ALL),
    ("QP kinds", "QpOut.kind", stream::qp_kind::ALL),
    ("Flags of streams", "StreamOut.flags", stream::stream_flags::ALL),
    ("Flags of the end of a stream", "StreamEnd.flags", stream::end_flags::ALL),
    ("MTU codes", "path_mtu, max_mtu, active_mtu", device::mtu::ALL),
    ("Send opcodes", "SendWr.opcode", post::opcode::ALL),
    ("Send flags", "SendWr.send_flags", post::send_flags::ALL),
    ("Completion statuses", "Wc.status", cq::status::ALL),
    ("Completion opcodes", "Wc.opcode", cq::opcode::ALL),
    ("Completion flags", "Wc.wc_flags", cq::wc_flags::ALL),
    ("CQ create flags", "ExCreateCq.flags", cq::create_flags::ALL),
    ("SRQ attributes", "ModifySrq.attr_mask", srq::attr::ALL),
    ("Device capabilities", "device_cap_flags, device_cap_flags_ex", device::cap::ALL),
    ("Atomic capabilities", "atomic_cap", device::atomic_cap::ALL),
    ("Port states", "QueryPortAnswer.state", device::port_state::ALL),
    ("Link layers", "QueryPortAnswer.link_layer", device::link_layer::ALL),
    ("Mapping flags", "Mapping.flags", queue::mapping_flags::ALL),
    ("MrIn flags", "MrIn.flags", queue::mr_flags::ALL),
];

/// Numbers that the template names in braces.
const NUMBERS: &[(&str, usize)] = &[
    ("{VERSION}", open::VERSION as usize),
    ("{REQUEST_MAX}", envelope::REQUEST_MAX),
    ("{FDS_MAX}", envelope::FDS_MAX),
    ("{SEND_WQE_HEADER}", queue::SEND_WQE_HEADER),
    ("{DATAGRAM_WQE_HEADER}", queue::DATAGRAM_WQE_HEADER),
    ("{CONTEXT_RECORDS}", queue::CONTEXT_RECORDS as usize),
    ("{REASONS}", queue::REASONS as usize),
    ("{BOARD_LEN}", board::BOARD_LEN),
    ("{OWNERS}", board::OWNERS),
    ("{REMOTES}", board::REMOTES),
    ("{REMOTE_LEN}", board::REMOTE_LEN),
    ("{REMOTE_MAX}", board::REMOTE_MAX as usize),
    ("{REMOTE_PATHS}", board::REMOTE_PATHS),
    ("{PATH_LEN}", board::PATH_LEN),
    ("{DEVICES}", board::DEVICES),
    ("{DEVICE_LEN}", board::DEVICE_LEN),
    ("{DEVICE_MAX}", board::DEVICE_MAX as usize),
    ("{PORT_LEN}", board::PORT_LEN),
    ("{PORT_MAX}", board::PORT_MAX as usize),
    ("{MESSAGE_MAX}", umad::MESSAGE_MAX),
    ("{PIECE}", umad::PIECE),
    ("{SHORT_HEADER}", umad::SHORT_HEADER),
    ("{AGENTS_MAX}", umad::AGENTS_MAX),
];

/// The whole page.
#[must_use]
pub fn document() -> String {
    let mut page = String::new();
    for line in TEMPLATE.lines() {
        match line.strip_prefix('@') {
            None => page.push_str(line),
            Some(directive) => page.push_str(expand(directive).trim_end()),
        }
        page.push('\n');
    }
    for (name, value) in NUMBERS {
        page = page.replace(name, &value.to_string());
    }
    page
}

/// The replacement of a line that begins with `@`.
fn expand(directive: &str) -> String {
    let (verb, name) = directive.split_once(' ').unwrap_or((directive, ""));
    match verb {
        "record" => RECORDS.iter().find(|layout| layout.name == name).map(record),
        "constants" => PLACED.iter().find(|(known, ..)| *known == name).map(placed),
        "table" => Some(table(name == "extended")),
        "commands" => Some(commands()),
        "values" => Some(values()),
        "errnos" => Some(errnos()),
        "manager" => Some(manager::section()),
        "example" => Some(example::conversation()),
        _ => None,
    }
    .unwrap_or_else(|| format!("@{directive}"))
}

/// A record as a heading line and a table of its fields.
fn record(layout: &Layout) -> String {
    let meaning = layout.meaning.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = format!("**{}** ({} bytes): {meaning}\n\n", layout.name, layout.size);
    text.push_str("| offset | size | field | type | meaning |\n|---:|---:|---|---|---|\n");
    for field in layout.fields {
        let kind = field.kind.rsplit("::").next().unwrap_or(field.kind);
        let meaning = linked(layout.name, field.name, field.meaning.trim()).replace('|', "\\|");
        let _ = writeln!(text, "| {} | {} | `{}` | {kind} | {meaning} |", field.offset, field.size, field.name);
    }
    text
}

/// The meaning of a field, with a link to its values instead of their name in the code.
fn linked(record: &str, field: &str, meaning: &str) -> String {
    let full = format!("{record}.{field}");
    let values = VALUES.iter().find(|(_, fields, _)| fields.split(", ").any(|known| known == field || known == full));
    let (Some((title, ..)), Some((before, rest))) =
        (values, meaning.split_once("See `").or(meaning.split_once("see `")))
    else {
        return meaning.to_owned();
    };
    let after = rest.split_once('`').map_or("", |(_, after)| after);
    let see = if before.is_empty() { "See" } else { "see" };
    format!("{before}{see} [{title}](#{}){after}", title.to_lowercase().replace(' ', "-"))
}

/// Values under the name by which records refer to them.
fn placed((name, meaning, values): &(&str, &str, &[Constant])) -> String {
    let name = name.rsplit("::").next().unwrap_or(name);
    format!("**{name}**:{meaning}\n\n{}", constants(values, |value| value.to_string()))
}

fn constants(values: &[Constant], number: fn(u64) -> String) -> String {
    let mut text = String::from("| name | value | meaning |\n|---|---:|---|\n");
    for constant in values {
        let _ = writeln!(text, "| {} | {} | {} |", constant.name, number(constant.value), constant.meaning.trim());
    }
    text
}

/// Large powers of two are written as powers, which are easier to read.
fn bits(value: u64) -> String {
    if value > 512 && value.is_power_of_two() { format!("1 << {}", value.trailing_zeros()) } else { value.to_string() }
}

fn rows(extended: bool) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| row.extended == extended)
}

fn table(extended: bool) -> String {
    let mut text =
        String::from("| # | name | profile | request | answer | errors | test |\n|---:|---|---|---|---|---|---|\n");
    for row in rows(extended) {
        let part = |layout: Option<Layout>, least: usize, tail: Option<Layout>| match layout {
            None if row.request.is_none() => "none published".to_owned(),
            None => "–".to_owned(),
            Some(layout) => {
                let least = if least < layout.size { format!(", ≥ {least}") } else { String::new() };
                let tail = tail.map(|tail| format!(" + {} {}", tail.name, tail.size)).unwrap_or_default();
                format!("{} {}{least}{tail}", layout.name, layout.size)
            }
        };
        let test = match row.support {
            Support::Tested(name) => format!("`{name}`"),
            Support::Refused(errno) => format!("always {errno:?}: `{}`", command::rows::REFUSAL_TEST),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {test} |",
            row.number,
            row.name,
            profile(row),
            part(row.request, row.request_min, row.private_in),
            part(row.answer, row.answer_min, row.private_out),
            errors(row)
        );
    }
    text
}

fn profile(row: &Row) -> &'static str {
    row.profile.map_or("both", |profile| if profile == open::profile::OFED { "OFED" } else { "mainline" })
}

/// The names of a row's errors, each once.
fn errors(row: &Row) -> String {
    let mut names: Vec<String> = row.errors.iter().map(|(errno, _)| format!("{errno:?}")).collect();
    names.sort();
    names.dedup();
    if names.is_empty() { "–".to_owned() } else { names.join(", ") }
}

fn commands() -> String {
    let mut text = String::from("Records that are part of several requests:\n\n");
    let mut shown: Vec<&str> = RECORDS.iter().map(|layout| layout.name).collect();
    for layout in PARTS {
        let _ = writeln!(text, "{}", record(layout));
        shown.push(layout.name);
    }
    for row in rows(false).chain(rows(true)) {
        command(&mut text, &mut shown, row);
    }
    text
}

fn command(text: &mut String, shown: &mut Vec<&'static str>, row: &Row) {
    let form = if row.extended { ", extended" } else { "" };
    let only = if row.profile.is_some() { format!(", {} profile", profile(row)) } else { String::new() };
    let _ = writeln!(text, "### {} ({}{form}{only})\n", row.name, row.number);
    if let Support::Refused(errno) = row.support {
        let _ = writeln!(text, "Refused with {errno}.\n");
    }
    let parts = [
        ("Request", row.request),
        ("Private tail of the request", row.private_in),
        ("Answer", row.answer),
        (if row.extended { "Provider output" } else { "Private tail of the answer" }, row.private_out),
    ];
    for (title, layout) in parts.into_iter().filter_map(|(title, layout)| Some((title, layout?))) {
        if shown.contains(&layout.name) {
            let _ = writeln!(text, "{title}: `{}` ({} bytes).\n", layout.name, layout.size);
        } else {
            shown.push(layout.name);
            let _ = writeln!(text, "{title}: {}", record(&layout));
        }
    }
    if !row.extras.is_empty() {
        let mut letters = row.extras.chars();
        let first = letters.next().map(|letter| letter.to_uppercase().collect::<String>()).unwrap_or_default();
        let _ = writeln!(text, "{first}{}.\n", letters.as_str());
    }
    for (errno, cause) in row.errors {
        let _ = writeln!(text, "* {errno:?}: {cause}.");
    }
    if !row.errors.is_empty() {
        text.push('\n');
    }
}

fn values() -> String {
    let mut text = String::new();
    for (title, fields, values) in VALUES {
        let _ = writeln!(text, "### {title}\n\n`{fields}`\n\n{}", constants(values, bits));
    }
    text
}

fn errnos() -> String {
    let mut text = String::from("| name | value | meaning |\n|---|---:|---|\n");
    for errno in Errno::ALL {
        let _ = writeln!(text, "| {errno:?} | {} | {} |", errno.0, errno.meaning());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directive_is_understood() {
        let page = document();
        let left: Vec<&str> = page.lines().filter(|line| line.starts_with('@')).collect();
        assert!(left.is_empty(), "not understood: {left:?}");
        for (name, _) in NUMBERS {
            assert!(TEMPLATE.contains(name), "{name} is not used");
        }
    }

    #[test]
    fn every_placed_record_and_value_is_shown() {
        for layout in RECORDS {
            assert!(TEMPLATE.contains(&format!("@record {}\n", layout.name)), "{} is not shown", layout.name);
        }
        for (name, ..) in PLACED {
            assert!(TEMPLATE.contains(&format!("@constants {name}\n")), "{name} is not shown");
        }
    }

    #[test]
    fn every_number_has_a_row() {
        for profile in [open::profile::MAINLINE, open::profile::OFED] {
            for number in 0..=46 {
                let known = command::rows::find(number, false, profile).is_some();
                let unassigned = profile == open::profile::MAINLINE && (41..=44).contains(&number);
                assert_eq!(known, !unassigned, "legacy command {number} in profile {profile}");
            }
        }
        let mut keys: Vec<_> = ROWS.iter().map(|row| (row.extended, row.number, row.profile)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), ROWS.len(), "a number has two rows");
    }

    #[test]
    fn the_committed_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/abi.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == document(), "docs/abi.md differs from the tables: run `cargo xtask abi-doc`");
    }
}
