//! Runs the targets on the interesting inputs that a fuzzer has found, and on a few thousand random
//! bytes.

use std::path::Path;

use softhca_fuzz::{TARGETS, Target};

/// Runs a target on every file of its folder, in the order of their names.
fn replay(target: &Target) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        println!("{}", file.display());
        (target.run)(&std::fs::read(&file).expect("it can be read"));
    }
}

/// Runs a target on pseudo-random bytes, the same in each run. They find little, but they do not
/// depend on the corpus.
fn noise(target: &Target) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..40 {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        })
        .take(round * 16)
        .collect();
        (target.run)(&bytes);
    }
}

macro_rules! targets {
    ($($name:ident),+) => {
        $(mod $name {
            #[test]
            fn corpus() {
                super::replay(softhca_fuzz::target(stringify!($name)).expect("a target"));
            }

            #[test]
            fn noise() {
                super::noise(softhca_fuzz::target(stringify!($name)).expect("a target"));
            }
        })+

        #[test]
        fn none_is_left_out() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),+]);
        }
    };
}

targets!(packet, message, command, manager, receive, datagram, rsocket, lane, management, topology, tunnel);
