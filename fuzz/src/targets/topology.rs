//! A file that describes a subnet, in either form.

use mad::topology::Topology;

pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for read in [Topology::from_text(&text), Topology::from_toml(&text)] {
        match read {
            Ok(topology) => assert_eq!(Topology::from_text(&topology.to_string()).as_ref(), Ok(&topology)),
            Err(error) => assert!(error.line > 0 && error.column > 0 && !error.what.is_empty()),
        }
    }
}
