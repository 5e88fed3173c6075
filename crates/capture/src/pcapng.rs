//! A file in the format pcapng, as Wireshark, tshark and tcpdump read it. Principal type: [`PcapNg`].
//!
//! It has one section, an interface for each device, an enhanced packet block for each packet with its comment, and at the end the
//! statistics (draft-ietf-opsawg-pcapng).

use std::io::{self, Write};

use crate::frame::frame;
use crate::packet::{Packet, Path};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

/// Options; the first is the same in all blocks.
const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_DROPPED: u16 = 5;
/// Bits of [`PACKET_FLAGS`].
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Times are in 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;

/// The name of the interface on which the agent's own packets are, where there are several devices.
const AGENT: &str = "agent";

/// Writes a capture.
#[derive(Debug)]
pub struct PcapNg<W> {
    to: W,
    interfaces: Vec<String>,
}

impl<W: Write> PcapNg<W> {
    /// Begins a capture of these devices. No packet is longer than `most` bytes, 0 for any.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(mut to: W, devices: &[String], most: u32) -> io::Result<Self> {
        let mut interfaces = devices.to_vec();
        if devices.len() != 1 {
            interfaces.push(AGENT.to_owned());
        }
        let mut section = BYTE_ORDER.to_le_bytes().to_vec();
        // Version 1.0, and nobody knows yet how long it will be.
        section.extend([1, 0, 0, 0]);
        section.extend([0xff; 8]);
        let application = concat!("softhca capture ", env!("CARGO_PKG_VERSION"));
        option(&mut section, SECTION_APPLICATION, application.as_bytes());
        block(&mut to, SECTION, section)?;
        for name in &interfaces {
            let mut interface = ETHERNET.to_le_bytes().to_vec();
            interface.extend([0; 2]);
            interface.extend(most.to_le_bytes());
            option(&mut interface, INTERFACE_NAME, name.as_bytes());
            let description = if name == AGENT { "the connection manager's datagrams" } else { "a device of softhca" };
            option(&mut interface, INTERFACE_DESCRIPTION, description.as_bytes());
            option(&mut interface, INTERFACE_RESOLUTION, &[NANOSECONDS]);
            block(&mut to, INTERFACE, interface)?;
        }
        Ok(Self { to, interfaces })
    }

    /// Writes a packet. Of one that was dropped before it left there is nothing to write: false.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, packet: &Packet) -> io::Result<bool> {
        if packet.bytes.is_empty() {
            return Ok(false);
        }
        let (bytes, len) = frame(packet);
        let last = self.interfaces.len().saturating_sub(1);
        let named = packet.device.as_deref();
        let interface = self.interfaces.iter().position(|name| Some(name.as_str()) == named).unwrap_or(last);
        let mut body = (interface as u32).to_le_bytes().to_vec();
        body.extend(time(packet.time));
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend((len as u32).to_le_bytes());
        body.extend_from_slice(&bytes);
        pad(&mut body);
        option(&mut body, COMMENT, packet.comment().as_bytes());
        match packet.path {
            Path::Out(_) => option(&mut body, PACKET_FLAGS, &OUTBOUND.to_le_bytes()),
            Path::In(_) => option(&mut body, PACKET_FLAGS, &INBOUND.to_le_bytes()),
            _ => {}
        }
        block(&mut self.to, PACKET, body)?;
        Ok(true)
    }

    /// Has whoever reads see what was written so far.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Ends the capture, with how many packets were seen and lost, at a time in nanoseconds since 1970. Gives the file back.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(mut self, now: u64, seen: u64, lost: u64) -> io::Result<W> {
        let mut body = 0u32.to_le_bytes().to_vec();
        body.extend(time(now));
        option(&mut body, STATISTICS_RECEIVED, &(seen + lost).to_le_bytes());
        option(&mut body, STATISTICS_DROPPED, &lost.to_le_bytes());
        block(&mut self.to, STATISTICS, body)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// A time as two words, the upper one first.
fn time(nanoseconds: u64) -> [u8; 8] {
    let [upper, lower] = [(nanoseconds >> 32) as u32, nanoseconds as u32].map(u32::to_le_bytes);
    std::array::from_fn(|at| if at < 4 { upper[at] } else { lower[at - 4] })
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    pad(body);
}

/// Writes a block, whose body ends with options.
fn block(to: &mut impl Write, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
    // The end of the options.
    body.extend([0; 4]);
    let len = (body.len() as u32 + 12).to_le_bytes();
    let whole = [&kind.to_le_bytes()[..], &len, &body, &len].concat();
    to.write_all(&whole)
}
