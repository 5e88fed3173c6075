//! Follows one RDMA WRITE of 8 bytes through the source files, and limits how many files it enters:
//! what somebody has to open who wants to know how a WRITE works. The program is
//! `suite/programs/walk.rs`, in simulated time, built like the tests.
//!
//! valgrind notes the executed instructions, and addr2line names the function of each instruction,
//! with the functions into which it was inlined. A file counts if an instruction of one of its
//! functions was executed, from the post until the target has the bytes and has acknowledged them
//! (`walk_post` and `walk_take`). The completion at the initiator (`walk_reap`) is listed too. Only
//! the crates of [`CRATES`] count: the program's own interface (C or Rust) is above them, and the
//! simulated network below.
//!
//! If you put files together, write down the lower number that the test prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::{fs, thread};

/// The crates that a WRITE passes through.
const CRATES: [&str; 4] = ["engine", "protocol", "shm", "wire"];
/// Files that only the interface above enters: the Rust interface asks a region for its key, and a
/// C program passes the key with the request.
const ABOVE: [&str; 1] = ["engine/src/mr.rs"];
/// The program that makes the WRITE.
const PROGRAM: &str = env!("CARGO_BIN_EXE_walk");
/// The steps of a WRITE.
const STEPS: [&str; 3] = ["walk_post", "walk_take", "walk_reap"];
/// How many of the steps count.
const COUNTED: usize = 2;

/// An executed instruction: its address, and the function that it calls.
type Instruction = (u64, Option<String>);

/// The functions of a file of callgrind, each with its executed instructions. A call has three
/// lines: `cfn=` names the called function, `calls=` has their number, and the next line has the
/// address of the call.
fn functions(text: &str) -> BTreeMap<String, BTreeSet<Instruction>> {
    let mut found = BTreeMap::<String, BTreeSet<Instruction>>::new();
    let (mut function, mut object, mut called, mut is_call) = (String::new(), String::new(), None, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.to_owned();
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = name.to_owned();
        } else if let Some(name) = line.strip_prefix("cfn=") {
            called = Some(name.to_owned());
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if let Some(address) = line.strip_prefix("0x").and_then(|line| line.split(' ').next()) {
            let address = u64::from_str_radix(address, 16).expect("an address");
            let callee = if std::mem::take(&mut is_call) { called.take() } else { None };
            if object.ends_with("/walk") {
                found.entry(function.clone()).or_default().insert((address, callee));
            }
        }
    }
    found
}

/// The addresses of a step, in about the order of execution: each function once, from its first
/// instruction to its last.
fn in_order(
    functions: &BTreeMap<String, BTreeSet<Instruction>>,
    name: &str,
    seen: &mut BTreeSet<String>,
    to: &mut Vec<u64>,
) {
    if !seen.insert(name.to_owned()) {
        return;
    }
    for (address, called) in functions.get(name).into_iter().flatten() {
        to.push(*address);
        if let Some(called) = called {
            in_order(functions, called, seen, to);
        }
    }
}

/// The source files of instructions, in their order: `engine/src/send.rs`.
fn files(addresses: &[u64]) -> Vec<String> {
    let mut command = Command::new("addr2line");
    command.args(["-i", "-e", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("addr2line is installed");
    let mut input = child.stdin.take().expect("a pipe");
    let asked: String = addresses.iter().fold(String::new(), |text, address| text + &format!("{address:x}\n"));
    let writer = thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = child.wait_with_output().expect("addr2line ends");
    writer.join().expect("a thread").expect("addr2line reads");
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((file, line)) = line.split_once("/crates/").and_then(|(_, place)| place.split_once(':')) else {
            continue;
        };
        if !line.starts_with(|digit: char| digit.is_ascii_digit()) {
            // The compiler's own instructions, which belong to no line.
            continue;
        }
        let file = file.to_owned();
        let counts = CRATES.iter().any(|name| file.starts_with(&format!("{name}/")));
        if counts && !ABOVE.contains(&file.as_str()) && !found.contains(&file) {
            found.push(file);
        }
    }
    found
}

/// The executed instructions of a step, as callgrind writes them down.
fn trace(path: &str, step: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--dump-instr=yes"]);
    valgrind.arg(format!("--toggle-collect=walk::{step}"));
    valgrind.arg(format!("--callgrind-out-file={}", out.display())).args([PROGRAM, path]);
    let ended = valgrind.output().expect("valgrind is installed");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    fs::read_to_string(&out).expect("the instructions of a step")
}

/// Follows a WRITE; returns how many files it enters, and their list.
fn walk(path: &str) -> (usize, String) {
    let (mut all, mut told) = (BTreeSet::new(), String::new());
    for (number, step) in STEPS.into_iter().enumerate() {
        let functions = functions(&trace(path, step));
        let (mut seen, mut addresses) = (BTreeSet::new(), Vec::new());
        let begin = functions.keys().find(|name| name.contains(step)).unwrap_or_else(|| panic!("{step} did not run"));
        in_order(&functions, begin, &mut seen, &mut addresses);
        let entered = files(&addresses);
        let list = entered.join("\n    ");
        writeln!(told, "{path}, {step}: {} files\n    {list}", entered.len()).expect("a string takes text");
        if number < COUNTED {
            all.extend(entered);
        }
    }
    writeln!(told, "{path}: {} files", all.len()).expect("a string takes text");
    (all.len(), told)
}

fn follows(path: &str, known: usize) {
    let (count, told) = walk(path);
    println!("{told}");
    assert!(count <= known, "a WRITE enters more than {known} files\n{told}");
}

#[test]
fn a_write_on_a_lane_enters_no_more_files_than_before() {
    follows("lane", 47);
}

#[test]
fn a_write_over_the_wire_enters_no_more_files_than_before() {
    follows("wire", 65);
}
