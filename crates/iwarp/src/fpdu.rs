//! FPDUs: how segments are framed in the byte stream of TCP. RFC 5044, section 4. Not the start-up
//! frames before them ([`crate::startup`]). Principal types: [`Receiver`], [`Sender`].
//!
//! ```text
//!      0 | length of the segment |
//!      2 | segment
//!        | 0 to 3 bytes of padding, so that the FPDU is a multiple of 4
//!        | CRC32C of all that is before it, least significant byte first; 0 if not agreed
//! ```
//! A direction may have *markers* if the receiver asks for them: 4 bytes at every 512th byte of the
//! stream, from its first byte on. A marker holds the distance back to the start of its FPDU. One
//! directly before an FPDU belongs to that FPDU. Markers count for the CRC and not for the length.
//!
//! A receiver copies only FPDUs that are cut by the end of the input; all others are views of the
//! input. A sender writes into its owner's buffer.

use crate::bytes::be16;
use crate::terminate::Reason;
use wire::crc32c;
use wire::icrc::{Folding, Width};

/// Bytes of the length field.
const LENGTH_LEN: usize = 2;
/// Bytes of the CRC.
const CRC_LEN: usize = 4;
/// Bytes of a marker.
const MARKER_LEN: usize = 4;
/// The distance between the beginnings of two markers.
const MARKER_SPACE: usize = 512;
/// The smallest and the largest MULPDU. RFC 5044, section 4.5.
const MULPDU: [usize; 2] = [128, 64768];
/// The shortest payload whose CRC is computed while it is copied.
const FOLDED: usize = 1024;

/// Bytes of padding behind a segment.
const fn padding(segment: usize) -> usize {
    (LENGTH_LEN + segment).wrapping_neg() & 3
}

/// Bytes of an FPDU without markers.
#[must_use]
pub const fn size(segment: usize) -> usize {
    LENGTH_LEN + segment + padding(segment) + CRC_LEN
}

/// The longest segment whose FPDU fits into one TCP segment with this many bytes (the EMSS).
/// RFC 5044, section 4.5.
#[must_use]
pub fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { MARKER_LEN * emss.div_ceil(MARKER_SPACE) } else { 0 };
    emss.saturating_sub(LENGTH_LEN + CRC_LEN + markers + emss % 4).clamp(MULPDU[0], MULPDU[1])
}

/// Takes a byte stream apart into segments.
#[derive(Debug)]
pub struct Receiver {
    crc: bool,
    /// The position in the stream, if it has markers.
    markers: Option<Position>,
    /// The beginning of an FPDU of which not all bytes have arrived, without markers.
    kept: Vec<u8>,
    /// The FPDU in `kept` was returned.
    returned: bool,
}

/// Where a stream with markers stands.
#[derive(Debug, Default)]
struct Position {
    /// Bytes since the first one, modulo 2^32.
    at: u32,
    /// Where the FPDU starts.
    start: u32,
    /// The marker that is arriving.
    marker: [u8; MARKER_LEN],
    /// The CRC of the FPDU so far.
    crc: u32,
}

impl Receiver {
    /// The receiver of a new stream, with what start-up agreed on.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Receiver {
        Receiver { crc, markers: markers.then(Position::default), kept: Vec::new(), returned: false }
    }

    /// Whether the stream stands between two FPDUs. If it ends elsewhere, an FPDU was cut.
    #[must_use]
    pub fn is_between(&self) -> bool {
        self.returned || self.kept.is_empty()
    }

    /// The bytes that complete the FPDU of which some have arrived, as far as its length is known; 0
    /// between two FPDUs. `None` for a stream with markers, where FPDUs are not cut by their length.
    #[must_use]
    pub fn missing(&self) -> Option<usize> {
        let whole = if self.is_between() { 0 } else { length(&self.kept).map_or(LENGTH_LEN, size) - self.kept.len() };
        self.markers.is_none().then_some(whole)
    }

    /// The next segment. `bytes` shrinks to the input that is left. `None` if more input is needed;
    /// then `bytes` is empty.
    ///
    /// # Errors
    /// The CRC is wrong, or a marker disagrees with the length. Nothing can be received after that.
    pub fn next<'a, 'b: 'a>(&'a mut self, bytes: &mut &'b [u8]) -> Result<Option<&'a [u8]>, Reason> {
        if self.returned {
            self.kept.clear();
            self.returned = false;
        }
        if self.markers.is_some() {
            return self.next_with_markers(bytes);
        }
        if self.kept.is_empty()
            && let Some(len) = length(bytes)
            && let Some((fpdu, rest)) = bytes.split_at_checked(size(len))
        {
            *bytes = rest;
            return self.check(fpdu).map(Some);
        }
        self.keep(LENGTH_LEN, bytes);
        let Some(len) = length(&self.kept) else { return Ok(None) };
        if !self.keep(size(len), bytes) {
            return Ok(None);
        }
        self.returned = true;
        self.check(&self.kept).map(Some)
    }

    /// Moves input to `kept` until that has `len` bytes, and returns whether it has.
    fn keep(&mut self, len: usize, bytes: &mut &[u8]) -> bool {
        let (taken, rest) = bytes.split_at(len.saturating_sub(self.kept.len()).min(bytes.len()));
        self.kept.extend_from_slice(taken);
        *bytes = rest;
        self.kept.len() >= len
    }

    /// The segment of a whole FPDU without markers.
    fn check<'b>(&self, fpdu: &'b [u8]) -> Result<&'b [u8], Reason> {
        let (body, crc) = fpdu.split_at(fpdu.len() - CRC_LEN);
        if self.crc && crc32c::of(body).to_le_bytes() != *crc {
            return Err(Reason::MpaCrc);
        }
        Ok(&body[LENGTH_LEN..LENGTH_LEN + usize::from(be16(body, 0))])
    }

    fn next_with_markers(&mut self, bytes: &mut &[u8]) -> Result<Option<&[u8]>, Reason> {
        let Some(position) = &mut self.markers else { return Ok(None) };
        while !bytes.is_empty() {
            let in_space = position.at as usize % MARKER_SPACE;
            if in_space < MARKER_LEN {
                position.marker[in_space] = bytes[0];
                *bytes = &bytes[1..];
                position.at = position.at.wrapping_add(1);
                if in_space == MARKER_LEN - 1 {
                    position.take_marker(self.kept.is_empty())?;
                }
                continue;
            }
            if self.kept.is_empty() {
                position.start = position.at;
            }
            // Up to the next end: of the length, of what the CRC covers, of the CRC, or of the
            // space between two markers.
            let (have, whole) = (self.kept.len(), length(&self.kept).map(size));
            let covered = whole.map_or(LENGTH_LEN, |whole| whole - CRC_LEN);
            let end = if have < covered { covered } else { whole.unwrap_or(covered) };
            let (taken, rest) = bytes.split_at((end - have).min(MARKER_SPACE - in_space).min(bytes.len()));
            *bytes = rest;
            if have < covered {
                position.crc = crc32c::append(position.crc, taken);
            }
            position.at = position.at.wrapping_add(taken.len() as u32);
            self.kept.extend_from_slice(taken);
            if let Some(len) = length(&self.kept)
                && self.kept.len() == size(len)
            {
                self.returned = true;
                let crc = std::mem::take(&mut position.crc);
                let body = self.kept.len() - CRC_LEN;
                if self.crc && crc.to_le_bytes() != self.kept[body..] {
                    return Err(Reason::MpaCrc);
                }
                return Ok(Some(&self.kept[LENGTH_LEN..LENGTH_LEN + len]));
            }
        }
        Ok(None)
    }
}

impl Position {
    /// Checks the marker that ends here.
    fn take_marker(&mut self, between: bool) -> Result<(), Reason> {
        let begin = self.at.wrapping_sub(MARKER_LEN as u32);
        let distance = if between { 0 } else { begin.wrapping_sub(self.start) };
        if u32::from(be16(&self.marker, 2)) != distance {
            return Err(Reason::MpaMarker);
        }
        self.crc = crc32c::append(self.crc, &self.marker);
        Ok(())
    }
}

/// The length of the segment, if the length field is there.
fn length(fpdu: &[u8]) -> Option<usize> {
    (fpdu.len() >= LENGTH_LEN).then(|| usize::from(be16(fpdu, 0)))
}

/// Frames segments.
#[derive(Debug)]
pub struct Sender {
    crc: bool,
    /// Bytes since the first one, modulo 512, if the peer asked for markers.
    markers: Option<usize>,
    /// Computes the CRC while the payload is copied, if the processor can and there are no markers.
    folding: Option<Box<Folding>>,
}

impl Sender {
    /// The sender of a new stream, with what start-up agreed on.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Sender {
        let width = Width::all().next().filter(|_| crc && !markers);
        let folding = width.map(|width| Box::new(Folding::of_crc32c(width)));
        Sender { crc, markers: markers.then_some(0), folding }
    }

    /// An upper limit of the bytes that a segment of this length takes in the stream.
    #[must_use]
    pub fn room(&self, segment: usize) -> usize {
        let fpdu = size(segment);
        fpdu + if self.markers.is_some() { MARKER_LEN * (fpdu / (MARKER_SPACE - MARKER_LEN) + 2) } else { 0 }
    }

    /// Writes an FPDU to the beginning of `out` and returns its length. The segment is `header` and
    /// `len` bytes of payload; `fetch` writes a piece of them that begins at an offset. If it gets
    /// a [`Folding`], then the piece is whole strides, and `fetch` may also fold them. It returns
    /// whether it did. `out` has at least [`Sender::room`].
    ///
    /// # Errors
    /// Those of `fetch`. Then nothing has been sent, and the next FPDU takes the same place.
    pub fn frame<E>(
        &mut self,
        out: &mut [u8],
        header: &[u8],
        len: usize,
        mut fetch: impl FnMut(usize, &mut [u8], Option<&mut Folding>) -> Result<bool, E>,
    ) -> Result<usize, E> {
        let segment = header.len() + len;
        let mut writer = Writer { out, written: 0, markers: self.markers, start: None };
        writer.put(&(segment as u16).to_be_bytes());
        writer.put(header);
        let mut offset = 0;
        // Where the bytes behind the folded ones begin.
        let mut folded = None;
        if let Some(folding) = self.folding.as_deref_mut().filter(|_| len >= FOLDED) {
            folding.begin_crc32c(&writer.out[..writer.written]);
            offset = len - len % Folding::STRIDE;
            let done = fetch(0, writer.piece(offset), Some(&mut *folding))?;
            writer.advance(offset);
            folded = done.then_some((&*folding, writer.written));
        }
        while offset < len {
            let piece = writer.piece(len - offset);
            let size = piece.len();
            fetch(offset, piece, None)?;
            offset += size;
            writer.advance(size);
        }
        writer.put(&[0; 3][..padding(segment)]);
        writer.before_crc();
        let crc = match folded {
            Some((folding, end)) => folding.crc32c(&writer.out[end..writer.written]),
            None if self.crc => crc32c::of(&writer.out[..writer.written]),
            None => 0,
        };
        writer.put(&crc.to_le_bytes());
        self.markers = writer.markers;
        Ok(writer.written)
    }
}

/// Writes an FPDU, with markers where they belong.
struct Writer<'a> {
    out: &'a mut [u8],
    written: usize,
    /// The position in the stream modulo 512.
    markers: Option<usize>,
    /// Where the length field is in `out`.
    start: Option<usize>,
}

impl Writer<'_> {
    /// Room for up to `most` bytes before the next marker.
    fn piece(&mut self, most: usize) -> &mut [u8] {
        let mut size = most;
        if let Some(at) = self.markers {
            if at == 0 {
                self.marker();
            }
            size = most.min(MARKER_SPACE - at.max(MARKER_LEN));
        }
        self.start.get_or_insert(self.written);
        &mut self.out[self.written..self.written + size]
    }

    fn advance(&mut self, size: usize) {
        self.written += size;
        self.markers = self.markers.map(|at| (at + size) % MARKER_SPACE);
    }

    fn marker(&mut self) {
        let distance = self.start.map_or(0, |start| self.written - start);
        self.out[self.written..self.written + MARKER_LEN].copy_from_slice(&(distance as u32 & 0xffff).to_be_bytes());
        self.advance(MARKER_LEN);
    }

    /// A marker between padding and CRC is covered by the CRC.
    fn before_crc(&mut self) {
        if self.markers == Some(0) {
            self.marker();
        }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let piece = self.piece(bytes.len());
            let (now, rest) = bytes.split_at(piece.len());
            piece.copy_from_slice(now);
            self.advance(now.len());
            bytes = rest;
        }
    }
}

#[cfg(test)]
mod tests;
