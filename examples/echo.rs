//! An echo over RDMA: `echo ADDRESS:PORT` serves, `echo ADDRESS:PORT WORD` asks and prints the answer.

use std::net::SocketAddr;

use softhca::aio::{Connector, Listener, Request};
use softhca::{Context, Result};

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address: SocketAddr = words.first().ok_or("echo ADDRESS:PORT [WORD]")?.parse()?;
    let device = softhca::open()?;
    match words.get(1) {
        None => serve(&device, Listener::bind(&device, address)?).await?,
        Some(word) => println!("{}", ask(&device, address, word).await?),
    }
    Ok(())
}

/// Each peer has a task of its own.
pub(crate) async fn serve(device: &Context, listener: Listener) -> Result<()> {
    loop {
        let request = listener.accept().await?;
        tokio::spawn(echo(device.clone(), request));
    }
}

async fn echo(device: Context, request: Request) -> Result<()> {
    let (pd, cq) = (device.pd()?, device.cq(32)?);
    let incoming = request.prepare(pd.reliable(&cq))?;
    for buffer in pd.buffer(16 * 1024)?.pieces(1024) {
        incoming.post_receive(buffer)?; // Room for the first messages, before the peer may send.
    }
    let connection = incoming.accept(b"").await?;
    while let Ok(message) = connection.message().await {
        let len = message.bytes();
        let sent = connection.send(message.into_buffer().part(..len)).await?; // It has arrived, and the buffer is ours again.
        connection.post_receive(sent.into_buffer())?;
    }
    Ok(()) // The peer has disconnected.
}

pub(crate) async fn ask(device: &Context, address: SocketAddr, word: &str) -> Result<String> {
    let (pd, cq) = (device.pd()?, device.cq(4)?);
    let route = Connector::new(device).resolve(address).await?;
    let connection = route.prepare(pd.reliable(&cq))?.connect(b"").await?;
    let mut buffer = pd.buffer(1024)?;
    let len = word.len().min(buffer.len());
    buffer[..len].copy_from_slice(&word.as_bytes()[..len]);
    let buffer = connection.send(buffer.part(..len)).await?.into_buffer();
    let answer = connection.receive(buffer).await?;
    Ok(String::from_utf8_lossy(answer.data()).into_owned())
}
