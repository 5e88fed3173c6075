//! Writes a pcapng file for Wireshark, tshark and tcpdump. The principal type is [`PcapNg`].
//!
//! The file has one section, one interface for each device, one packet block with a comment for
//! each packet, and statistics at the end. The crate `pcap-file` encodes the blocks. This module
//! decides their content.

use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::frame::frame;
use crate::packet::{Packet, Path};

/// The direction, in the flags of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Times are in 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;

/// The name of the interface for the agent's own packets, if there are several devices.
const AGENT: &str = "agent";

/// Writes a capture.
pub struct PcapNg<W: Write> {
    to: PcapNgWriter<W>,
    interfaces: Vec<String>,
}

impl<W: Write> PcapNg<W> {
    /// Begins a capture of these devices. `most` is the maximal length of a packet; 0 means no
    /// limit.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(to: W, devices: &[String], most: u32) -> io::Result<Self> {
        let mut interfaces = devices.to_vec();
        if devices.len() != 1 {
            interfaces.push(AGENT.to_owned());
        }
        let application = concat!("softhca capture ", env!("CARGO_PKG_VERSION"));
        let options = vec![SectionHeaderOption::UserApplication(application.into())];
        // The length of the section is not known yet. The default value says so.
        let section = SectionHeaderBlock { endianness: Endianness::Little, options, ..SectionHeaderBlock::default() };
        let mut to = PcapNgWriter::with_section_header(to, section).map_err(told)?;
        for name in &interfaces {
            let description = if name == AGENT { "the connection manager's datagrams" } else { "a device of softhca" };
            let options = vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfDescription(description.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: most, options };
            to.write_pcapng_block(interface).map_err(told)?;
        }
        Ok(Self { to, interfaces })
    }

    /// Writes a packet. Returns false for a packet that was dropped before it left, because there
    /// is nothing to write.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, packet: &Packet) -> io::Result<bool> {
        if packet.bytes.is_empty() {
            return Ok(false);
        }
        let (bytes, len) = frame(packet);
        let last = self.interfaces.len().saturating_sub(1);
        let named = packet.device.as_deref();
        let interface = self.interfaces.iter().position(|name| Some(name.as_str()) == named).unwrap_or(last);
        let mut options = vec![EnhancedPacketOption::Comment(packet.comment().into())];
        match packet.path {
            Path::Out(_) => options.push(EnhancedPacketOption::Flags(OUTBOUND)),
            Path::In(_) => options.push(EnhancedPacketOption::Flags(INBOUND)),
            _ => {}
        }
        let block = EnhancedPacketBlock {
            interface_id: interface as u32,
            timestamp: Duration::from_nanos(packet.time),
            original_len: len as u32,
            data: bytes.into(),
            options,
        };
        self.to.write_pcapng_block(block).map_err(told)?;
        Ok(true)
    }

    /// Makes everything written so far visible to readers of the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.get_mut().flush()
    }

    /// Ends the capture with the numbers of captured and lost packets, at a time in nanoseconds
    /// since 1970. Returns the file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn end(mut self, now: u64, seen: u64, lost: u64) -> io::Result<W> {
        let options =
            vec![InterfaceStatisticsOption::IsbIfRecv(seen + lost), InterfaceStatisticsOption::IsbIfDrop(lost)];
        // The crate writes this number unchanged, but the format wants its upper half first.
        let timestamp = now.rotate_left(32);
        let statistics = InterfaceStatisticsBlock { interface_id: 0, timestamp, options };
        self.to.write_pcapng_block(statistics).map_err(told)?;
        self.flush()?;
        Ok(self.to.into_inner())
    }
}

fn told(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::other(error),
    }
}
