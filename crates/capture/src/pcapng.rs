//! Writes a pcapng file for Wireshark, tshark and tcpdump. The principal type is [`PcapNg`].
//!
//! The file has one section, one interface for each port, one packet block with a comment for
//! each packet, and statistics at the end. What an InfiniBand port sends to other hosts is RoCEv2,
//! and has an interface of its own.
//!
//! Packets of InfiniBand ports are ERF records of type 21, as other tools write them (link type
//! 197). Wireshark reads these records, and not those of link type 247. The crate `pcap-file`
//! encodes the blocks. This module decides their content.

use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::frame::frame;
use crate::packet::{Packet, Path, Tcp};
use crate::segment::Segments;
use crate::session::Port;

/// The direction, in the flags of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// The link type of InfiniBand ports.
const INFINIBAND: DataLink = DataLink::ERF;
/// The type of their ERF records.
const ERF_INFINIBAND: u8 = 21;
/// Flags of an ERF record: its length is that of the packet.
const ERF_VARYING: u8 = 4;
/// Flags of an ERF record: the packet was cut off.
const ERF_TRUNCATED: u8 = 8;
/// Bytes of the header of an ERF record.
const ERF: usize = 16;
/// Times are in 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;

/// The name of the interface for the agent's own packets, if there are several devices.
const AGENT: &str = "agent";

/// Writes a capture.
pub struct PcapNg<W: Write> {
    to: PcapNgWriter<W>,
    interfaces: Vec<Interface>,
    /// The maximal length of a packet; 0 means no limit.
    most: u32,
    segments: Segments,
}

/// An interface of the file.
struct Interface {
    device: String,
    /// The port; 0 stands for all ports.
    port: u8,
    link: DataLink,
}

impl<W: Write> PcapNg<W> {
    /// Begins a capture of these ports. `most` is the maximal length of a packet; 0 means no
    /// limit.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(to: W, ports: &[Port], most: u32) -> io::Result<Self> {
        let application = concat!("softhca capture ", env!("CARGO_PKG_VERSION"));
        let options = vec![SectionHeaderOption::UserApplication(application.into())];
        // The length of the section is not known yet. The default value says so.
        let section = SectionHeaderBlock { endianness: Endianness::Little, options, ..SectionHeaderBlock::default() };
        let to = PcapNgWriter::with_section_header(to, section).map_err(told)?;
        let mut file = Self { to, interfaces: Vec::new(), most, segments: Segments::default() };
        for Port { device, number, infiniband } in ports {
            let several = ports.iter().filter(|other| other.device == *device).count() > 1;
            let name = if several { format!("{device}/{number}") } else { device.clone() };
            let link = if *infiniband { INFINIBAND } else { DataLink::ETHERNET };
            let interface = Interface { device: device.clone(), port: *number, link };
            file.add(interface, &name, "a port of softhca")?;
        }
        if ports.iter().any(|port| port.device != ports[0].device) || ports.is_empty() {
            let interface = Interface { device: AGENT.to_owned(), port: 0, link: DataLink::ETHERNET };
            file.add(interface, AGENT, "the connection manager's datagrams")?;
        }
        Ok(file)
    }

    fn add(&mut self, interface: Interface, name: &str, description: &str) -> io::Result<()> {
        let options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfDescription(description.into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let block = InterfaceDescriptionBlock { linktype: interface.link, snaplen: self.most, options };
        self.to.write_pcapng_block(block).map_err(told)?;
        self.interfaces.push(interface);
        Ok(())
    }

    /// The index of a packet's interface. Ports that were known at the start have theirs already;
    /// any other interface is added with its first packet.
    fn interface(&mut self, packet: &Packet) -> io::Result<usize> {
        let device = packet.device.as_deref().unwrap_or(AGENT);
        let (port, link) = match &packet.link {
            Some(_) => (packet.port, INFINIBAND),
            None => (0, DataLink::ETHERNET),
        };
        let is_it = |known: &Interface| {
            known.device == device && known.link == link && (known.port == port || known.port * port == 0)
        };
        if let Some(index) = self.interfaces.iter().position(is_it) {
            return Ok(index);
        }
        let interface = Interface { device: device.to_owned(), port, link };
        match link {
            DataLink::ETHERNET if device == AGENT => {
                self.add(interface, AGENT, "the connection manager's datagrams")?
            }
            DataLink::ETHERNET => {
                self.add(interface, &format!("{device} wire"), "packets to and from other hosts")?;
            }
            _ => self.add(interface, device, "a port of softhca")?,
        }
        Ok(self.interfaces.len() - 1)
    }

    /// Writes a packet. Returns false for a packet that was dropped before it left, because there
    /// is nothing to write.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, packet: &Packet) -> io::Result<bool> {
        if !packet.is_there() {
            return Ok(false);
        }
        let interface_id = self.interface(packet)? as u32;
        let frames = match (&packet.link, packet.tcp) {
            (_, Some(Tcp { to_port, end, .. })) => self.segments.frames(packet, to_port, end),
            (Some(link), None) => {
                link.frames(packet).into_iter().map(|(bytes, len)| recorded(packet.time, &bytes, len)).collect()
            }
            (None, None) => vec![frame(packet)],
        };
        for (bytes, len) in frames {
            let mut options = vec![EnhancedPacketOption::Comment(packet.comment().into())];
            match packet.path {
                Path::Out(_) | Path::LinkOut(_) => options.push(EnhancedPacketOption::Flags(OUTBOUND)),
                Path::In(_) | Path::LinkIn(_) => options.push(EnhancedPacketOption::Flags(INBOUND)),
                _ => {}
            }
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::from_nanos(packet.time),
                original_len: len as u32,
                data: bytes.into(),
                options,
            };
            self.to.write_pcapng_block(block).map_err(told)?;
        }
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

/// The ERF record of a packet with this whole length, and its length.
fn recorded(time: u64, bytes: &[u8], len: usize) -> (Vec<u8>, usize) {
    const SECOND: u64 = 1_000_000_000;
    // Seconds since 1970, in units of 2⁻³².
    let time = ((time / SECOND) << 32) + ((time % SECOND) << 32) / SECOND;
    let short = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let flags = ERF_VARYING | if bytes.len() < len { ERF_TRUNCATED } else { 0 };
    let mut record = time.to_le_bytes().to_vec();
    record.extend([ERF_INFINIBAND, flags]);
    record.extend(short(ERF + bytes.len()));
    // No packet is known to be lost before this one.
    record.extend([0; 2]);
    record.extend(short(len));
    record.extend_from_slice(bytes);
    (record, ERF + len)
}

fn told(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        error => io::Error::other(error),
    }
}
