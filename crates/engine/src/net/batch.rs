//! Outgoing packets. The engine collects them in one buffer and sends them with one system call, as
//! the segments of one datagram.
//!
//! The kernel (or the adapter) splits the datagram into segments. It numbers the segments' IPv4
//! headers 0, 1, 2 …, and the ICRC covers that number. So a packet's ICRC depends on its place in
//! the batch. (A port that is connected to a host counts from another number than 0: see
//! [`crate::net::connected_sender`].) All segments have one size; only the last may be shorter.
//! Principal type: [`Batch`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use abi::capture::{CaptureRecord, path};
use shm::Sink;
use udp::{BATCH_MAX, Outgoing, SEGMENTS_MAX};
use wire::bth::LEN as BTH;
use wire::icrc::{Envelope, Folding, Measured};
use wire::{Headers, Qpn};

use crate::capture::{CaptureHook, Owners};
use crate::net::connected_sender::ConnectedSender;
use crate::network::Outlet;

/// The length of an ICRC.
pub(crate) const ICRC: usize = 4;

/// Opcodes from here on are reserved for manufacturers; probes use them.
const FIRST_OF_MAKERS: u8 = 0xc0;

/// The destination of a packet, as far as its datagram states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) to: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// For multicast groups: the interface.
    pub(crate) interface: u32,
}

/// Packets that one call sends.
pub(crate) struct Batch {
    buffer: Box<[u8]>,
    len: usize,
    /// The length of each packet but the last.
    segment: usize,
    count: usize,
    /// The last packet is shorter than the others, so no packet may follow.
    closed: bool,
    target: Option<Target>,
    /// The start of the last packet's ICRC calculation. The next packet probably has the same
    /// length.
    measured: Option<(Envelope, Measured)>,
    unsealed: Option<Unsealed>,
    folds: Option<Box<Folds>>,
    connected_sender: ConnectedSender,
    /// Gets copies of sent packets while a capture runs.
    capture_hook: Arc<CaptureHook>,
    source: [u8; 16],
    owners: Owners,
}

/// A packet without its ICRC.
struct Unsealed {
    at: usize,
    measured: Measured,
    id: u16,
}

/// This many ICRCs are finished together. The steps of one ICRC depend on each other; the steps of
/// several ICRCs run in parallel.
const FOLDS: usize = 4;

/// ICRCs that were folded while the payload was copied, and that lack only the last step.
struct Folds {
    foldings: [Folding; FOLDS],
    /// Where each ICRC goes.
    places: [usize; FOLDS],
    count: usize,
}

impl Folds {
    fn new(first: Folding) -> Self {
        let width = first.width();
        let foldings = std::array::from_fn(|_| Folding::of_width(width));
        Self { foldings, places: [0; FOLDS], count: 0 }
    }

    /// Finishes all ICRCs.
    #[inline]
    fn seal(&mut self, buffer: &mut [u8]) {
        let count = std::mem::take(&mut self.count);
        let mut icrcs = [[0; ICRC]; FOLDS];
        for (icrc, folding) in icrcs.iter_mut().zip(&self.foldings[..count]) {
            *icrc = folding.icrc();
        }
        for (icrc, at) in icrcs.iter().zip(&self.places[..count]) {
            buffer[*at..*at + ICRC].copy_from_slice(icrc);
        }
    }
}

impl Batch {
    /// An empty batch for packets from `source`; `capture_hook` gets copies of them.
    pub(crate) fn with_capture_hook(capture_hook: Arc<CaptureHook>, source: [u8; 16]) -> Self {
        Self {
            buffer: vec![0; BATCH_MAX].into_boxed_slice(),
            len: 0,
            segment: 0,
            count: 0,
            closed: false,
            target: None,
            measured: None,
            unsealed: None,
            folds: Folding::new().map(|first| Box::new(Folds::new(first))),
            connected_sender: ConnectedSender::default(),
            capture_hook,
            source,
            owners: Owners::default(),
        }
    }

    /// Adds a packet; `fill` writes its `len` bytes of payload. If the packet does not fit the
    /// batch, the batch is sent first.
    ///
    /// # Errors
    /// The error of `fill`; the packet is not added.
    pub(crate) fn put<E>(
        &mut self,
        outlet: &dyn Outlet,
        (target, envelope): (&Target, &Envelope),
        headers: &Headers,
        len: usize,
        fill: impl FnOnce(&mut Sink<'_>) -> Result<(), E>,
    ) -> Result<io::Result<()>, E> {
        let (head, pad) = (headers.len(), len.wrapping_neg() % 4);
        let size = head + len + pad + ICRC;
        let sent = if self.goes_with(target, size) { Ok(()) } else { self.flush(outlet) };
        let at = self.len;
        let packet = &mut self.buffer[at..at + size];
        let emitted = if pad == 0 && headers.pad == 0 {
            headers.emit(packet)
        } else {
            packet[head + len..size - ICRC].fill(0);
            Headers { pad: pad as u8, ..*headers }.emit(packet)
        };
        emitted.expect("a packet has room for its headers");
        fill(&mut Sink::from(&mut packet[head..head + len]))?;
        self.add(target, envelope, size);
        Ok(sent)
    }

    /// Begins a segment run of packets with `len` bytes of payload each, a multiple of four. If
    /// they do not fit the batch, the batch is sent first. The run is at most as long as one call
    /// can send; the caller may put fewer packets.
    pub(crate) fn segment_run(
        &mut self,
        outlet: &dyn Outlet,
        (target, envelope): (&Target, &Envelope),
        len: usize,
    ) -> (RunWriter<'_>, io::Result<()>) {
        let size = BTH + len + ICRC;
        let sent = if self.goes_with(target, size) { Ok(()) } else { self.flush(outlet) };
        let most = (SEGMENTS_MAX - self.count).min((BATCH_MAX - self.len) / size);
        // A packet that is shorter than those before it must be the last one.
        let left = if self.count > 0 && size < self.segment { most.min(1) } else { most };
        let (measured, target) = (self.measure(envelope, BTH + len), *target);
        (RunWriter { batch: self, measured, target, left }, sent)
    }

    /// Adds a packet that is complete except for its ICRC.
    pub(crate) fn put_bytes(
        &mut self,
        outlet: &dyn Outlet,
        (target, envelope): (&Target, &Envelope),
        bytes: &[u8],
    ) -> io::Result<()> {
        let size = bytes.len() + ICRC;
        let sent = if self.goes_with(target, size) { Ok(()) } else { self.flush(outlet) };
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.add(target, envelope, size);
        sent
    }

    fn goes_with(&self, target: &Target, size: usize) -> bool {
        self.count == 0
            || (!self.closed
                && size <= self.segment
                && self.count < SEGMENTS_MAX
                && self.len + size <= BATCH_MAX
                && self.target.as_ref() == Some(target))
    }

    /// Adds the `size` bytes after the last packet as a packet without its ICRC.
    fn add(&mut self, target: &Target, envelope: &Envelope, size: usize) {
        self.seal();
        let measured = self.measure(envelope, size - ICRC);
        self.unsealed = Some(Unsealed { at: self.len, measured, id: self.next_id() });
        self.count_in(target, size);
    }

    /// The start of the ICRC calculation for a packet of `len` bytes. Usually the last packet's
    /// start fits.
    fn measure(&mut self, envelope: &Envelope, len: usize) -> Measured {
        match &self.measured {
            Some((of, measured)) if of == envelope && measured.length() == len => *measured,
            _ => self.measured.insert((*envelope, envelope.of_length(len))).1,
        }
    }

    /// The identification of the next packet.
    fn next_id(&self) -> u16 {
        self.connected_sender.next().wrapping_add(self.count as u16)
    }

    /// Counts the `size` bytes after the last packet as the new last packet.
    fn count_in(&mut self, target: &Target, size: usize) {
        if self.count == 0 {
            self.segment = size;
            self.target = Some(*target);
        }
        self.closed = size < self.segment;
        self.count += 1;
        self.len += size;
    }

    /// Writes the ICRCs that are missing. The engine builds the next packet before this call,
    /// because a read just after the write of these bytes is slow.
    fn seal(&mut self) {
        if let Some(folds) = self.folds.as_mut().filter(|folds| folds.count > 0) {
            folds.seal(&mut self.buffer);
        }
        if let Some(Unsealed { at, measured, id }) = self.unsealed.take() {
            let (packet, icrc) = self.buffer[at..at + measured.length() + ICRC].split_at_mut(measured.length());
            icrc.copy_from_slice(&measured.icrc(id, packet));
        }
    }

    /// Flips one bit of the last packet, so that its ICRC does not fit.
    #[cold]
    pub(crate) fn damage_last(&mut self, bit: u64) {
        self.seal();
        let start = self.segment * self.count.saturating_sub(1);
        if let Some(packet) = self.buffer.get_mut(start..self.len).filter(|packet| !packet.is_empty()) {
            let bit = (bit % (packet.len() as u64 * 8)) as usize;
            packet[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Sends the batch.
    ///
    /// # Errors
    /// The batch could not be sent and is lost.
    pub(crate) fn flush(&mut self, outlet: &dyn Outlet) -> io::Result<()> {
        let Some(target) = self.target.take() else { return Ok(()) };
        self.seal();
        if self.capture_hook.is_on() {
            self.show(outlet, &target);
        }
        let sent = outlet.send(&Outgoing {
            to: target.to,
            traffic_class: target.traffic_class,
            hop_limit: target.hop_limit,
            segment: if self.count > 1 { self.segment } else { 0 },
            interface: target.interface,
            connected: self.connected_sender.is_on(&target.to),
            bytes: &self.buffer[..self.len],
        });
        (self.len, self.count, self.closed) = (0, 0, false);
        self.connected_sender.sent(outlet, &target.to, sent.is_ok());
        sent
    }

    /// The last packet and the packets after it belong to this QP. Called only while a capture
    /// runs.
    #[cold]
    pub(crate) fn is_of(&mut self, qpn: Qpn) {
        self.owners.add(self.count.saturating_sub(1), qpn);
    }

    /// Copies the batch to the capture hook before it is sent.
    #[cold]
    fn show(&mut self, outlet: &dyn Outlet, target: &Target) {
        let first = self.connected_sender.next();
        for (index, packet) in self.buffer[..self.len].chunks(self.segment).enumerate() {
            let about = CaptureRecord {
                path: path::WIRE_OUT,
                src_qp: if packet[0] < FIRST_OF_MAKERS { self.owners.of(index) } else { 0 },
                from: self.source,
                to: match target.to.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                },
                from_port: outlet.port(),
                id: first.wrapping_add(index as u16),
                traffic_class: target.traffic_class,
                hop_limit: target.hop_limit,
                ..CaptureRecord::default()
            };
            self.capture_hook.packet(&about, packet, "");
        }
        self.owners.renew();
    }

    /// A sent packet may not have arrived: sends the batch and disconnects the port.
    pub(crate) fn disconnect(&mut self, outlet: &dyn Outlet) -> io::Result<()> {
        let sent = self.flush(outlet);
        self.connected_sender.leave(outlet);
        sent
    }
}

/// Writes the packets of one segment run one after the other. The parts that all packets share were
/// determined when the run began.
pub(crate) struct RunWriter<'a> {
    batch: &'a mut Batch,
    measured: Measured,
    target: Target,
    left: usize,
}

impl RunWriter<'_> {
    /// How many packets may still be put.
    pub(crate) fn room(&self) -> u32 {
        self.left as u32
    }

    /// Adds a packet; `fill` writes its payload, and folds it into the packet's ICRC if it gets a
    /// [`Folding`].
    ///
    /// # Errors
    /// The error of `fill`; the packet is not added.
    #[inline]
    pub(crate) fn put<E>(
        &mut self,
        emit: impl FnOnce(&mut [u8; BTH]),
        fill: impl FnOnce(&Sink<'_>, Option<&mut Folding>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { batch, measured, target, left } = self;
        let (at, len, id) = (batch.len, measured.length(), batch.next_id());
        let size = len + ICRC;
        let packet = &mut batch.buffer[at..at + size];
        let (head, rest) = packet.split_first_chunk_mut().expect("a packet has room for its headers");
        emit(head);
        let payload = Sink::from(&mut rest[..len - BTH]);
        if let Some(folds) = batch.folds.as_mut().filter(|_| measured.is_foldable()) {
            let folding = &mut folds.foldings[folds.count];
            measured.begin(folding, id, head);
            fill(&payload, Some(folding))?;
            folds.places[folds.count] = at + len;
            folds.count += 1;
            if folds.count == FOLDS {
                batch.seal();
            }
        } else {
            fill(&payload, None)?;
            batch.seal();
            batch.unsealed = Some(Unsealed { at, measured: *measured, id });
        }
        batch.count_in(target, size);
        *left -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::access;
    use shm::Source;
    use wire::{Opcode, Operation, Psn, Qpn, Transport};

    #[derive(Default)]
    struct Seen(Mutex<Vec<(usize, Vec<u8>)>>);

    impl Outlet for Seen {
        fn port(&self) -> u16 {
            0xc123
        }

        fn send(&self, out: &Outgoing<'_>) -> io::Result<()> {
            self.0.lock().expect("no panic").push((out.segment, out.bytes.to_vec()));
            Ok(())
        }
    }

    fn gid(last: u8) -> [u8; 16] {
        std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets()
    }

    fn target(port: u16) -> Target {
        Target { to: SocketAddr::from(([10, 0, 0, 2], port)), traffic_class: 0, hop_limit: 64, interface: 0 }
    }

    fn headers(psn: u32) -> Headers {
        let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle);
        Headers { opcode, dest_qp: Qpn::new(5), psn: Psn::new(psn), pkey: 0xffff, ..Headers::default() }
    }

    /// Sends payloads of these sizes; expects datagrams of these segment sizes and packet counts.
    #[track_caller]
    fn leaves(sizes: &[usize], expected: &[(usize, usize)]) {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        for (psn, &size) in (0..).zip(sizes) {
            let put = batch.put::<()>(&outlet, (&target(4791), &envelope), &headers(psn), size, |_| Ok(()));
            put.expect("filled").expect("sent");
        }
        batch.flush(&outlet).expect("sent");
        batch.flush(&outlet).expect("nothing more");
        let seen = outlet.0.into_inner().expect("no panic");
        let mut psn = 0;
        let mut shapes = Vec::new();
        for (segment, bytes) in seen {
            let step = if segment == 0 { bytes.len() } else { segment };
            for (index, packet) in bytes.chunks(step).enumerate() {
                assert_eq!(
                    envelope.check(packet, index as u16),
                    Some(index as u16),
                    "the ICRC is of the packet's place"
                );
                let parsed = Headers::parse(packet).expect("a packet");
                assert_eq!(parsed.psn, Psn::new(psn));
                let payload = packet.len() - parsed.len() - usize::from(parsed.pad) - ICRC;
                assert_eq!(payload, sizes[psn as usize]);
                psn += 1;
            }
            shapes.push((segment, bytes.len().div_ceil(step)));
        }
        assert_eq!(psn as usize, sizes.len());
        assert_eq!(shapes, expected);
    }

    #[test]
    fn packets_of_one_size_leave_together() {
        leaves(&[], &[]);
        leaves(&[0], &[(0, 1)]);
        leaves(&[1024; 5], &[(1040, 5)]);
        leaves(&[1024, 1024, 3], &[(1040, 3)]);
        leaves(&[1024, 3, 1024], &[(1040, 2), (0, 1)]);
        leaves(&[3, 1024], &[(0, 1), (0, 1)]);
        leaves(&[1, 2, 3, 4, 5], &[(20, 4), (0, 1)]);
        leaves(&[1024, 1, 1023, 1024, 8], &[(1040, 2), (1040, 3)]);
    }

    #[test]
    fn a_datagram_has_an_end() {
        leaves(&[8; 130], &[(24, 64), (24, 64), (24, 2)]);
        leaves(&[4096; 33], &[(4112, 15), (4112, 15), (4112, 3)]);
    }

    #[test]
    fn a_packet_for_another_port_flushes_the_batch() {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        for port in [4791, 4792, 4792] {
            let put = batch.put::<()>(&outlet, (&target(port), &envelope), &headers(1), 8, |_| Ok(()));
            put.expect("filled").expect("sent");
        }
        batch.flush(&outlet).expect("sent");
        let shapes: Vec<_> = outlet.0.into_inner().expect("no panic").iter().map(|(s, b)| (*s, b.len())).collect();
        assert_eq!(shapes, [(0, 24), (24, 48)]);
    }

    /// Sends segment runs of `len` bytes after a packet of `first`; `expected` as in [`leaves`].
    #[track_caller]
    fn rows_leave(first: usize, len: usize, count: usize, expected: &[(usize, usize)]) {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        let way = (&target(4791), &envelope);
        batch.put::<()>(&outlet, way, &headers(0), first, |_| Ok(())).expect("filled").expect("sent");
        let source: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let mut psn = 1;
        while psn <= count as u32 {
            let (mut writer, sent) = batch.segment_run(&outlet, way, len);
            sent.expect("sent");
            assert!(writer.room() > 0);
            while writer.room() > 0 && psn <= count as u32 {
                let emit = |head: &mut [u8; BTH]| {
                    headers(psn).emit(head).expect("room");
                };
                let put = writer.put(emit, |to, folding| match folding {
                    Some(folding) => access::folded(to, &source, folding),
                    None => access::copy(to, Source::from(&source[..])),
                });
                put.expect("filled");
                psn += 1;
            }
        }
        batch.flush(&outlet).expect("sent");
        let (mut shapes, mut psn) = (Vec::new(), 0);
        for (segment, bytes) in outlet.0.into_inner().expect("no panic") {
            let step = if segment == 0 { bytes.len() } else { segment };
            for (index, packet) in bytes.chunks(step).enumerate() {
                assert_eq!(envelope.check(packet, index as u16), Some(index as u16), "packet {psn}");
                assert_eq!(Headers::parse(packet).expect("a packet").psn, Psn::new(psn));
                assert!(psn == 0 || packet[BTH..packet.len() - ICRC] == source);
                psn += 1;
            }
            shapes.push((segment, bytes.len().div_ceil(step)));
        }
        assert_eq!((psn, &shapes[..]), (count as u32 + 1, expected));
    }

    #[test]
    fn rows_leave_as_single_packets_do() {
        rows_leave(1024, 1024, 3, &[(1040, 4)]);
        rows_leave(1028, 1024, 70, &[(1044, 2), (1040, 62), (1040, 7)]);
        rows_leave(512, 1024, 62, &[(0, 1), (1040, 62)]);
        rows_leave(4096, 4096, 16, &[(4112, 15), (4112, 2)]);
        rows_leave(8, 8, 130, &[(24, 64), (24, 64), (24, 3)]);
        rows_leave(0, 252, 3, &[(0, 1), (268, 3)]);
    }

    #[test]
    fn a_packet_without_payload_is_not_added() {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        assert_eq!(batch.put(&outlet, (&target(1), &envelope), &headers(1), 8, |_| Err(7)).err(), Some(7));
        batch.flush(&outlet).expect("nothing to send");
        assert!(outlet.0.into_inner().expect("no panic").is_empty());
    }
}
