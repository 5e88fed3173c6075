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

targets!(
    packet,
    message,
    command,
    manager,
    receive,
    datagram,
    rsocket,
    lane,
    management,
    topology,
    client,
    subnet,
    administration,
    ipoib,
    iwarp,
    tunnel
);

/// Changes inputs of the corpus at random, without a fuzzer: FUZZ_TARGET names the target, and
/// FUZZ_SECONDS says for how long.
#[test]
#[ignore = "takes as long as it is told to"]
fn mutations() {
    let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
    let target = softhca_fuzz::target(&name).expect("a target");
    let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(120);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(folder).expect("its folder").map(|entry| entry.expect("an entry").path());
    let corpus: Vec<Vec<u8>> = entries.map(|path| std::fs::read(path).expect("it can be read")).collect();
    let began = std::time::Instant::now();
    let mut chance = Chance(u64::from(std::process::id()) << 32 | u64::from(began.elapsed().subsec_nanos()));
    let last = std::env::temp_dir().join(format!("softhca-fuzz-{name}-{}", std::process::id()));
    let mut count = 0_u64;
    while began.elapsed().as_secs() < seconds {
        let input = chance.changed(&corpus);
        // After a panic, the input is in this file.
        std::fs::write(&last, &input).expect("it can be written");
        (target.run)(&input);
        count += 1;
    }
    let _ = std::fs::remove_file(last);
    println!("{name}: {count} inputs in {seconds} s");
}

/// A source of random numbers, and of inputs.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit.max(1)
    }

    /// Two inputs of the corpus, one after the other, with some bytes changed, removed or added.
    fn changed(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        if self.below(3) == 0 {
            input.extend(&corpus[self.below(corpus.len())]);
        }
        for _ in 0..=self.below(16) {
            let at = self.below(input.len() + 1);
            let byte = [0, 1, 0xff, 0x80, self.below(256) as u8][self.below(5)];
            match self.below(4) {
                0 => input.splice(at..at, std::iter::repeat_n(byte, 1 + self.below(64))).for_each(drop),
                1 if at < input.len() => drop(input.drain(at..input.len().min(at + 1 + at % 8))),
                _ if at < input.len() => input[at] = byte,
                _ => input.push(byte),
            }
        }
        input.truncate(4096);
        input
    }
}
