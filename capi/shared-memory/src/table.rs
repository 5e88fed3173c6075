//! The memory that this library has made: a sorted table of address ranges, each with its file.
//! Pure: nothing here touches the memory or the files.
//!
//! A range becomes several pieces where the program treats its parts differently. The table has a
//! fixed size and never allocates; an entry takes memory when it is first used. Principal type:
//! [`Table`].

use std::ops::Range;

/// Addresses, from the first byte to the one behind the last.
pub(crate) type Span = Range<usize>;

/// A memfd: its descriptor, and what it is known by if the program has closed the descriptor and
/// the number belongs to another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) fd: i32,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The length, which is sealed. It can be more than what is mapped.
    pub(crate) length: usize,
}

/// What madvise(2) has said of a piece, and a forked child inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Advice {
    /// A child does not get the memory (`MADV_DONTFORK`).
    pub(crate) is_absent: bool,
    /// A child gets zeros (`MADV_WIPEONFORK`).
    pub(crate) is_wiped: bool,
    /// The memory is not in core dumps (`MADV_DONTDUMP`).
    pub(crate) is_undumped: bool,
    /// Each access is a fault (`MADV_GUARD_INSTALL`).
    pub(crate) is_guarded: bool,
}

impl Advice {
    /// Without advice: a child gets a copy.
    pub(crate) const NONE: Self = Self { is_absent: false, is_wiped: false, is_undumped: false, is_guarded: false };
}

/// Adjacent pages with the same properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// `None`: private memory, in a forked child.
    pub(crate) file: Option<File>,
    /// Where the piece begins in the file.
    pub(crate) offset: usize,
    /// The pointer that `malloc` gave the program, or 0 for memory from `mmap`.
    pub(crate) block: usize,
    /// The protection, as for mprotect(2).
    pub(crate) protection: u32,
    pub(crate) advice: Advice,
    /// Pages have properties that this table does not know.
    pub(crate) is_unusual: bool,
    /// The address of the child's copy while the process forks, otherwise 0.
    pub(crate) copy: usize,
}

impl Piece {
    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    /// The part inside a range that overlaps the piece.
    fn within(self, span: &Span) -> Self {
        let start = self.start.max(span.start);
        Self { start, end: self.end.min(span.end), offset: self.offset + (start - self.start), ..self }
    }

    /// Whether `next` continues this piece, so that one piece can stand for both.
    fn continues(&self, next: &Self) -> bool {
        let expected = Self { start: next.start, end: next.end, offset: self.offset + self.len(), ..*self };
        self.end == next.start && *next == expected
    }
}

/// An entry without memory. All of it is zeros, so that an unused table takes no memory.
pub(crate) const UNUSED: Piece = Piece {
    start: 0,
    end: 0,
    file: None,
    offset: 0,
    block: 0,
    protection: 0,
    advice: Advice::NONE,
    is_unusual: false,
    copy: 0,
};

/// The table has no room for another piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Pieces in the order of their addresses. They do not overlap. The unused entries are where a piece
/// was last added or removed. So a program that changes one page after the other moves few entries.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    entries: [Piece; N],
    /// The number of pieces before the unused entries.
    before: usize,
    /// The number of pieces behind them.
    behind: usize,
}

impl<const N: usize> Table<N> {
    pub(crate) const fn new() -> Self {
        Self { entries: [UNUSED; N], before: 0, behind: 0 }
    }

    fn len(&self) -> usize {
        self.before + self.behind
    }

    /// The pieces before and behind the unused entries.
    fn parts(&self) -> (&[Piece], &[Piece]) {
        (&self.entries[..self.before], &self.entries[N - self.behind..])
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        let (before, behind) = self.parts();
        before.iter().chain(behind)
    }

    /// Every piece. The caller keeps the order of the addresses.
    pub(crate) fn pieces_mut(&mut self) -> impl Iterator<Item = &mut Piece> {
        let (before, rest) = self.entries.split_at_mut(self.before);
        let unused = rest.len() - self.behind;
        before.iter_mut().chain(&mut rest[unused..])
    }

    fn get(&self, at: usize) -> Option<&Piece> {
        let (before, behind) = self.parts();
        before.get(at).or_else(|| behind.get(at.checked_sub(before.len())?))
    }

    fn get_mut(&mut self, at: usize) -> Option<&mut Piece> {
        let unused = if at < self.before { 0 } else { N - self.len() };
        if at < self.len() { self.entries.get_mut(at + unused) } else { None }
    }

    /// The pieces that overlap a range.
    fn overlapping(&mut self, span: &Span) -> impl Iterator<Item = &mut Piece> {
        let first = self.first_behind(span.start);
        self.pieces_mut().skip(first).take_while(|piece| piece.start < span.end)
    }

    /// Marks the pieces in a range, and splits none: pages of them have properties that the table
    /// does not know.
    pub(crate) fn mark(&mut self, span: &Span) {
        self.overlapping(span).for_each(|piece| piece.is_unusual = true);
    }

    /// Whether there is room for new memory. The last quarter of the table is for pieces that are
    /// split.
    pub(crate) fn is_roomy(&self) -> bool {
        self.len() < N / 4 * 3
    }

    /// Whether every range can be changed.
    pub(crate) fn is_splittable(&self) -> bool {
        N - self.len() >= 2
    }

    /// Adds a piece, which must not overlap another.
    pub(crate) fn add(&mut self, piece: Piece) -> Result<(), Full> {
        let at = self.first_behind(piece.start);
        self.insert(at, piece)
    }

    /// Moves the unused entries before a piece.
    fn open(&mut self, at: usize) {
        let unused = N - self.len();
        if at < self.before {
            self.entries.copy_within(at..self.before, at + unused);
        } else {
            self.entries.copy_within(self.before + unused..at + unused, self.before);
        }
        (self.before, self.behind) = (at, self.len() - at);
    }

    fn insert(&mut self, at: usize, piece: Piece) -> Result<(), Full> {
        if self.len() == N {
            return Err(Full);
        }
        self.open(at);
        self.entries[at] = piece;
        self.before += 1;
        Ok(())
    }

    fn remove(&mut self, at: usize) -> Piece {
        self.open(at + 1);
        self.before = at;
        self.entries[at]
    }

    /// The index of the first piece that ends behind `address`.
    fn first_behind(&self, address: usize) -> usize {
        let (before, behind) = self.parts();
        let ends = |piece: &Piece| piece.end <= address;
        if before.last().is_some_and(|last| !ends(last)) {
            before.partition_point(ends)
        } else {
            before.len() + behind.partition_point(ends)
        }
    }

    /// The part of the first piece in a range that is inside the range.
    pub(crate) fn first(&self, span: &Span) -> Option<Piece> {
        let piece = self.get(self.first_behind(span.start))?;
        (piece.start < span.end && !span.is_empty()).then(|| piece.within(span))
    }

    /// Splits the piece around `address`, so that a piece begins there.
    fn split(&mut self, address: usize) -> Result<(), Full> {
        let at = self.first_behind(address);
        let Some(piece) = self.get(at).copied().filter(|piece| piece.start < address) else { return Ok(()) };
        self.insert(at + 1, piece.within(&(address..piece.end)))?;
        if let Some(piece) = self.get_mut(at) {
            piece.end = address;
        }
        Ok(())
    }

    /// Whether shared memory covers a range, and would be one mapping if it were private.
    pub(crate) fn is_one_mapping(&self, span: &Span) -> bool {
        let properties = |piece: &Piece| (piece.protection, Advice { is_guarded: false, ..piece.advice });
        let expected = self.first(span).as_ref().map(properties);
        let mut rest = span.clone();
        while let Some(piece) = self.first(&rest)
            && piece.start == rest.start
            && piece.file.is_some()
            && Some(properties(&piece)) == expected
        {
            rest.start = piece.end;
        }
        rest.is_empty()
    }

    /// Removes and returns what [`Table::first`] returns.
    pub(crate) fn take_first(&mut self, span: &Span) -> Result<Option<Piece>, Full> {
        let Some(part) = self.first(span) else { return Ok(None) };
        // The end first: if the table is full, nothing has changed.
        self.split(part.end)?;
        self.split(part.start)?;
        Ok(Some(self.remove(self.first_behind(part.start))))
    }

    /// Changes all pieces of a range, and splits those at its ends.
    pub(crate) fn change(&mut self, span: &Span, change: impl Fn(&mut Piece)) -> Result<(), Full> {
        if self.first(span).is_none() {
            return Ok(());
        }
        self.split(span.end)?;
        self.split(span.start)?;
        self.overlapping(span).for_each(change);
        self.join(span);
        Ok(())
    }

    /// Joins pieces in and around a range that need not be separate.
    fn join(&mut self, span: &Span) {
        let mut at = self.first_behind(span.start).saturating_sub(1);
        while let (Some(piece), Some(next)) = (self.get(at).copied(), self.get(at + 1))
            && piece.start < span.end
        {
            if piece.continues(next) {
                let end = self.remove(at + 1).end;
                self.get_mut(at).into_iter().for_each(|piece| piece.end = end);
            } else {
                at += 1;
            }
        }
    }

    /// The range of the block of `malloc` at an address.
    pub(crate) fn block(&self, address: usize) -> Option<Span> {
        let first = self.first_behind(address);
        let parts = self.pieces().skip(first).take_while(|piece| piece.block == address);
        let end = parts.fold(address, |end, piece| if piece.start == end { piece.end } else { end });
        (address != 0 && end != address).then_some(address..end)
    }

    /// Removes the pieces that are not wanted.
    pub(crate) fn keep(&mut self, wanted: impl Fn(&Piece) -> bool) {
        self.open(self.len());
        let mut kept = 0;
        for at in 0..self.before {
            if wanted(&self.entries[at]) {
                self.entries[kept] = self.entries[at];
                kept += 1;
            }
        }
        self.before = kept;
    }

    /// Whether a piece is of this file. Such a piece is probably beside `address`.
    pub(crate) fn has(&self, file: &File, address: usize) -> bool {
        let is_of = |piece: &Piece| piece.file.as_ref() == Some(file);
        let at = self.first_behind(address);
        let beside = [at.checked_sub(1), Some(at)];
        let is_beside = beside.into_iter().flatten().filter_map(|at| self.get(at)).any(is_of);
        is_beside || self.pieces().any(is_of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: File = File { fd: 900, device: 1, inode: 7, length: 0x8000 };

    fn piece(span: Span) -> Piece {
        Piece { start: span.start, end: span.end, file: Some(FILE), protection: 3, ..UNUSED }
    }

    fn spans<const N: usize>(table: &Table<N>) -> Vec<(usize, usize, usize)> {
        table.pieces().map(|piece| (piece.start, piece.end, piece.offset)).collect()
    }

    #[test]
    fn a_part_is_taken_and_the_rest_keeps_its_place_in_the_file() {
        let mut table = Table::<8>::new();
        table.add(piece(0x5000..0x9000)).unwrap();
        table.add(piece(0x1000..0x3000)).unwrap();
        assert_eq!(table.first(&(0x3000..0x5000)), None);
        assert_eq!(table.first(&(0x2000..0x6000)).map(|piece| (piece.start, piece.end)), Some((0x2000, 0x3000)));
        let taken = table.take_first(&(0x6000..0x7000)).unwrap().unwrap();
        assert_eq!((taken.start, taken.end, taken.offset), (0x6000, 0x7000, 0x1000));
        assert_eq!(spans(&table), [(0x1000, 0x3000, 0), (0x5000, 0x6000, 0), (0x7000, 0x9000, 0x2000)]);
        while table.take_first(&(0..usize::MAX)).unwrap().is_some() {}
        assert!(table.len() == 0 && !table.has(&FILE, 0x1000));
    }

    #[test]
    fn a_changed_part_is_joined_again_when_it_is_changed_back() {
        let mut table = Table::<8>::new();
        table.add(piece(0x1000..0x5000)).unwrap();
        table.change(&(0x2000..0x3000), |piece| piece.protection = 0).unwrap();
        assert_eq!(spans(&table), [(0x1000, 0x2000, 0), (0x2000, 0x3000, 0x1000), (0x3000, 0x5000, 0x2000)]);
        assert_eq!(table.get(1).unwrap().protection, 0);
        table.change(&(0..0x9000), |piece| piece.protection = 3).unwrap();
        assert_eq!(spans(&table), [(0x1000, 0x5000, 0)]);
        // Neighbours of another file, or of another part of the file, stay separate.
        table.add(piece(0x5000..0x6000)).unwrap();
        table.change(&(0..0x9000), |piece| piece.protection = 1).unwrap();
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_block_is_found_by_its_pointer_alone_and_whole() {
        let mut table = Table::<8>::new();
        table.add(Piece { block: 0x1000, ..piece(0x1000..0x4000) }).unwrap();
        table.add(Piece { block: 0x4000, ..piece(0x4000..0x5000) }).unwrap();
        table.add(piece(0x5000..0x6000)).unwrap();
        table.change(&(0x2000..0x3000), |piece| piece.protection = 0).unwrap();
        assert_eq!(table.block(0x1000), Some(0x1000..0x4000));
        assert_eq!(table.block(0x4000), Some(0x4000..0x5000));
        for other in [0, 0x2000, 0x5000, 0x6000] {
            assert_eq!(table.block(other), None, "{other:#x}");
        }
    }

    #[test]
    fn a_full_table_refuses_to_split_and_changes_nothing() {
        let mut table = Table::<2>::new();
        table.add(piece(0x1000..0x4000)).unwrap();
        assert_eq!(table.take_first(&(0x2000..0x3000)), Err(Full));
        table.change(&(0..0x9000), |_| ()).unwrap();
        assert_eq!(spans(&table), [(0x1000, 0x4000, 0)]);
        table.add(piece(0x8000..0x9000)).unwrap();
        assert_eq!(table.change(&(0x2000..0x3000), |_| ()), Err(Full));
        assert_eq!(table.add(piece(0x9000..0xa000)), Err(Full));
        assert!(!table.is_roomy());
    }

    #[test]
    fn random_changes_agree_with_a_list_of_pages() {
        let mut table = Table::<64>::new();
        let mut pages = [None::<(usize, u32)>; 32];
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        for _ in 0..20_000 {
            let start = random(31);
            let span = start..start + 1 + random(32 - start);
            let bytes = span.start * 0x1000..span.end * 0x1000;
            if random(3) == 0 {
                while table.take_first(&bytes).unwrap().is_some() {}
                pages[span].fill(None);
            } else if pages[span.clone()].iter().all(Option::is_none) {
                table.add(piece(bytes)).unwrap();
                span.clone().for_each(|page| pages[page] = Some((page - span.start, 3)));
            } else {
                let protection = random(2) as u32;
                table.change(&bytes, |piece| piece.protection = protection).unwrap();
                pages[span].iter_mut().flatten().for_each(|page| page.1 = protection);
            }
            let mut seen = [None; 32];
            for piece in table.pieces() {
                let own = &mut seen[piece.start / 0x1000..piece.end / 0x1000];
                for (number, page) in own.iter_mut().enumerate() {
                    assert!(page.is_none(), "pieces overlap");
                    *page = Some((piece.offset / 0x1000 + number, piece.protection));
                }
            }
            assert_eq!(seen, pages);
        }
    }
}
