//! Memory windows: keys for part of a region, which work requests bind and invalidate.
//!
//! A bound window is one more extent of this process under its own key, and its users are checked
//! like a region's users. This file decides when a window may be bound, and how this side or a peer
//! invalidates it. IBA 10.6.7.2, 10.6.7.3, V-30 to V-33. Principal type: [`MemoryWindow`].

use std::sync::Arc;

use abi::mr::{access as right, mw_type};
use parking_lot::Mutex;

use crate::extent::{EVERY_PD, Extent, Keepers, Windows};
use crate::table::Table;

/// The rights that a window can give to a peer.
const REMOTE: u32 = right::REMOTE_WRITE | right::REMOTE_READ | right::REMOTE_ATOMIC | right::FLUSH_GLOBAL;

/// The parameters of BIND_MW that other requests do not have.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// The window: [`crate::Mw::number`].
    pub window: u32,
    /// The new key. Only the lower 8 bits count; the others are the window's own.
    pub rkey: u32,
    /// The region's key; ignored with a length of 0.
    pub mr: u32,
    /// The first byte, as an address of the region.
    pub addr: u64,
    /// Bytes; 0 unbinds a window of type 1.
    pub length: u64,
    /// Remote rights, and whether the window's addresses begin at 0.
    pub access: u32,
}

/// The QP that binds or invalidates a window, or whose peer does.
#[derive(Clone, Copy)]
pub(crate) struct Binder {
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
}

/// A memory window, as work requests see it.
pub(crate) struct MemoryWindow {
    pub(crate) pd: u32,
    pub(crate) kind: u8,
    /// Type 2A: bound to a QP number and to no PD.
    pub(crate) to_number: bool,
    /// The first key.
    pub(crate) number: u32,
    pub(crate) state: Mutex<Binding>,
}

/// What a window is bound to.
pub(crate) struct Binding {
    /// The last key.
    pub(crate) key: u32,
    /// The region's count of windows, and the number of the QP that has bound this window.
    pub(crate) to: Option<(Arc<Windows>, u32)>,
}

impl MemoryWindow {
    /// Unbinds the window. Waits for copies under way.
    pub(crate) fn unbind(&self, state: &mut Binding, extents: &Table<Extent>) {
        if let Some((windows, _)) = state.to.take() {
            extents.remove(self.number >> 8);
            windows.remove();
        }
    }

    /// Binds the window for a QP, or says why it cannot.
    pub(crate) fn bind(&self, extents: &Table<Extent>, by: Binder, bind: &Bind) -> Result<(), String> {
        let Bind { rkey, mr, addr, length, access, .. } = *bind;
        let mut state = self.state.lock();
        if self.pd != by.pd {
            return Err(format!("the window is on PD {}, the QP on PD {}", self.pd, by.pd));
        }
        // The old key does not matter: adapters accept any lower 8 bits, including the current
        // ones.
        let key = self.number & !0xff | rkey & 0xff;
        if self.kind == mw_type::TYPE_2 && (length == 0 || state.to.is_some()) {
            return Err("a window of type 2 is bound to some bytes, and invalidated before it is bound anew".into());
        }
        if length == 0 {
            self.unbind(&mut state, extents);
            state.key = key;
            return Ok(());
        }
        let extent = region(extents, mr)?;
        let host = check(&extent, self.pd, bind)?;
        if !extent.windows.add() {
            return Err(format!("MR {mr:#x} is being deregistered"));
        }
        self.unbind(&mut state, extents);
        state.key = key;
        state.to = Some((Arc::clone(&extent.windows), by.qpn));
        let window = Extent {
            key,
            host,
            iova: if access & right::ZERO_BASED != 0 { 0 } else { addr },
            length,
            access: access & REMOTE,
            only: if self.kind == mw_type::TYPE_2 { by.qpn } else { 0 },
            pd: if self.to_number { EVERY_PD } else { self.pd },
            memory_kind: extent.memory_kind,
            windows: Arc::clone(&extent.windows),
            backing: extent.backing.clone(),
            keepers: Keepers::default(),
        };
        extents.insert(key >> 8, Arc::new(window));
        Ok(())
    }

    /// Invalidates the window, for a request of a QP or of its peer.
    pub(crate) fn invalidate(&self, extents: &Table<Extent>, by: Binder, key: u32) -> Result<(), String> {
        let mut state = self.state.lock();
        if state.key != key {
            return Err(format!("the window's key is {:#x} now", state.key));
        }
        if self.kind != mw_type::TYPE_2 {
            return Err("windows of type 1 are closed by binding them to nothing".into());
        }
        if self.pd != by.pd && !self.to_number {
            return Err(format!("the window is on PD {}", self.pd));
        }
        match &state.to {
            None => Err("the window is not bound".into()),
            Some((_, owner)) if *owner != by.qpn => Err(format!("QP {owner:#x} has bound the window")),
            Some(_) => {
                self.unbind(&mut state, extents);
                Ok(())
            }
        }
    }
}

fn region(extents: &Table<Extent>, key: u32) -> Result<Arc<Extent>, String> {
    let extent = extents.find(key >> 8).filter(|extent| extent.key == key);
    let extent = extent.filter(|extent| !extent.is_window());
    extent.ok_or_else(|| format!("key {key:#x} names no memory region of this process"))
}

/// Checks whether a window on `pd` may be bound to the region. Returns the address of its first
/// byte in this process.
fn check(extent: &Extent, pd: u32, bind: &Bind) -> Result<u64, String> {
    let Bind { mr, addr, length, access, .. } = *bind;
    if extent.pd != pd {
        return Err(format!("MR {mr:#x} is on PD {}, the window on PD {pd}", extent.pd));
    }
    if extent.access & right::MW_BIND == 0 {
        return Err(format!("MR {mr:#x} was registered without IBV_ACCESS_MW_BIND"));
    }
    if extent.access & right::ZERO_BASED != 0 {
        return Err(format!("MR {mr:#x} is zero-based, and no window can be bound to it"));
    }
    if access & (right::REMOTE_WRITE | right::REMOTE_ATOMIC) != 0 && extent.access & right::LOCAL_WRITE == 0 {
        return Err(format!("MR {mr:#x} was registered without IBV_ACCESS_LOCAL_WRITE, and the peer is to write"));
    }
    let inside =
        addr.checked_sub(extent.iova).filter(|&offset| offset <= extent.length && length <= extent.length - offset);
    let outside = || {
        let (start, bytes) = (extent.iova, extent.length);
        format!("the range of {length} bytes at {addr:#x} is outside MR {mr:#x} ({bytes} bytes at {start:#x})")
    };
    inside.map(|offset| extent.host.wrapping_add(offset)).ok_or_else(outside)
}
