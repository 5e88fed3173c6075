//! The part of `docs/abi.md` about the connection manager's node: its table, its records and their
//! values.

use std::fmt::Write;

use super::{bits, constants, record};
use crate::ah::AhAttr;
use crate::layout::{Constant, Layout, Record};
use crate::ucma::{PARTS, ROWS, Row, address, command, connection, event_message, id, port_space, sockaddr};

/// Groups of values: name, meaning and values.
const VALUES: &[(&str, &str, &[Constant])] = &[
    ("port_space", port_space::MEANING, port_space::ALL),
    ("family", sockaddr::family::MEANING, sockaddr::family::ALL),
    ("level", id::level::MEANING, id::level::ALL),
    ("option", id::option::MEANING, id::option::ALL),
    ("ib_option", id::ib_option::MEANING, id::ib_option::ALL),
    ("query", address::query::MEANING, address::query::ALL),
    ("path_flags", address::path_flags::MEANING, address::path_flags::ALL),
    ("join_flags", connection::join_flags::MEANING, connection::join_flags::ALL),
    ("event", connection::event::MEANING, connection::event::ALL),
    ("event_message", event_message::MEANING, event_message::ALL),
    ("known", connection::known::MEANING, connection::known::ALL),
];

/// Everything about the node except its prose.
pub(super) fn section() -> String {
    let mut text = String::from("| # | name | meaning | request | answer | test |\n|---:|---|---|---|---|---|\n");
    for row in ROWS {
        let part = |layout: Option<Layout>, least: usize| match layout {
            None => "–".to_owned(),
            Some(layout) if least < layout.size => format!("{} {}, ≥ {least}", layout.name, layout.size),
            Some(layout) => format!("{} {}", layout.name, layout.size),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row.number,
            row.name,
            meaning(row),
            part(row.request, row.request_min),
            part(row.answer, row.answer_min),
            row.test.map_or("always ENOSYS".to_owned(), |test| format!("`{test}`")),
        );
    }
    text.push_str("\nRecords inside of others:\n\n");
    // The section about the device's commands shows this record.
    let mut shown = vec![AhAttr::LAYOUT.name];
    for layout in PARTS {
        let _ = writeln!(text, "{}", record(layout));
        shown.push(layout.name);
    }
    for row in ROWS.iter().filter(|row| row.test.is_some()) {
        let _ = writeln!(text, "### {} ({})\n", row.name, row.number);
        for (title, layout) in [("Request", row.request), ("Answer", row.answer)] {
            let Some(layout) = layout else { continue };
            if shown.contains(&layout.name) {
                let _ = writeln!(text, "{title}: `{}` ({} bytes).\n", layout.name, layout.size);
            } else {
                shown.push(layout.name);
                let _ = writeln!(text, "{title}: {}", record(&layout));
            }
        }
        for (errno, cause) in row.errors {
            let _ = writeln!(text, "* {errno:?}: {cause}.");
        }
        if !row.errors.is_empty() {
            text.push('\n');
        }
    }
    for (name, meaning, values) in VALUES {
        let _ = writeln!(text, "**{name}**:{meaning}\n\n{}", constants(values, bits));
    }
    text
}

fn meaning(row: &Row) -> &'static str {
    let known = command::ALL.iter().find(|constant| constant.value == u64::from(row.number));
    known.map_or("", |constant| constant.meaning.trim())
}
