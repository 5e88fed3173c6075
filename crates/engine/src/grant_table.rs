//! The table of grants that a target has given, in memory that the grantees map, and how the target
//! revokes them. Requests for grants are handled in `direct/granting.rs`.
//!
//! The first line of the table says whether this engine is alive ([`shm::life`]). Each other line
//! is one grant. It has a number, which is 0 when the grant is revoked, and a word with which the
//! grantee shows that it is using the grant. The grantee changes this word from 0 to the grant's
//! number and back. So a slow grantee cannot disturb a later grant that has the same line.
//! Principal type: [`GrantTable`].

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shm::Region;
use shm::life::Life;

/// Lines, including the first.
const LINES: usize = 1024;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Bytes of the grant table.
pub(crate) const LEN: usize = LINES * LINE;

/// The offset of the word that says whether the granter is alive.
pub(crate) const LIFE: usize = 0;

/// Offsets in a line.
pub(crate) mod field {
    pub(crate) const NUMBER: usize = 0;
    pub(crate) const IN_USE: usize = 4;
    pub(crate) const TERMS: usize = 8;
}

/// What is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Terms {
    /// The region's key.
    pub(crate) key: u32,
    /// Remote rights, as an MR's.
    pub(crate) rights: u32,
    /// The address of the first byte in work requests.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// The offset of the memory in the file.
    pub(crate) offset: u64,
    /// The grantee's QP, and the granter's.
    pub(crate) asker: u32,
    pub(crate) qpn: u32,
}
const _: () = assert!(size_of::<Terms>() == 40);

/// A grantee that stays in the middle of a copy for this long counts as stopped. It finds the grant
/// revoked when it continues.
const STOPPED: Duration = Duration::from_secs(1);
/// The longest time that a QP that ends waits for its peer. It holds locks meanwhile. One piece of
/// a copy takes much less time; a slower peer has lost its processor.
const PEER_WAIT: Duration = Duration::from_millis(1);
/// After this many checks, the waiting thread sleeps between checks.
const LOOKS: u32 = 1000;
/// The least number of checks before a grantee counts as stopped.
const ENOUGH: u32 = 2 * LOOKS;

/// A grant that was given.
#[derive(Clone, Copy)]
struct Given {
    line: usize,
    number: u32,
    key: u32,
    /// The grantee's engine.
    to: u32,
}

/// All grants of an engine.
pub(crate) struct GrantTable {
    region: Arc<Region>,
    pub(crate) file: OwnedFd,
    book: Mutex<Book>,
}

thread_local! {
    /// The life word belongs to the helper thread. When this thread ends, the word says so, and no
    /// grantee uses a grant any more.
    static LIVES: RefCell<Option<Life>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Book {
    given: Vec<Given>,
    last: u32,
}

impl GrantTable {
    /// A grant table that is valid as long as the calling thread lives and makes no other one.
    pub(crate) fn new() -> std::io::Result<Self> {
        let (region, file) = Region::create("softhca-direct", LEN)?;
        let region = Arc::new(region);
        LIVES.with_borrow_mut(|life| {
            // The old life ends first: its drop would otherwise unregister the new one.
            drop(life.take());
            *life = Some(Life::begin(Arc::clone(&region), LIFE)?);
            Ok(Self { region, file, book: Mutex::default() })
        })
    }

    /// Adds a grant; returns its line and number, or `None` if the table is full.
    pub(crate) fn give(&self, terms: &Terms, to: u32, has_ended: impl Fn(u32) -> bool) -> Option<GrantLine> {
        let mut book = self.book.lock();
        book.given.retain(|given| {
            if has_ended(given.to) {
                self.shut(given);
                // The grantee's engine has ended, so it does not use the grant any more.
                self.region.word(given.line * LINE + field::IN_USE).store(0, Ordering::Relaxed);
            }
            self.is_open(given) || self.is_in_use(given)
        });
        let free = (1..LINES).find(|line| !book.given.iter().any(|given| given.line == *line))?;
        book.last = book.last.wrapping_add(1).max(1);
        let given = Given { line: free, number: book.last, key: terms.key, to };
        self.region.write(free * LINE + field::TERMS, terms);
        // Release: a grantee that reads the number also finds the terms.
        self.region.word(free * LINE + field::NUMBER).store(given.number, Ordering::Release);
        book.given.push(given);
        Some(GrantLine { region: Arc::clone(&self.region), line: free as u32, number: given.number })
    }

    /// Revokes the grants of a key. When this returns, no grantee uses them, except those that are
    /// stopped or have ended.
    pub(crate) fn withdraw(&self, key: u32, has_ended: impl Fn(u32) -> bool) {
        let gone: Vec<Given> = {
            let mut book = self.book.lock();
            let gone = book.given.iter().filter(|given| given.key == key).copied().collect();
            // The line becomes free only when the grantee has stopped using it; the next `give`
            // checks this.
            book.given.iter_mut().filter(|given| given.key == key).for_each(|given| given.key = 0);
            gone
        };
        gone.iter().for_each(|given| self.shut(given));
        // Pairs with the exchange in `direct::carry`: either the grantee reads the number 0, or
        // this thread sees that the grantee uses the grant.
        fence(Ordering::SeqCst);
        let since = Instant::now();
        let mut looks = 0;
        // Both by the clock and by the number of checks: if the whole machine is suspended, only
        // the clock goes on.
        while gone.iter().any(|given| self.is_in_use(given)) && (looks < ENOUGH || since.elapsed() < STOPPED) {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else if gone.iter().all(|given| !self.is_in_use(given) || has_ended(given.to)) {
                // The grantee was killed during a copy.
                break;
            } else {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    fn word(&self, given: &Given, field: usize) -> &std::sync::atomic::AtomicU32 {
        self.region.word(given.line * LINE + field)
    }

    fn shut(&self, given: &Given) {
        // Only this grant: the line may belong to a later grant.
        let _ = self.word(given, field::NUMBER).compare_exchange(given.number, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    fn is_open(&self, given: &Given) -> bool {
        self.word(given, field::NUMBER).load(Ordering::Relaxed) == given.number
    }

    fn is_in_use(&self, given: &Given) -> bool {
        // Acquire: pairs with the grantee's release, so that its writes are visible.
        self.word(given, field::IN_USE).load(Ordering::Acquire) == given.number
    }
}

/// One grant, as stored by the QP for which it was given.
pub(crate) struct GrantLine {
    region: Arc<Region>,
    pub(crate) line: u32,
    pub(crate) number: u32,
}

impl GrantLine {
    /// Revokes the grant.
    pub(crate) fn shut(&self) {
        let word = self.region.word(self.line as usize * LINE + field::NUMBER);
        let _ = word.compare_exchange(self.number, 0, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Revokes several grants. When this returns, no grantee uses them, except grantees that are
    /// stopped.
    pub(crate) fn shut_all(lines: &[GrantLine]) {
        lines.iter().for_each(Self::shut);
        // As in `GrantTable::withdraw`.
        fence(Ordering::SeqCst);
        let since = Instant::now();
        while lines.iter().any(Self::is_used) && since.elapsed() < PEER_WAIT {
            std::hint::spin_loop();
        }
    }

    fn is_used(&self) -> bool {
        // Acquire: pairs with the grantee's release, so that its writes are visible.
        self.region.word(self.line as usize * LINE + field::IN_USE).load(Ordering::Acquire) == self.number
    }

    pub(crate) fn is_open(&self) -> bool {
        self.region.word(self.line as usize * LINE + field::NUMBER).load(Ordering::Relaxed) == self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(key: u32) -> Terms {
        Terms { key, rights: 2, addr: 4096, len: 4096, offset: 0, asker: 1, qpn: 2 }
    }

    fn nobody(_: u32) -> bool {
        false
    }

    #[test]
    fn a_withdrawn_grant_is_closed_and_its_line_is_reused() {
        let table = GrantTable::new().expect("a grant table");
        let one = table.give(&terms(5), 9, nobody).expect("a line");
        let two = table.give(&terms(6), 9, nobody).expect("a line");
        assert_ne!(one.line, two.line);
        table.withdraw(5, nobody);
        assert!(!one.is_open() && two.is_open());
        let three = table.give(&terms(7), 9, nobody).expect("a line");
        assert_eq!(three.line, one.line);
        // The first grant's QP ends late.
        one.shut();
        assert!(three.is_open());
        two.shut();
        assert_eq!(table.give(&terms(8), 9, nobody).map(|line| line.line), Some(two.line));
    }

    #[test]
    fn there_are_so_many_lines_and_those_of_the_dead_are_free() {
        let table = GrantTable::new().expect("a grant table");
        let lines: Vec<GrantLine> = (0..LINES).map_while(|_| table.give(&terms(5), 9, nobody)).collect();
        assert_eq!(lines.len(), LINES - 1);
        assert!(table.give(&terms(5), 9, nobody).is_none());
        assert!(table.give(&terms(5), 8, |engine| engine == 9).is_some());
        assert!(lines.iter().all(|line| !line.is_open() || line.line == 1));
    }

    #[test]
    fn withdraw_waits_for_an_access_in_progress() {
        let table = GrantTable::new().expect("a grant table");
        let line = table.give(&terms(5), 9, nobody).expect("a line");
        let in_use = || table.region.word(line.line as usize * LINE + field::IN_USE);
        in_use().store(line.number, Ordering::SeqCst);
        let left = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while line.is_open() {
                    std::hint::spin_loop();
                }
                left.store(true, Ordering::SeqCst);
                in_use().store(0, Ordering::SeqCst);
            });
            table.withdraw(5, nobody);
            assert!(left.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn withdraw_gives_up_on_an_endless_access_and_loses_the_line() {
        let table = GrantTable::new().expect("a grant table");
        let line = table.give(&terms(5), 9, nobody).expect("a line");
        table.region.word(line.line as usize * LINE + field::IN_USE).store(line.number, Ordering::SeqCst);
        table.withdraw(5, nobody);
        assert!(!line.is_open());
        let others: Vec<GrantLine> = (0..LINES).map_while(|_| table.give(&terms(6), 9, nobody)).collect();
        assert!(others.len() == LINES - 2 && others.iter().all(|other| other.line != line.line));
    }

    #[test]
    fn withdraw_does_not_wait_for_a_killed_process() {
        let table = GrantTable::new().expect("a grant table");
        let line = table.give(&terms(5), 9, nobody).expect("a line");
        table.region.word(line.line as usize * LINE + field::IN_USE).store(line.number, Ordering::SeqCst);
        let asked = std::cell::Cell::new(0);
        table.withdraw(5, |engine| {
            asked.set(asked.get() + 1);
            engine == 9
        });
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn nothing_holds_that_a_thread_has_granted_which_has_ended() {
        let table = std::thread::spawn(|| {
            let table = GrantTable::new().expect("a grant table");
            assert_eq!(table.region.word(LIFE).load(Ordering::SeqCst) & shm::life::ENDED, 0);
            table
        });
        let table = table.join().expect("a grant table");
        assert_ne!(table.region.word(LIFE).load(Ordering::SeqCst) & shm::life::ENDED, 0);
    }
}
