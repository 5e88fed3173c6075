//! Verbs on connected queue pairs of iWARP, with the suite's program `streams`: memory windows,
//! invalidation, SQD, refused READs, limits of elements, atomics. For each row: what the program
//! must see on both sides, and why the connection ends. For an ordinary user as well.

use harness::{HANG, Room, User, cprogram};

/// A row, and the reason of the Terminate message that ends its connection.
type Row = (&'static str, Option<&'static str>);

const STAG: Option<&str> = Some("DDP, tagged buffer: the STag is invalid (1/1/0x0)");
const BOUNDS: Option<&str> = Some("DDP, tagged buffer: the access is out of bounds (1/1/0x1)");
const NO_INVALIDATION: Option<&str> = Some("RDMAP, remote protection: the STag cannot be invalidated (0/1/0x9)");

const ROWS: &[Row] = &[
    ("bind-1", STAG),
    ("bind-2", None),
    ("bind-bounds", BOUNDS),
    ("local-inv", STAG),
    ("local-inv-mr", Some("RDMAP, local: local catastrophic error (0/0/0x0)")),
    ("send-inv", STAG),
    ("send-inv-unknown", NO_INVALIDATION),
    ("send-inv-mr", NO_INVALIDATION),
    ("send-inv-foreign", NO_INVALIDATION),
    ("send-inv-domain", NO_INVALIDATION),
    ("sqd", None),
    ("read-refused", Some("RDMAP, remote protection: the STag is invalid (0/1/0x0)")),
    ("sges", None),
    ("no-receive", Some("DDP, untagged buffer: no receive is posted for the message (1/2/0x2)")),
    ("atomics", None),
    ("atomic-right", Some("RDMAP, remote protection: the region does not allow the access (0/1/0x2)")),
    ("atomic-bounds", Some("RDMAP, remote protection: the access is out of bounds (0/1/0x1)")),
    ("atomic-alignment", Some("RDMAP, remote operation: unspecified operation error (0/2/0xff)")),
    ("solicited", None),
    ("read-local", None),
    ("refused", None),
];

/// The rows whose program ends with success.
const WELL: &[&str] = &["bind-2", "sges", "atomics", "solicited", "read-local", "refused"];

fn room(user: User) -> (Room, String) {
    let room = Room::of(user).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent");
    let path = cprogram::build_with(&room, "streams", &["-lrdmacm"]).expect("it compiles");
    (room, path.display().to_string())
}

fn run_rows(user: User) {
    let (room, path) = room(user);
    let listed = room.finish(room.command::<&str>(&path, [])).expect("it ends").output;
    assert_eq!(listed.lines().collect::<Vec<_>>(), ROWS.iter().map(|row| row.0).collect::<Vec<_>>());
    for (row, reason) in ROWS {
        let outcome = room.finish_run(&[&path, row]).expect("it ends");
        assert_eq!(outcome.code, if WELL.contains(row) { 0 } else { 2 }, "{row}: {}", outcome.told());
        let told = outcome.everything();
        match reason {
            Some(reason) => {
                for side in ["ended the stream", "got a Terminate message"] {
                    assert!(told.contains(&format!("{side}: {reason}")), "{row}, {side}: {told}");
                }
            }
            None => assert!(!told.contains("Terminate"), "{row}: {told}"),
        }
    }
    room.wait_until_all_is_forgotten(HANG).expect("nothing is left");
}

#[test]
fn rows_of_this_user() {
    run_rows(User::Me);
}

#[test]
fn rows_of_an_ordinary_user() {
    run_rows(User::Nobody);
}
