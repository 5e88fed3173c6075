//! A ping-pong: `pingpong -p PORT` waits for the other side, `pingpong -p PORT HOST` plays with the one that waits there.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use softhca::{Context, Endpoint};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().collect();
    let port: u16 = words.get(2).ok_or("pingpong -p PORT [HOST]")?.parse()?;
    let stream = match words.get(3) {
        None => TcpListener::bind(("0.0.0.0", port))?.accept()?.0,
        Some(host) => TcpStream::connect((host.as_str(), port))?,
    };
    play(&softhca::open()?, stream, words.len() > 3, 1000)?;
    println!("1000 rounds, and no message was lost");
    Ok(())
}

/// One side. They meet over `stream`, which may be anything that both can write and read.
pub(crate) fn play(device: &Context, mut stream: impl Read + Write, serve: bool, rounds: u64) -> Outcome {
    let (pd, sent, received) = (device.pd()?, device.cq(4)?, device.cq(4)?);
    let qp = pd.reliable(&sent).receive_cq(&received).build()?;
    qp.receive(0, pd.buffer(8)?)?;

    stream.write_all(&qp.endpoint().to_bytes())?;
    let mut peer = [0; Endpoint::LEN];
    stream.read_exact(&mut peer)?;
    let qp = qp.connect(&Endpoint::from_bytes(&peer)?)?;
    stream.write_all(b"!")?; // Connected, and so is the peer:
    stream.read_exact(&mut [0])?;

    let mut ball = pd.buffer(8)?;
    for hit in 0..2 * rounds {
        if (hit % 2 == 0) == serve {
            ball.copy_from_slice(&hit.to_be_bytes());
            qp.send(hit, ball)?; // The ball is on its way, and nobody's but the adapter's …
            ball = sent.wait()?.ok()?.into_buffer(); // … until it has arrived.
        } else {
            let came = received.wait()?.ok()?;
            assert_eq!(came.data(), hit.to_be_bytes());
            qp.receive(hit, came.into_buffer())?;
        }
    }
    Ok(())
}
