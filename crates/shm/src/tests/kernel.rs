//! Facts about the kernel that this crate relies on: seals, fork, notifiers, descriptors over
//! sockets.

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::lane;
use crate::bulk::{PIECE_MAX, REACH};
use crate::lane::{BULK, LANE_LEN, Side, ends};
use crate::notifier::Notifier;
use crate::region::Region;
use crate::socket::{FDS_MAX, Listener, Peeked, Socket};
use crate::wake_word::{WakeWord, WakeWordView};

#[test]
fn region_is_shared_memory() {
    let (ours, fd) = Region::create("softhca-test", 8192).unwrap();
    let theirs = Region::map(fd.as_fd(), 8192).unwrap();
    ours.word(4096).store(7, Ordering::Relaxed);
    assert_eq!(theirs.word(4096).load(Ordering::Relaxed), 7);
    theirs.write(100, &[1_u64, 2, 3]);
    assert_eq!(ours.read::<[u64; 3]>(100), [1, 2, 3]);
    assert_eq!(rustix::io::fcntl_getfd(&fd).unwrap(), FdFlags::CLOEXEC);
}

#[test]
fn region_copies_at_any_alignment() {
    let (region, _fd) = Region::create("softhca-test", 4096).unwrap();
    for offset in 0..16 {
        for len in 0..40 {
            let bytes: Vec<u8> = (0..len).map(|i| (i + offset) as u8 + 1).collect();
            region.copy_in(0, &[0; 64]);
            region.copy_in(offset, &bytes);
            let mut all = [0; 64];
            region.copy_out(0, &mut all);
            assert_eq!(all[offset..offset + len], bytes);
            assert!(all[..offset].iter().chain(&all[offset + len..]).all(|&byte| byte == 0));
            let mut out = vec![0; len];
            region.copy_out(offset, &mut out);
            assert_eq!(out, bytes);
        }
    }
}

#[test]
fn region_bounds() {
    let (region, _fd) = Region::create("softhca-test", 4096).unwrap();
    assert!(region.try_word(4092).is_some() && region.try_word64(4088).is_some());
    for misplaced in [2, 4094, 4096, usize::MAX - 3, usize::MAX] {
        assert!(region.try_word(misplaced).is_none() && region.try_word64(misplaced).is_none());
    }
    assert!(region.try_word64(4092).is_none());
    assert!(region.pointer(4096, 0).is_some() && region.pointer(4096, 1).is_none());
    assert!(region.pointer(1, usize::MAX).is_none());
}

#[test]
#[should_panic(expected = "copy_out: 8 bytes at offset 4090 of a region of 4096 bytes")]
fn region_says_what_was_out_of_bounds() {
    let (region, _fd) = Region::create("softhca-test", 4096).unwrap();
    region.read::<u64>(4090);
}

#[test]
fn published_region_is_read_only_for_others() {
    let (ours, fd) = Region::create_published("softhca-test", 4096).unwrap();
    assert!(Region::map(fd.as_fd(), 4096).is_err());
    assert!(rustix::io::write(&fd, b"x").is_err());
    let theirs = Region::map_read_only(fd.as_fd(), 4096).unwrap();
    ours.word(8).store(9, Ordering::Relaxed);
    assert_eq!(theirs.word(8).load(Ordering::Relaxed), 9);
}

#[test]
fn region_refuses_what_could_fault() {
    let refused = |fd: &OwnedFd, len| {
        assert!(Region::map(fd.as_fd(), len).is_err());
        assert!(Region::map_read_only(fd.as_fd(), len).is_err());
    };
    let memfd = |flags| rustix::fs::memfd_create("softhca-test", MemfdFlags::CLOEXEC | flags).unwrap();
    let unsealed = memfd(MemfdFlags::ALLOW_SEALING);
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    refused(&unsealed, 4096);
    rustix::fs::fcntl_add_seals(&unsealed, SealFlags::SHRINK).unwrap();
    Region::map(unsealed.as_fd(), 4096).unwrap();
    refused(&unsealed, 4097);
    refused(&unsealed, usize::MAX);
    refused(&unsealed, 0);
    refused(&std::fs::File::open("/dev/zero").unwrap().into(), 4096);
    refused(&Notifier::new().unwrap().into(), 4096);
}

#[test]
fn bytes_go_through_the_bulk_ring() {
    let (region, _fd) = Region::create("softhca-test", LANE_LEN).unwrap();
    let region = Arc::new(region);
    let (mut tx, _) = ends(region.clone(), Side::A);
    let (_, mut rx) = ends(region, Side::B);
    let mut last = 0;
    for (round, len) in [1, 63, 64, 65, 1000, PIECE_MAX, PIECE_MAX, PIECE_MAX, 7].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        let slot = tx.bulk.put(&bytes).unwrap().unwrap();
        last = slot.offset;
        let mut copied = vec![0; len];
        assert!(rx.bulk.take(slot.offset, &mut copied));
        assert!(copied == bytes, "{len} bytes in round {round}");
        assert!(tx.bulk.idle(), "what was taken was given back");
    }
    assert!(!rx.bulk.take(last + 1, &mut [0; 8]), "pieces begin at whole lines");
    assert!(!rx.bulk.take(0, &mut []), "no piece is empty");
    assert!(!rx.bulk.take(BULK as u32 - 64, &mut [0; 65]), "no piece goes beyond the end");
}

#[test]
fn idle_bulk_is_given_back() {
    let (region, fd) = Region::create("softhca-test", LANE_LEN).unwrap();
    let region = std::sync::Arc::new(region);
    let (mut tx, _) = ends(region.clone(), Side::A);
    let (_, mut rx) = ends(region, Side::B);
    let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512;
    let slot = tx.bulk.put(&[1; PIECE_MAX]).unwrap().unwrap();
    assert!(blocks() >= PIECE_MAX as i64);
    assert!(!tx.bulk.give_back().unwrap());
    rx.bulk.release(slot.offset, slot.len);
    tx.bulk.grow();
    assert_eq!(tx.bulk.reach(), 2 * REACH);
    assert!(tx.bulk.give_back().unwrap());
    assert!(blocks() < PIECE_MAX as i64);
    assert_eq!(tx.bulk.reach(), REACH);
}

#[test]
fn fork_leaves_the_region_behind() {
    let region = lane();
    let base = region.pointer(0, 1).unwrap().as_ptr();
    // SAFETY: the child calls nothing but system calls and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: fails if anything is mapped there.
        let page = unsafe { libc::mmap(base.cast(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        let free = page == base.cast();
        drop(region);
        // SAFETY: the page is the one just mapped, if it is still there: dropping the region must
        // not have unmapped it.
        let mine = free && unsafe { libc::msync(base.cast(), 4096, libc::MS_ASYNC) } == 0;
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if mine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made; `status` is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's memory at the region's address is its own");
}

#[test]
fn a_wake_word_counts_its_armings() {
    let (wake_word, fd) = WakeWord::create().unwrap();
    let view = WakeWordView::map(fd.as_fd()).unwrap();
    assert_eq!(view.armed(), None);
    let first = wake_word.arm();
    assert_eq!(view.armed(), Some(first));
    wake_word.disarm();
    wake_word.disarm();
    assert_eq!(view.armed(), None);
    let (second, third) = (wake_word.arm(), wake_word.arm());
    assert_eq!(view.armed(), Some(third));
    assert!(first % 2 == 1 && second % 2 == 1 && third % 2 == 1 && first != second && second != third);
}

#[test]
fn a_restless_wake_word_is_armed_like_any_other() {
    let (wake_word, fd) = WakeWord::create().unwrap();
    let view = WakeWordView::map(fd.as_fd()).unwrap();
    wake_word.set_fenced(true);
    assert_eq!((view.armed(), wake_word.is_armed()), (None, false));
    let first = wake_word.arm();
    assert!(view.armed().is_some() && wake_word.is_armed());
    let seen = view.armed();
    wake_word.set_fenced(false);
    assert_eq!(view.armed(), seen, "it is the same arming: nobody rings for it again");
    wake_word.disarm();
    wake_word.set_fenced(true);
    assert_eq!(view.armed(), None);
    assert_ne!(wake_word.arm(), first);
    assert!(view.armed() != seen && view.armed().is_some());
}

#[test]
fn a_notifier_never_blocks() {
    let blocking = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let notifier = Notifier::from(blocking);
    assert!(!notifier.drain());
    notifier.notify();
    notifier.notify();
    assert!(notifier.drain() && !notifier.drain());
    rustix::io::write(&notifier, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    notifier.notify();
    assert!(notifier.drain());
}

#[test]
fn socket_carries_messages_and_descriptors() {
    let (a, b) = Socket::pair().unwrap();
    let (region, fd) = Region::create("softhca-test", 4096).unwrap();
    let notifier = Notifier::new().unwrap();
    a.send(b"two", &[fd.as_fd(), notifier.as_fd()]).unwrap();
    a.send(b"none", &[]).unwrap();
    let mut buf = [0; 16];
    let received = b.recv(&mut buf).unwrap();
    assert_eq!((&buf[..received.len], received.truncated), (&b"two"[..], false));
    let [memfd, eventfd] = <[OwnedFd; 2]>::try_from(received.fds).unwrap();
    assert_eq!(rustix::io::fcntl_getfd(&memfd).unwrap(), FdFlags::CLOEXEC);
    region.word(0).store(5, Ordering::Relaxed);
    assert_eq!(Region::map(memfd.as_fd(), 4096).unwrap().word(0).load(Ordering::Relaxed), 5);
    Notifier::from(eventfd).notify();
    assert!(notifier.drain());
    let received = b.recv(&mut buf).unwrap();
    assert_eq!((&buf[..received.len], received.fds.len()), (&b"none"[..], 0));
}

#[test]
fn socket_reports_what_was_lost() {
    let (a, b) = Socket::pair().unwrap();
    a.send(b"longer than the buffer", &[]).unwrap();
    let received = b.recv(&mut [0; 6]).unwrap();
    assert_eq!((received.len, received.truncated), (6, true));

    let nine = [a.as_fd(); FDS_MAX + 1];
    assert_eq!(a.send(b"x", &nine).unwrap_err().kind(), ErrorKind::InvalidInput);
    a.send(b"x", &nine[..FDS_MAX]).unwrap();
    let received = b.recv(&mut [0; 6]).unwrap();
    assert_eq!((received.fds.len(), received.truncated), (FDS_MAX, false));
    // A sender without this crate may attach more.
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&nine)));
    let iov = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&a, &iov, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let received = b.recv(&mut [0; 6]).unwrap();
    assert_eq!((received.fds.len(), received.truncated), (FDS_MAX + 1, true));
}

#[test]
fn the_receiver_gets_as_many_descriptors_as_the_kernel_carries() {
    let (a, b) = Socket::pair().unwrap();
    let most = [a.as_fd(); 253];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&most)));
    let iov = [std::io::IoSlice::new(b"x")];
    rustix::net::sendmsg(&a, &iov, &mut control, rustix::net::SendFlags::empty()).unwrap();
    let received = b.recv(&mut [0; 6]).unwrap();
    assert_eq!((received.fds.len(), received.truncated), (253, true));
}

#[test]
fn a_socket_that_only_sends_holds_nothing_of_its_peer() {
    let (ours, theirs) = Socket::pair().unwrap();
    ours.only_send().unwrap();
    assert_eq!(theirs.send(b"x", &[ours.as_fd()]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    ours.send(b"x", &[]).unwrap();
    assert_eq!(theirs.recv(&mut [0; 6]).unwrap().len, 1);
    // Nothing else has changed for the peer: it sees the end when this side closes, and not before.
    assert_eq!(theirs.try_recv(&mut [0; 6]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(ours);
    assert_eq!(theirs.recv(&mut [0; 6]).unwrap().len, 0);
}

#[test]
fn a_message_can_be_looked_at_before_it_is_received() {
    let (a, b) = Socket::pair().unwrap();
    let mut bytes = [0; 8];
    assert_eq!(a.peek(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    b.send(b"long message", &[]).unwrap();
    b.send(b"fd", &[b.as_fd()]).unwrap();
    assert_eq!(a.peek(&mut bytes).unwrap(), Peeked { len: 8, truncated: true, has_fds: false });
    assert_eq!(&bytes, b"long mes");
    a.discard().unwrap();
    for _ in 0..2 {
        assert_eq!(a.peek(&mut bytes).unwrap(), Peeked { len: 2, truncated: false, has_fds: true });
    }
    assert_eq!(a.recv(&mut bytes).unwrap().fds.len(), 1);
    assert_eq!(a.discard().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn an_ended_socket_says_whether_it_holds_descriptors() {
    let raw = |socket: &Socket, bytes: &[u8], fds: &[BorrowedFd<'_>]| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    };
    for messages in ["", "d", "e", "eee", "ddd", "ed", "de"] {
        for (last, closes) in [("", false), ("", true), ("f", false), ("f", true), ("E", false), ("E", true)] {
            let (a, b) = Socket::pair().unwrap();
            let (_, fd) = Region::create("softhca-test", 4096).unwrap();
            // The end comes with an error if there were unread messages.
            a.send(b"unread", &[]).unwrap();
            for message in messages.chars().chain(last.chars()) {
                let bytes: &[u8] = if matches!(message, 'e' | 'E') { b"" } else { b"some data" };
                let fds = [fd.as_fd()];
                raw(&b, bytes, if matches!(message, 'f' | 'E') { &fds } else { &[] });
            }
            let b = (!closes).then_some(b);
            assert_eq!(a.end(), last.is_empty(), "{messages}{last}");
            if let Some(b) = b {
                assert_eq!(b.send(b"more", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
                let mut bytes = [0; 8];
                assert_eq!(b.recv(&mut bytes).unwrap().len, 6, "what was sent is there");
                assert_eq!(b.recv(&mut bytes).unwrap().len, 0, "and then the end");
            }
        }
    }
}

#[test]
fn socket_does_not_wait_when_told_so() {
    let (a, b) = Socket::pair().unwrap();
    assert_eq!(b.try_recv(&mut [0; 6]).unwrap_err().kind(), ErrorKind::WouldBlock);
    while a.try_send(&[0; 1000], &[]).is_ok() {}
    assert_eq!(a.try_send(&[0; 1000], &[]).unwrap_err().kind(), ErrorKind::WouldBlock);
    a.set_nonblocking(true).unwrap();
    assert_eq!(a.send(&[0; 1000], &[]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn socket_ends() {
    let (a, b) = Socket::pair().unwrap();
    assert_eq!(a.send(b"", &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    a.send(b"last words", &[]).unwrap();
    drop(a);
    assert_eq!(b.recv(&mut [0; 16]).unwrap().len, 10);
    assert_eq!(b.recv(&mut [0; 16]).unwrap().len, 0);
    assert_eq!(b.send(b"anybody?", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn socket_at_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let long = dir.path().join("a folder with a long name".repeat(5));
    std::fs::create_dir(&long).unwrap();
    for path in [dir.path().join("node"), long.join("node")] {
        assert!(Socket::connect(&path).is_err());
        let listener = Listener::listen(&path).unwrap();
        assert!(Listener::listen(&path).is_err());
        let client = Socket::connect(&path).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(rustix::io::fcntl_getfd(&server).unwrap(), FdFlags::CLOEXEC);
        assert_eq!(rustix::io::fcntl_getfd(&client).unwrap(), FdFlags::CLOEXEC);
        let peer = server.peer_credentials().unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
        server.send(b"hello", &[]).unwrap();
        assert_eq!(client.recv(&mut [0; 16]).unwrap().len, 5);
    }
}

#[test]
fn socket_survives_signals() {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: all zeros is a valid sigaction: no flags, so that system calls are interrupted.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing; no other test uses the signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }, 0);
    let (a, b) = Socket::pair().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        // SAFETY: asks for the caller's own identity.
        tell.send(unsafe { libc::pthread_self() }).unwrap();
        b.recv(&mut [0; 16]).map(|received| received.len)
    });
    let thread = told.recv().unwrap();
    for _ in 0..50 {
        // SAFETY: the thread is not joined yet.
        assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    a.send(b"still there?", &[]).unwrap();
    assert_eq!(receiver.join().unwrap().unwrap(), 12);
}
