//! A hostile program that opens as many lanes between its own engines as the agent allows, and then
//! ends all engines at once, again and again.
//!
//! `tests/users.rs` starts it as `laner SECONDS`, with `SOFTHCA_DIR` naming the agent's run
//! directory. It prints how many lanes it has opened, how many lanes the agent refused, and how
//! often it has ended all engines.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "an intruder does more with it")]
#[path = "intruder/client.rs"]
mod client;

use std::error::Error;
use std::time::{Duration, Instant};

use abi::command::{extended, number};
use abi::layout::Record;
use abi::private::{EngineHelloAnswer, LaneOpen, LaneOut};
use client::Client;

const ENGINES: usize = 48;
const LANES_PER_PAIR: u32 = 64;
/// After this many refusals in one round, the program has all the lanes that it may have.
const ENOUGH: u64 = 64;

fn engine() -> Result<(Client, u32), engine::Error> {
    let mut client = Client::open(&engine::rundir::default())?;
    let answer = client.hello()?;
    let engine = EngineHelloAnswer::read(&answer).map_or(0, |answer| answer.engine);
    Ok((client, engine))
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("usage: laner SECONDS")?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut opened, mut refused, mut ended) = (0_u64, 0_u64, 0);
    println!("begun");
    while Instant::now() < end {
        // The agent may still count engines of the last round for a moment.
        let before = refused;
        let engines: Vec<_> = (0..ENGINES).map_while(|_| engine().ok()).collect();
        'all: for (one, (client, _)) in engines.iter().enumerate() {
            for (_, other) in &engines[one + 1..] {
                for lane_index in 0..LANES_PER_PAIR {
                    let body = LaneOpen { engine: *other, lane_index };
                    match client.call(&extended(number::LANE_OPEN, &body, size_of::<LaneOut>(), 0)) {
                        Ok(_) => opened += 1,
                        Err(_) => refused += 1,
                    }
                    if Instant::now() >= end || refused - before >= ENOUGH {
                        break 'all;
                    }
                }
            }
        }
        drop(engines);
        ended += 1;
    }
    println!("laner: {opened} lanes, {refused} refused, {ended} ends of all");
    Ok(())
}
