//! Requests that end an iWARP connection, sent by the suite's program `terminates`. For each: the
//! Terminate message of the side that refuses it, and what both programs print. The principal type
//! is [`Request`].

use super::cases::{Case, Ending, Ready, by_address};
use super::side::Serves;
use super::siw::StartUp;

/// A reason as the RFCs define it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reason {
    /// Layer, type and code.
    numbers: (u8, u8, u8),
    /// softhca's words.
    words: &'static str,
}

/// What one direction must show.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Why the server sends a Terminate message.
    pub(super) reason: Reason,
    /// What the client prints: any of these.
    pub(super) client: &'static [&'static str],
    /// What the server prints; empty if nothing.
    pub(super) server: &'static str,
}

/// A request that the server refuses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// Its name in the program's arguments.
    name: &'static str,
    /// softhca's fault rules if softhca serves, and if siw serves; empty for none.
    faults: [&'static str; 2],
    /// Both directions. `None`: the request is not possible, or siw sends no Terminate message.
    ends: [Option<End>; 2],
}

const fn reason(numbers: (u8, u8, u8), words: &'static str) -> Reason {
    Reason { numbers, words }
}

const PROTECTION_STAG: Reason = reason((0, 1, 0), "RDMAP, remote protection: the STag is invalid");
const PROTECTION_BOUNDS: Reason = reason((0, 1, 1), "RDMAP, remote protection: the access is out of bounds");
const PROTECTION_ACCESS: Reason = reason((0, 1, 2), "RDMAP, remote protection: the region does not allow the access");
const PROTECTION_STREAM: Reason =
    reason((0, 1, 3), "RDMAP, remote protection: the STag is not associated with this stream");
const PROTECTION_WRAP: Reason = reason((0, 1, 4), "RDMAP, remote protection: the tagged offset wraps");
const PROTECTION_INVALIDATE: Reason = reason((0, 1, 9), "RDMAP, remote protection: the STag cannot be invalidated");
const OPCODE: Reason = reason((0, 2, 6), "RDMAP, remote operation: unexpected opcode");
const CATASTROPHIC: Reason = reason((1, 0, 0), "DDP, local: local catastrophic error");
const TAGGED_STAG: Reason = reason((1, 1, 0), "DDP, tagged buffer: the STag is invalid");
const TAGGED_BOUNDS: Reason = reason((1, 1, 1), "DDP, tagged buffer: the access is out of bounds");
const TAGGED_STREAM: Reason = reason((1, 1, 2), "DDP, tagged buffer: the STag is not associated with this stream");
const TAGGED_WRAP: Reason = reason((1, 1, 3), "DDP, tagged buffer: the tagged offset wraps");
const NO_BUFFER: Reason = reason((1, 2, 2), "DDP, untagged buffer: no receive is posted for the message");
const TOO_LONG: Reason = reason((1, 2, 5), "DDP, untagged buffer: the message is too long for its buffer");
const CRC: Reason = reason((2, 0, 2), "MPA, connection: the CRC is wrong");

/// What siw's client prints of a WRITE or SEND: the request has succeeded when TCP has the bytes. If
/// the connection ends while siw sends the last ones, it reports an error.
const LEFT_SIW: &[&str] = &["completion: success", "completion: local QP operation error"];
/// siw completes a READ that the peer refuses as flushed.
const FLUSHED: &[&str] = &["completion: Work Request Flushed Error"];
const LEFT: &[&str] = &["completion: success"];
/// The Terminate message of siw names a READ by its length instead of its MSN. softhca finds the
/// READ by what it asks for.
const REFUSED: &[&str] = &["completion: remote access error"];
/// siw's Terminate message does not name the atomic.
const ATOMIC: &[&str] = &["completion: Work Request Flushed Error"];

const ACCESS: &str = "event: local access violation work queue error";
const INVALID: &str = "event: invalid request local work queue error";
const KEPT: &str = "completion: remote invalid request error";
const FATAL: &str = "event: local work queue catastrophic error";

/// What a direction must show.
const fn end(reason: Reason, client: &'static [&'static str], server: &'static str) -> Option<End> {
    Some(End { reason, client, server })
}

const fn request(name: &'static str, ends: [Option<End>; 2]) -> Request {
    Request { name, faults: [""; 2], ends }
}

/// In each pair of directions, softhca serves in the first one, and siw in the second.
static REQUESTS: [Request; 15] = [
    request("write", [end(TAGGED_STAG, LEFT_SIW, ACCESS), end(TAGGED_STAG, LEFT, "")]),
    request("write-bounds", [end(TAGGED_BOUNDS, LEFT_SIW, ACCESS), end(TAGGED_BOUNDS, LEFT, ACCESS)]),
    request("write-right", [end(TAGGED_STAG, LEFT_SIW, ACCESS), end(TAGGED_STAG, LEFT, ACCESS)]),
    request("write-domain", [end(TAGGED_STREAM, LEFT_SIW, ACCESS), end(TAGGED_STREAM, LEFT, ACCESS)]),
    request("write-wrap", [end(TAGGED_WRAP, LEFT_SIW, ACCESS), end(CATASTROPHIC, LEFT, "")]),
    request("read", [end(PROTECTION_STAG, FLUSHED, INVALID), end(PROTECTION_STAG, REFUSED, INVALID)]),
    request("read-bounds", [end(PROTECTION_BOUNDS, FLUSHED, INVALID), end(PROTECTION_BOUNDS, REFUSED, INVALID)]),
    // siw does not check the right to read.
    request("read-right", [end(PROTECTION_ACCESS, FLUSHED, INVALID), None]),
    request("read-domain", [end(PROTECTION_STREAM, FLUSHED, INVALID), end(PROTECTION_STREAM, REFUSED, INVALID)]),
    request("read-wrap", [end(PROTECTION_WRAP, FLUSHED, INVALID), None]),
    // siw's own programs cannot post atomics.
    request("atomic", [None, end(OPCODE, ATOMIC, "")]),
    request("send", [end(NO_BUFFER, LEFT_SIW, FATAL), end(NO_BUFFER, LEFT, "")]),
    request("send-long", [end(TOO_LONG, LEFT_SIW, FATAL), end(NO_BUFFER, LEFT, FATAL)]),
    // If siw cannot invalidate a key, it sends no Terminate message.
    request("send-invalidate", [end(PROTECTION_INVALIDATE, LEFT_SIW, KEPT), None]),
    Request {
        name: "send-fits",
        // The first SEND is the greeting.
        faults: ["corrupt opcode send direction in nth 2", "corrupt opcode send nth 2"],
        ends: [end(CRC, LEFT_SIW, FATAL), end(CRC, LEFT, "completion: general error")],
    },
];

/// The width of a text.
const COLUMNS: usize = 100;

/// All numbers that the RFCs define.
const DEFINED: [(u8, u8, u8); 33] = [
    (0, 0, 0),
    (0, 1, 0),
    (0, 1, 1),
    (0, 1, 2),
    (0, 1, 3),
    (0, 1, 4),
    (0, 1, 9),
    (0, 1, 255),
    (0, 2, 5),
    (0, 2, 6),
    (0, 2, 7),
    (0, 2, 8),
    (0, 2, 9),
    (0, 2, 255),
    (1, 0, 0),
    (1, 1, 0),
    (1, 1, 1),
    (1, 1, 2),
    (1, 1, 3),
    (1, 1, 4),
    (1, 2, 1),
    (1, 2, 2),
    (1, 2, 3),
    (1, 2, 4),
    (1, 2, 5),
    (1, 2, 6),
    (2, 0, 1),
    (2, 0, 2),
    (2, 0, 3),
    (2, 0, 4),
    (2, 0, 5),
    (2, 0, 6),
    (2, 0, 7),
];

impl Reason {
    /// What softhca prints.
    pub(super) fn told(self) -> String {
        let (layer, kind, code) = self.numbers;
        format!("{} ({layer}/{kind}/{code:#x})", self.words)
    }

    /// What siw's kernel prints of a message that it gets. siw reads the layer where the RFC has the
    /// type, and the type where it has the layer.
    pub(super) fn in_kernel(self) -> String {
        let (layer, kind, code) = self.numbers;
        format!("siw: got TERMINATE. layer {kind}, type {layer}, code {code}")
    }
}

impl Request {
    /// What the direction must show; `None` if it is not possible.
    pub(super) fn end(&self, serves: Serves) -> Option<&End> {
        self.ends[serves.index()].as_ref()
    }

    /// softhca's fault rule in this direction.
    pub(super) fn fault(&self, serves: Serves) -> Option<&'static str> {
        Some(self.faults[serves.index()]).filter(|rule| !rule.is_empty())
    }

    /// What the table says of a direction that is good.
    pub(super) fn note(&self, serves: Serves) -> String {
        self.end(serves).map_or_else(String::new, |end| format!(" ({})", numbers(end.reason.numbers)))
    }
}

/// All requests.
pub(super) fn all(start_up: &'static StartUp) -> Vec<Case> {
    let case = |request: &'static Request| {
        let client = format!("{{terminates}} -a {{server}} -p {{port}} -c {}", request.name);
        Case {
            ready: Ready::Tcp,
            ending: Ending::Terminate(request),
            start_up: Some(start_up),
            ..by_address("{terminates} -a {server} -p {port} -l", &client)
        }
    };
    REQUESTS.iter().map(case).collect()
}

/// The text below the table.
pub(super) fn others() -> String {
    let [ours, siws] = [Serves::Here, Serves::Peer].map(|serves| {
        let provoked: Vec<_> =
            REQUESTS.iter().filter_map(|request| Some(request.end(serves)?.reason.numbers)).collect();
        let rest = DEFINED.iter().filter(|numbers| !provoked.contains(numbers)).map(|at| numbers(*at));
        rest.collect::<Vec<_>>().join(", ")
    });
    let text = "The numbers are layer, type and code of the Terminate message that the server sends. No case \
                provokes the following ones. Unit tests of softhca check the numbers of all reasons. Tests of the \
                suite in which the peer is a plain TCP socket provoke 0/0/0, 0/2/5, 0/2/6, 0/2/7, 0/2/255, 1/0/0, \
                1/1/4, 1/2/1, 1/2/3, 1/2/4, 1/2/6, 2/0/6 and 2/0/7. softhca never sends 0/1/255, 0/2/8, 0/2/9, \
                2/0/1, 2/0/4 and 2/0/5, and 2/0/3 only to a peer whose markers it has asked for, which it does not. \
                Captures have what siw sends to a plain socket.";
    let list = |who: &str, numbers: &str| wrapped(&format!("* Sent by {who}: {numbers}."), "  ");
    format!("\n{}\n{}{}", wrapped(text, ""), list("softhca", &ours), list("siw", &siws))
}

/// Breaks a paragraph into lines, and indents all but the first.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < COLUMNS => *line = format!("{line} {word}"),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.join("\n") + "\n"
}

fn numbers((layer, kind, code): (u8, u8, u8)) -> String {
    format!("{layer}/{kind}/{code}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provoked_reason_is_defined() {
        let ends = REQUESTS.iter().flat_map(|request| &request.ends).flatten();
        let undefined: Vec<_> = ends.filter(|end| !DEFINED.contains(&end.reason.numbers)).collect();
        assert!(undefined.is_empty(), "{undefined:?}");
    }

    #[test]
    fn siw_exchanges_layer_and_type() {
        assert_eq!(NO_BUFFER.in_kernel(), "siw: got TERMINATE. layer 2, type 1, code 2");
        assert_eq!(NO_BUFFER.told(), "DDP, untagged buffer: no receive is posted for the message (1/2/0x2)");
    }

    #[test]
    fn what_is_provoked_in_one_direction_only_is_listed_for_the_other() {
        let text = others();
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        let [ours, siws] = ["Sent by softhca: ", "Sent by siw: "]
            .map(|who| text.split_once(who).and_then(|(_, rest)| rest.split_once(".\n")).expect("a list").0.to_owned());
        assert!(ours.contains("0/2/6") && !siws.contains("0/2/6"), "{text}");
        assert!(siws.contains("0/1/4") && !ours.contains("0/1/4"), "{text}");
    }
}
