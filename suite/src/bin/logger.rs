//! A program that makes the agent write COUNT warnings to its log.
//!
//! `tests/users.rs` starts it as `logger COUNT`. It adds a fault rule for its own user by which
//! CREATE_QP fails, and sends this command COUNT times. The agent logs each failure as a warning.
//! The program prints its process id and how many commands were refused.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "an intruder does more with it")]
#[path = "intruder/client.rs"]
mod client;

use std::error::Error;

use client::Client;
use shm::Socket;

fn ask(question: &str) -> Result<String, Box<dyn Error>> {
    let socket = Socket::connect(&engine::rundir::admin(&engine::rundir::default()))?;
    socket.send(question.as_bytes(), &[])?;
    let mut bytes = vec![0; 64 << 10];
    let len = socket.recv(&mut bytes)?.len;
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    let count: u32 = std::env::args().nth(1).and_then(|word| word.parse().ok()).ok_or("usage: logger COUNT")?;
    let client = Client::open(&engine::rundir::default()).map_err(|error| error.reason)?;
    let added = ask(r#"{"request":"fault","do":"add","rules":"fail create_qp ENOMEM"}"#)?;
    if !added.contains("added") {
        return Err(added.into());
    }
    let refused = (0..count).filter(|_| client.call(&client::create_qp(1, 1)).is_err()).count();
    ask(r#"{"request":"fault","do":"clear"}"#)?;
    println!("logger: pid {}, {refused} refusals", std::process::id());
    Ok(())
}
