//! Limits how many instructions a message of 8 bytes takes in the release build. valgrind counts
//! them, so the number is nearly the same on a busy machine, and the test notices a step that has
//! become more expensive. The program is `suite/programs/steps.c`. `cargo xtask instructions` tells
//! more about the same steps.
//!
//! A step that takes 10 % more than the number in this file fails. If you made a step more
//! expensive on purpose, or use another compiler, write down the number that the test prints. Do
//! the same if you made a step cheaper.

use std::collections::BTreeMap;
use std::fs;

use harness::{Room, cprogram};

/// Each step of a SEND, and its number of instructions.
const STEPS: [(&str, u64); 5] = [
    ("step_post_receive", 318),
    ("step_post_send", 1708),
    ("step_poll_message", 2586),
    ("step_poll_acknowledgement", 2072),
    ("step_poll_nothing", 491),
];
/// Batches of 100 messages.
const BATCHES: &str = "10";
/// Percentage by which a step may exceed its number.
const MORE: u64 = 10;

/// Calls and instructions of each step, including all functions that it calls. In callgrind's file
/// a call has three lines. `cfn=` has the name of the called function. `calls=` has the number of
/// calls. The next line has the place of the call and the total cost.
fn steps(text: &str) -> BTreeMap<&'static str, (u64, u64)> {
    let mut found = BTreeMap::<_, (u64, u64)>::new();
    let mut called = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("cfn=") {
            called = STEPS.iter().map(|(step, _)| *step).find(|step| name.contains(step));
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let cost = lines.next().and_then(|line| line.split_whitespace().last()?.parse::<u64>().ok());
            let calls = calls.split_whitespace().next().and_then(|calls| calls.parse::<u64>().ok());
            let (Some(calls), Some(cost)) = (calls, cost) else { panic!("no figures of a call in {text}") };
            if let Some(step) = called.take() {
                let sum: &mut (u64, u64) = found.entry(step).or_default();
                *sum = (sum.0 + calls, sum.1 + cost);
            }
        }
    }
    found
}

#[test]
fn a_message_of_8_bytes_takes_no_more_instructions_than_before() {
    let room = Room::new().expect("a room");
    let program = cprogram::build(&room, "steps").expect("it compiles").display().to_string();
    let file = room.folder().join("steps.out");
    let output = format!("--callgrind-out-file={}", file.display());
    let valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"];
    let words: Vec<&str> = valgrind.into_iter().chain([output.as_str(), &program, BATCHES]).collect();
    room.finish_run(&words).expect("it ends").expect_success();
    let counted = steps(&fs::read_to_string(&file).expect("counts"));
    let mut told = String::new();
    let mut dear = Vec::new();
    for (step, known) in STEPS {
        let (calls, cost) = counted.get(step).copied().unwrap_or_else(|| panic!("{step} was not counted"));
        let each = cost / calls.max(1);
        told += &format!("{step}: {each} instructions, {known} are known, {calls} calls\n");
        if each * 100 > known * (100 + MORE) {
            dear.push(step);
        }
    }
    println!("{told}");
    assert!(dear.is_empty(), "dearer than they were: {dear:?}\n{told}");
}
