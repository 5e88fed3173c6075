//! Event channels: `struct rdma_event_channel` and the connection to the agent behind it. The
//! principal type is [`ChannelObject`].

use crate::cma::EventChannel;
use crate::entry::{self, Outcome, Refusal};
use crate::object::{Named, Object, get};
use crate::verbs;
use cm::Channel;
use std::ffi::{CStr, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `struct rdma_event_channel` and the connection.
pub(crate) type ChannelObject = Object<Shared, Channel>;

/// The part of a channel that the program sees, and the number of threads that wait for an event on
/// it.
#[repr(C)]
pub(crate) struct Shared {
    seen: EventChannel,
    waiting: AtomicUsize,
}

impl Named for Shared {
    const NAME: &'static str = "event channel";
    const IS_DESCRIPTOR: bool = true;

    fn name(c: *const Self) -> u32 {
        get!(c, seen.fd).cast_unsigned()
    }
}

/// Counts a thread that waits for an event.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    /// Counts the calling thread.
    pub(crate) fn on(object: &'a ChannelObject) -> Self {
        Self::begin(object);
        Self(waiting(object))
    }

    /// Counts the calling thread until [`Waiting::end`].
    pub(crate) fn begin(object: &ChannelObject) {
        waiting(object).fetch_add(1, Ordering::Relaxed);
    }

    /// The calling thread waits no more.
    pub(crate) fn end(object: &ChannelObject) {
        waiting(object).fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn waiting(object: &ChannelObject) -> &AtomicUsize {
    // SAFETY: the counter lives as long as the object, and an atomic is only used through shared
    // references.
    unsafe { &(*object.c()).waiting }
}

/// `rdma_create_event_channel`.
pub(crate) extern "C" fn create() -> *mut EventChannel {
    entry::pointer("rdma_create_event_channel", open)
}

/// `rdma_destroy_event_channel`. A channel on which a thread waits for an event stays, as an open
/// file of the kernel stays when its descriptor is closed meanwhile: that thread waits until the
/// program ends.
///
/// # Safety
/// `channel` is live, and neither it nor ids on it are used afterwards.
pub(crate) unsafe extern "C" fn destroy(channel: *mut EventChannel) {
    entry::value("rdma_destroy_event_channel", || {
        // SAFETY: the caller's promise.
        let Ok(object) = (unsafe { ChannelObject::live(channel) }) else { return };
        // Pairs with the release in `Waiting::drop`, so that no thread uses the object any more
        // when it is freed.
        if waiting(object).load(Ordering::Acquire) == 0 {
            // SAFETY: the caller's promise.
            unsafe { ChannelObject::free(channel.cast()) };
        }
    });
}

/// Opens a channel to the agent whose devices the verbs library shows.
pub(crate) fn open() -> Outcome<*mut EventChannel> {
    let channel = Channel::open(&run_directory()).map_err(told)?;
    let fd = channel.fd().as_raw_fd();
    let shared = Shared { seen: EventChannel { fd }, waiting: AtomicUsize::new(0) };
    Ok(ChannelObject::create(shared, channel).cast())
}

/// The agent whose devices the verbs library shows.
pub(crate) fn agent() -> Outcome<u32> {
    Ok(Channel::open(&run_directory()).map_err(told)?.agent())
}

/// The run directory, as the verbs library knows it: the mirror of `/sys` is in it.
fn run_directory() -> PathBuf {
    // From here on, reasons for failures are stored where the devices' reasons are.
    crate::reasons::forward();
    // SAFETY: a C string that is never freed.
    let path = unsafe { CStr::from_ptr(verbs::ibv_get_sysfs_path()) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    path.parent().unwrap_or(path).to_owned()
}

/// Explains in a sentence that the agent is missing, because programs print only an errno. For
/// programs this means that there is no device.
fn told(error: cm::Error) -> Refusal {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| engine::reason::say(format_args!("{}", error.reason)));
    let gone = [libc::ENOENT, libc::ECONNREFUSED, libc::ENOTDIR];
    if gone.contains(&error.errno.0) { Refusal(libc::ENODEV) } else { error.into() }
}
