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

use crate::capture::{CaptureHook, Owners};
use crate::cell::OutgoingRun;
use crate::net::connected_sender::ConnectedSender;
use crate::network::Outlet;

/// The length of an ICRC.
pub(crate) const ICRC: usize = 4;

/// Opcodes from here on are reserved for manufacturers; probes use them.
const FIRST_OF_MAKERS: u8 = 0xc0;

/// The destination of a packet, as far as its datagram states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) to: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    /// The priority of the service level at the port; `None`: Linux chooses.
    pub(crate) priority: Option<u8>,
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
    target: Option<Destination>,
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

    /// Adds the packets of `run`. `fill` writes the payload of the packet with an index. If it gets
    /// a [`Folding`], it may also fold the payload into the packet's ICRC; it returns whether it
    /// did. Packets that do not fit the batch follow in the next one, so the batch is sent first.
    ///
    /// Returns how many packets were added, and the error of `fill`, which ends the run. Batches
    /// that could not be sent are reported to `lost`.
    pub(crate) fn put_run<E>(
        &mut self,
        outlet: &dyn Outlet,
        (target, envelope): (&Destination, &Envelope),
        run: &OutgoingRun<'_>,
        lost: impl Fn(&io::Error),
        mut fill: impl FnMut(u32, &mut Sink<'_>, Option<&mut Folding>) -> Result<bool, E>,
    ) -> (u32, Result<(), E>) {
        let (len, pad) = (run.len as usize, (run.len.wrapping_neg() % 4) as usize);
        let mut template = [0; wire::MAX_LEN];
        let head = run.headers.emit(0, &mut template);
        wire::bth::set_pad(template.first_chunk_mut().expect("a BTH is first"), pad as u8);
        let size = head + len + pad + ICRC;
        let measured = self.measure(envelope, size - ICRC);
        let folds = head == BTH && pad == 0 && measured.is_foldable();
        let mut added = 0;
        while added < run.count {
            if !self.goes_with(target, size)
                && let Err(error) = self.flush(outlet)
            {
                lost(&error);
            }
            if self.capture_hook.is_on() {
                self.owners.add(self.count, run.src_qp);
            }
            for _ in 0..self.room(size).min(run.count - added) {
                let (psn, ack_req) = run.headers.number(added);
                let bth = template.first_chunk_mut().expect("a BTH is first");
                wire::bth::renumber(bth, psn, ack_req);
                if let Err(error) = self
                    .put(target, &measured, (&template[..head], size), folds, |to, folding| fill(added, to, folding))
                {
                    return (added, Err(error));
                }
                added += 1;
            }
        }
        (added, Ok(()))
    }

    /// Adds a packet of `size` bytes that fits the batch, with these headers.
    #[inline]
    fn put<E>(
        &mut self,
        target: &Destination,
        measured: &Measured,
        (head, size): (&[u8], usize),
        folds: bool,
        fill: impl FnOnce(&mut Sink<'_>, Option<&mut Folding>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let (at, id) = (self.len, self.next_id());
        let packet = &mut self.buffer[at..at + size];
        let (to, rest) = packet.split_at_mut(head.len());
        to.copy_from_slice(head);
        let pad = usize::from(wire::bth::View(head.first_chunk().expect("a BTH is first")).pad());
        let (payload, behind) = rest.split_at_mut(rest.len() - ICRC - pad);
        behind[..pad].fill(0);
        let mut folding = None;
        if let Some(folds) = self.folds.as_mut().filter(|_| folds) {
            let next = &mut folds.foldings[folds.count];
            measured.begin(next, id, head.first_chunk().expect("a BTH is first"));
            folding = Some(next);
        }
        let is_folded = fill(&mut Sink::from(payload), folding)?;
        match self.folds.as_mut().filter(|_| is_folded) {
            Some(folds) => {
                folds.places[folds.count] = at + size - ICRC;
                folds.count += 1;
                if folds.count == FOLDS {
                    self.seal();
                }
            }
            None => {
                self.seal();
                self.unsealed = Some(Unsealed { at, measured: *measured, id });
            }
        }
        self.count_in(target, size);
        Ok(())
    }

    /// Adds a packet that is complete except for its ICRC.
    pub(crate) fn put_bytes(
        &mut self,
        outlet: &dyn Outlet,
        (target, envelope): (&Destination, &Envelope),
        bytes: &[u8],
    ) -> io::Result<()> {
        let size = bytes.len() + ICRC;
        let sent = if self.goes_with(target, size) { Ok(()) } else { self.flush(outlet) };
        self.buffer[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.add(target, envelope, size);
        sent
    }

    /// How many packets of this size still fit, if one fits. A packet that is shorter than those
    /// before it must be the last one.
    fn room(&self, size: usize) -> u32 {
        let most = (SEGMENTS_MAX - self.count).min((BATCH_MAX - self.len) / size);
        if self.count > 0 && size < self.segment { 1 } else { most as u32 }
    }

    fn goes_with(&self, target: &Destination, size: usize) -> bool {
        self.count == 0
            || (!self.closed
                && size <= self.segment
                && self.count < SEGMENTS_MAX
                && self.len + size <= BATCH_MAX
                && self.target.as_ref() == Some(target))
    }

    /// Adds the `size` bytes after the last packet as a packet without its ICRC.
    fn add(&mut self, target: &Destination, envelope: &Envelope, size: usize) {
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
    fn count_in(&mut self, target: &Destination, size: usize) {
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
            service_level: target.sl,
            priority: target.priority,
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

    /// Copies the batch to the capture hook before it is sent.
    #[cold]
    fn show(&mut self, outlet: &dyn Outlet, target: &Destination) {
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
            self.capture_hook.wire_packet(about, packet);
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::access;
    use crate::cell::{Origin, RunHeaders};
    use shm::Source;
    use wire::{Headers, Opcode, Operation, Psn, Qpn, Transport};

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

    fn target(port: u16) -> Destination {
        Destination {
            to: SocketAddr::from(([10, 0, 0, 2], port)),
            traffic_class: 0,
            sl: 0,
            priority: None,
            hop_limit: 64,
            interface: 0,
        }
    }

    fn headers(psn: u32) -> Headers {
        let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle);
        Headers { opcode, dest_qp: Qpn::new(5), psn: Psn::new(psn), pkey: 0xffff, ..Headers::default() }
    }

    /// Puts a run of `count` packets with `len` bytes of payload each.
    #[track_caller]
    fn put(batch: &mut Batch, outlet: &Seen, port: u16, (psn, count, len): (u32, u32, u32), source: &[u8]) {
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        let headers = headers(psn);
        let run =
            OutgoingRun { src_qp: Qpn::new(7), headers: RunHeaders::Full(&headers), count, len, from: Origin::Nothing };
        let lost = |error: &io::Error| panic!("sent: {error}");
        let put = batch.put_run(outlet, (&target(port), &envelope), &run, lost, |_, to, folding| match folding {
            Some(folding) => access::folded(to, source, folding).map(|()| true),
            None => access::copy(to, Source::from(source)).map(|()| false),
        });
        assert!(put.1.is_ok() && put.0 == count);
    }

    /// Checks the datagrams that were sent: each packet's ICRC, number and payload, and the segment
    /// sizes and packet counts. `payload` is the payload of the packet with a number.
    #[track_caller]
    fn check(outlet: Seen, packets: usize, payload: impl Fn(u32) -> Vec<u8>, expected: &[(usize, usize)]) {
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        let (mut psn, mut shapes) = (0, Vec::new());
        for (segment, bytes) in outlet.0.into_inner().expect("no panic") {
            let step = if segment == 0 { bytes.len() } else { segment };
            for (index, packet) in bytes.chunks(step).enumerate() {
                let place = index as u16;
                assert_eq!(envelope.check(packet, place), Some(place), "the ICRC is of the place of packet {psn}");
                let parsed = Headers::parse(packet).expect("a packet");
                assert_eq!(parsed.psn, Psn::new(psn));
                let end = packet.len() - usize::from(parsed.pad) - ICRC;
                assert_eq!(packet[parsed.len()..end], payload(psn), "packet {psn}");
                psn += 1;
            }
            shapes.push((segment, bytes.len().div_ceil(step)));
        }
        assert_eq!((psn as usize, &shapes[..]), (packets, expected));
    }

    /// Sends payloads of these sizes; expects datagrams of these segment sizes and packet counts.
    #[track_caller]
    fn leaves(sizes: &[usize], expected: &[(usize, usize)]) {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        for (psn, &size) in (0..).zip(sizes) {
            put(&mut batch, &outlet, 4791, (psn, 1, size as u32), &vec![psn as u8; size]);
        }
        batch.flush(&outlet).expect("sent");
        batch.flush(&outlet).expect("nothing more");
        check(outlet, sizes.len(), |psn| vec![psn as u8; sizes[psn as usize]], expected);
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
        for (psn, port) in (0..).zip([4791, 4792, 4792]) {
            put(&mut batch, &outlet, port, (psn, 1, 8), &[0; 8]);
        }
        batch.flush(&outlet).expect("sent");
        check(outlet, 3, |_| vec![0; 8], &[(0, 1), (24, 2)]);
    }

    /// Sends a run of `count` packets of `len` bytes after a packet of `first`; `expected` as in
    /// [`leaves`].
    #[track_caller]
    fn run_leaves(first: usize, len: usize, count: usize, expected: &[(usize, usize)]) {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let source: Vec<u8> = (0..len.max(first)).map(|at| at as u8).collect();
        put(&mut batch, &outlet, 4791, (0, 1, first as u32), &source[..first]);
        put(&mut batch, &outlet, 4791, (1, count as u32, len as u32), &source[..len]);
        batch.flush(&outlet).expect("sent");
        check(outlet, count + 1, |psn| source[..if psn == 0 { first } else { len }].to_vec(), expected);
    }

    #[test]
    fn a_run_leaves_as_single_packets_do() {
        run_leaves(1024, 1024, 3, &[(1040, 4)]);
        run_leaves(1028, 1024, 70, &[(1044, 2), (1040, 62), (1040, 7)]);
        run_leaves(512, 1024, 62, &[(0, 1), (1040, 62)]);
        run_leaves(4096, 4096, 16, &[(4112, 15), (4112, 2)]);
        run_leaves(8, 8, 130, &[(24, 64), (24, 64), (24, 3)]);
        run_leaves(0, 252, 3, &[(0, 1), (268, 3)]);
        run_leaves(9, 5, 3, &[(28, 2), (24, 2)]);
    }

    #[test]
    fn a_packet_without_payload_is_not_added() {
        let (outlet, mut batch) = (Seen::default(), Batch::with_capture_hook(CaptureHook::new(), gid(1)));
        let envelope = Envelope::new(&gid(1), &gid(2), 0xc123);
        let headers = headers(1);
        let run = OutgoingRun {
            src_qp: Qpn::new(7),
            headers: RunHeaders::Full(&headers),
            count: 3,
            len: 8,
            from: Origin::Nothing,
        };
        let put = batch.put_run(
            &outlet,
            (&target(1), &envelope),
            &run,
            |_| {},
            |index, _, _| {
                if index == 2 { Err(7) } else { Ok(false) }
            },
        );
        assert_eq!(put, (2, Err(7)));
        batch.flush(&outlet).expect("sent");
        assert_eq!(outlet.0.into_inner().expect("no panic")[0].1.len(), 48);
    }
}
