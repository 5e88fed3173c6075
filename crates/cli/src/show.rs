//! `softhca show`: shows the objects of all programs, as `rdma resource show` shows those of the
//! kernel.
//!
//! The agent answers with its contexts and everything in them. This module makes one row for each
//! object, which begins with the object's program. The principal function is [`run`].

use abi::mr::access;
use serde_json::{Map, Value, json};

use crate::admin::Connection;
use crate::arguments::Kind;
use crate::failure::Failure;
use crate::place::Host;
use crate::table;

/// The members that precede each object's own members.
const OWNER: [&str; 4] = ["device", "context", "pid", "comm"];

/// Shows the objects of one kind, or the number of objects of each kind.
pub(crate) fn run(host: &Host, json: bool, paths: bool, kind: Option<Kind>) -> Result<String, Failure> {
    let answer = Connection::expect(&host.run_dir())?.ask("show")?;
    let contexts = answer["contexts"].as_array().cloned().unwrap_or_default();
    let more = answer["more"].as_u64().unwrap_or_default();
    let left_out = if more == 0 { String::new() } else { format!("{more} more contexts; only root can see them\n") };
    Ok(match kind {
        None if json => crate::json::object(readable(answer))?,
        None => summary(&contexts, &answer["lanes"]) + &ids_summary(&answer["manager"]) + &left_out,
        Some(Kind::Cm) => {
            let rows = answer["manager"]["ids"].as_array().cloned().unwrap_or_default();
            let more = answer["manager"]["more"].as_u64().unwrap_or_default();
            let left_out = if more == 0 { String::new() } else { format!("{more} more ids; they are not shown\n") };
            if json { crate::json::document("ids", Value::Array(rows))? } else { lines(Kind::Cm, &rows) + &left_out }
        }
        Some(kind) => {
            let rows = rows(&contexts, kind);
            if json {
                crate::json::document(member(kind), readable(Value::Array(rows)))?
            } else {
                let paths = if paths && kind == Kind::Qp { paths_in_words(&rows) } else { String::new() };
                lines(kind, &rows) + &left_out + &streams_in_words(&rows) + &paths
            }
        }
    })
}

/// The names of the bits of `access` of memory regions.
const ACCESS: [(u32, &str); 11] = [
    (access::LOCAL_WRITE, "local-write"),
    (access::REMOTE_WRITE, "remote-write"),
    (access::REMOTE_READ, "remote-read"),
    (access::REMOTE_ATOMIC, "remote-atomic"),
    (access::MW_BIND, "mw-bind"),
    (access::ZERO_BASED, "zero-based"),
    (access::ON_DEMAND, "on-demand"),
    (access::HUGETLB, "hugetlb"),
    (access::FLUSH_GLOBAL, "flush-global"),
    (access::FLUSH_PERSISTENT, "flush-persistent"),
    (access::RELAXED_ORDERING, "relaxed-ordering"),
];

/// Replaces bits by lists of names.
fn readable(mut value: Value) -> Value {
    match &mut value {
        Value::Array(list) => list.iter_mut().for_each(|item| *item = readable(item.take())),
        Value::Object(members) => {
            for (name, value) in members {
                *value = match value.as_u64().filter(|_| name == "access") {
                    Some(bits) => rights(bits),
                    None => readable(value.take()),
                };
            }
        }
        _ => {}
    }
    value
}

/// The names of the rights that are set. A bit without a name is shown as a number.
fn rights(bits: u64) -> Value {
    let known = |bit: u64| ACCESS.iter().find(|(known, _)| u64::from(*known) == bit);
    crate::json::flags(bits, |bit| known(bit).map(|(_, name)| (*name).to_owned()))
}

/// The member of a context that lists the objects of this kind.
fn member(kind: Kind) -> &'static str {
    match kind {
        Kind::Contexts => "contexts",
        Kind::Cm => "ids",
        Kind::Ah => "ahs",
        Kind::Channel => "channels",
        Kind::Pd => "pds",
        Kind::Cq => "cqs",
        Kind::Qp => "qps",
        Kind::Srq => "srqs",
        Kind::Mr => "mrs",
    }
}

/// One row for each object, with its program.
fn rows(contexts: &[Value], kind: Kind) -> Vec<Value> {
    let mut rows = Vec::new();
    for context in contexts {
        let owner: Map<String, Value> = OWNER.iter().map(|name| ((*name).to_owned(), context[*name].clone())).collect();
        if kind == Kind::Contexts {
            rows.push(Value::Object(count(context, owner)));
            continue;
        }
        for object in context[member(kind)].as_array().into_iter().flatten() {
            let mut row = owner.clone();
            row.extend(object.as_object().cloned().unwrap_or_default());
            rows.push(Value::Object(row));
        }
    }
    rows
}

/// A context's own members. Each list is replaced by its length.
fn count(context: &Value, mut row: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in context.as_object().into_iter().flatten() {
        let value = value.as_array().map_or_else(|| value.clone(), |list| json!(list.len()));
        row.insert(name.clone(), value);
    }
    row
}

fn summary(contexts: &[Value], lanes: &Value) -> String {
    let mut text = format!("contexts {}  lanes {lanes}\n", contexts.len());
    let of_all =
        |name: &str| -> usize { contexts.iter().filter_map(|context| context[name].as_array()).map(Vec::len).sum() };
    let counts = ["pds", "cqs", "qps", "srqs", "mrs", "ahs", "channels"].map(|name| format!("{name} {}", of_all(name)));
    text += &(counts.join("  ") + "\n");
    text
}

/// The number of ids of the connection manager, and how many of them listen.
fn ids_summary(manager: &Value) -> String {
    let ids = manager["ids"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listening = ids.iter().filter(|id| id["stage"] == "listening").count();
    let all = ids.len() as u64 + manager["more"].as_u64().unwrap_or_default();
    format!("connection manager: ids {all}  listening {listening}\n")
}

/// The columns of each kind: heading and member.
fn columns(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Contexts => &[
            ("UID", "uid"),
            ("PDS", "pds"),
            ("CQS", "cqs"),
            ("QPS", "qps"),
            ("SRQS", "srqs"),
            ("MRS", "mrs"),
            ("QUEUE BYTES", "queue_bytes"),
        ],
        Kind::Pd => &[("PD", "pd"), ("USERS", "users")],
        Kind::Cq => &[("CQ", "cq"), ("CQE", "cqe"), ("WAITING", "waiting"), ("ARMED", "armed"), ("USERS", "users")],
        Kind::Qp => &[
            ("QPN", "qpn"),
            ("TYPE", "type"),
            ("STATE", "state"),
            ("DEST QPN", "dest_qpn"),
            ("PD", "pd"),
            ("SEND CQ", "send_cq"),
            ("RECV CQ", "recv_cq"),
            ("SQ PSN", "sq_psn"),
            ("PATH", "path"),
            ("PEER", "peer"),
        ],
        Kind::Srq => {
            &[("SRQ", "srq"), ("PD", "pd"), ("MAX WR", "max_wr"), ("LIMIT", "limit"), ("OUTSTANDING", "outstanding")]
        }
        Kind::Cm => &[
            ("ID", "id"),
            ("SPACE", "space"),
            ("TYPE", "type"),
            ("STAGE", "stage"),
            ("STATE", "state"),
            ("LOCAL", "local"),
            ("REMOTE", "remote"),
            ("QPN", "qpn"),
            ("EVENTS", "events"),
        ],
        Kind::Ah => &[("PD", "pd"), ("PORT", "port"), ("SGID INDEX", "sgid_index"), ("DGID", "dgid"), ("DLID", "dlid")],
        Kind::Channel => &[("CQS", "cqs")],
        Kind::Mr => &[("LKEY", "lkey"), ("RKEY", "rkey"), ("PD", "pd"), ("START", "start"), ("LENGTH", "length")],
    }
}

fn lines(kind: Kind, rows: &[Value]) -> String {
    let owner = [("DEVICE", "device"), ("PID", "pid"), ("COMMAND", "comm")];
    // An id may use addresses of several devices, so it has no device column.
    let owner = if kind == Kind::Cm { &owner[1..] } else { &owner[..] };
    let all: Vec<(&str, &str)> = owner.iter().chain(columns(kind)).copied().collect();
    let heading: Vec<&str> = all.iter().map(|(heading, _)| *heading).collect();
    let cells = |row: &Value| -> Vec<String> { all.iter().map(|(_, member)| cell(member, &row[*member])).collect() };
    table::columns(&heading, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// The TCP connections of queue pairs of iWARP.
fn streams_in_words(rows: &[Value]) -> String {
    let connected = rows.iter().filter(|row| row["stream"].is_object());
    let told = connected.map(|row| {
        let (number, stream) = (cell("qpn", &row["qpn"]), &row["stream"]);
        let text = |member: &str| cell(member, &stream[member]);
        let with = |member: &str, word: &str| if stream[member] == true { format!(", {word}") } else { String::new() };
        format!(
            "QP {number}: TCP {} > {}, {}, MPA revision {}{}{}{}, {} bytes sent, {} received\n",
            text("local"),
            text("remote"),
            text("state"),
            text("revision"),
            with("crc", "CRC"),
            with("sends_markers", "sends markers"),
            with("receives_markers", "receives markers"),
            text("sent_bytes"),
            text("received_bytes"),
        )
    });
    told.collect()
}

/// The paths of connections through the switches of a topology.
fn paths_in_words(rows: &[Value]) -> String {
    let connected = rows.iter().filter(|row| row["subnet_path"].is_object());
    let told = connected.map(|row| {
        let number = cell("qpn", &row["qpn"]);
        format!("\nQP {number}: {}", crate::subnet::path_in_words(&row["subnet_path"]))
    });
    told.collect()
}

/// A value for people: QP numbers, keys and addresses are in hex.
fn cell(member: &str, value: &Value) -> String {
    match (member, value) {
        ("id" | "qpn" | "dest_qpn" | "lkey" | "rkey" | "start", Value::Number(number)) => {
            number.as_u64().map_or_else(|| number.to_string(), |number| format!("{number:#x}"))
        }
        ("peer", Value::Object(peer)) => {
            format!("{} {}", cell("", &peer["pid"]), cell("", peer.get("comm").unwrap_or(&Value::Null)))
        }
        (_, Value::Null) => "-".to_owned(),
        (_, Value::String(text)) => text.clone(),
        (_, other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, lines, rows, summary};
    use serde_json::{Value, json};

    fn contexts() -> Vec<Value> {
        vec![json!({
            "device": "softhca0", "context": 3, "pid": 77, "uid": 0, "comm": "prog", "queue_bytes": 4096,
            "pds": [{"pd": 1, "users": 2}], "mrs": [], "cqs": [], "srqs": [],
            "qps": [{"qpn": 258, "type": "RC", "state": "RTS", "dest_qpn": 513, "path": "lane 4",
                     "peer": {"context": 4, "pid": 78, "comm": "other"}}],
        })]
    }

    #[test]
    fn a_row_begins_with_its_program() {
        let rows = rows(&contexts(), Kind::Qp);
        assert_eq!((&rows[0]["pid"], &rows[0]["qpn"]), (&json!(77), &json!(258)));
        let text = lines(Kind::Qp, &rows);
        assert!(text.contains("0x102") && text.contains("lane 4") && text.contains("78 other"), "{text}");
    }

    #[test]
    fn a_connection_has_its_path_or_where_it_ends() {
        let mut contexts = contexts();
        contexts[0]["qps"][0]["subnet_path"] = json!({"from": "H1[1]", "to": "H2[1]", "lid": 5, "sl": 0,
            "passed": [{"node": "S1", "in": 1, "out": 3, "vl": 0}], "ends_at": "S2[1]", "why": "no route"});
        let text = super::paths_in_words(&rows(&contexts, Kind::Qp));
        assert!(text.starts_with("\nQP 0x102: H1[1] -> H2[1], LID 5, SL 0\n  S1: in by port 1"), "{text}");
        assert!(text.ends_with("  packets end at S2[1]: no route\n"), "{text}");
        assert_eq!(super::paths_in_words(&rows(&self::contexts(), Kind::Qp)), "");
    }

    #[test]
    fn a_connection_of_iwarp_has_its_tcp_addresses() {
        let mut contexts = contexts();
        contexts[0]["qps"][0]["stream"] = json!({"local": "192.0.2.1:7471", "remote": "192.0.2.2:40000",
            "state": "open", "revision": 2, "crc": true, "sends_markers": false, "receives_markers": false,
            "sent_bytes": 24, "received_bytes": 52});
        let text = super::streams_in_words(&rows(&contexts, Kind::Qp));
        let expected =
            "QP 0x102: TCP 192.0.2.1:7471 > 192.0.2.2:40000, open, MPA revision 2, CRC, 24 bytes sent, 52 received\n";
        assert_eq!(text, expected);
        assert_eq!(super::streams_in_words(&rows(&self::contexts(), Kind::Qp)), "");
    }

    #[test]
    fn ids_have_their_addresses() {
        let manager = json!({"ids": [{"id": 1_048_577, "pid": 7, "comm": "rping", "stage": "listening", "space": "TCP",
                                      "local": "0.0.0.0:7174", "remote": null, "qpn": 0, "events": 0}], "more": 0});
        let text = lines(Kind::Cm, manager["ids"].as_array().expect("a list"));
        assert!(text.contains("0x100001") && text.contains("0.0.0.0:7174") && !text.contains("DEVICE"), "{text}");
        assert_eq!(super::ids_summary(&manager), "connection manager: ids 1  listening 1\n");
    }

    #[test]
    fn a_context_counts_its_objects() {
        let rows = rows(&contexts(), Kind::Contexts);
        assert_eq!((&rows[0]["qps"], &rows[0]["mrs"]), (&json!(1), &json!(0)));
        assert!(summary(&contexts(), &json!(1)).starts_with("contexts 1  lanes 1\npds 1  cqs 0  qps 1"));
    }

    #[test]
    fn every_kind_that_is_counted_can_be_shown() {
        use clap::ValueEnum;
        let shown: Vec<&str> = Kind::value_variants().iter().map(|kind| super::member(*kind)).collect();
        for word in summary(&contexts(), &json!(1)).split_whitespace() {
            // Lanes belong to two contexts. They are shown as a path of queue pairs.
            let counted = word.chars().all(|letter| letter.is_ascii_lowercase()) && word != "lanes";
            assert!(!counted || shown.contains(&word), "{word}");
        }
    }

    #[test]
    fn rights_are_a_list_of_names() {
        let shown = super::readable(json!({"mrs": [{"access": 7}, {"access": 1 << 25}]}));
        assert_eq!(
            shown,
            json!({"mrs": [{"access": ["local-write", "remote-write", "remote-read"]}, {"access": ["0x2000000"]}]})
        );
    }
}
