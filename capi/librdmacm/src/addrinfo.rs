//! `rdma_getaddrinfo(3)`: looks names and services up with the host's resolver. On Ethernet the
//! answer contains neither routes nor connection data, and no subnet administrator exists to ask
//! for services.
//!
//! The result is allocated with the C library's allocator, piece by piece, because programs replace
//! pieces by their own. The principal type is [`Found`].

use crate::cma::{AddrInfo, ps, qpt};
use crate::entry::{self, Outcome, Refusal, refuse};
use crate::sockaddr;
use crate::verbs::{last_error, made};
use bytemuck::Zeroable;
use cm::{Address, AddressIb};
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

/// Hint flags.
const PASSIVE: c_int = 0x01;
const NUMERIC_HOST: c_int = 0x02;
const FAMILY: c_int = 0x08;
const SA: c_int = 0x10;
const AF_IB: c_int = 27;

/// The bits of a service id that name the port space, and those that name the port.
const SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;
const PORT_MASK: u64 = 0xffff;

/// `rdma_getaddrinfo`: returns 0; or -1 and `errno`; or a code of `getaddrinfo(3)`.
///
/// # Safety
/// `node` and `service` are NULL or C strings, `hints` is NULL or valid, `result` valid.
pub(crate) unsafe extern "C" fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const AddrInfo,
    result: *mut *mut AddrInfo,
) -> c_int {
    let mut code = 0;
    let outcome = entry::or_minus_one("rdma_getaddrinfo", || {
        entry::not_null(result)?;
        // SAFETY: the caller's promise.
        match unsafe { look_up(node, service, hints.as_ref()) }? {
            Found::Info(info) => {
                // SAFETY: not NULL, and the caller's to write.
                unsafe { result.write(info) };
            }
            Found::Code(found) => code = found,
        }
        Ok(0)
    });
    if outcome == 0 { code } else { outcome }
}

/// The result of a look-up that is not refused.
pub(crate) enum Found {
    /// The answer, which the caller must free.
    Info(*mut AddrInfo),
    /// A code of `getaddrinfo(3)`.
    Code(c_int),
}

/// # Safety
/// As for [`get`].
pub(crate) unsafe fn look_up(node: *const c_char, service: *const c_char, hints: Option<&AddrInfo>) -> Outcome<Found> {
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(refuse!(EINVAL, "rdma_getaddrinfo: neither node nor service nor hints are given"));
    }
    if hints.is_some_and(|hints| hints.ai_flags & SA != 0) {
        return Err(refuse!(EOPNOTSUPP, "rdma_getaddrinfo: RAI_SA asks a subnet administrator, and Ethernet has none"));
    }
    let info = Info::new()?;
    if node.is_null() && service.is_null() {
        // SAFETY: the caller's promise.
        unsafe { info.copy_hints(hints) }?;
    } else {
        // SAFETY: the caller's promise.
        let code = unsafe { info.resolve(node, service, hints) }?;
        if code != 0 {
            return Ok(Found::Code(code));
        }
    }
    if let Some(hints) = hints.filter(|hints| hints.ai_src_len > 0 && !hints.ai_src_addr.is_null()) {
        let source = &mut info.get().ai_src_addr;
        if source.is_null() {
            // SAFETY: the hints' address is valid for its length.
            *source = unsafe { copy(hints.ai_src_addr, hints.ai_src_len) }?;
            info.get().ai_src_len = hints.ai_src_len;
        }
    }
    Ok(Found::Info(info.give()))
}

/// `rdma_freeaddrinfo`.
///
/// # Safety
/// `info` is NULL or came from `rdma_getaddrinfo`.
pub(crate) unsafe extern "C" fn free(info: *mut AddrInfo) {
    // SAFETY: the caller's promise.
    entry::value("rdma_freeaddrinfo", || unsafe { release(info) });
}

/// # Safety
/// As for [`free`].
pub(crate) unsafe fn release(mut info: *mut AddrInfo) {
    while !info.is_null() {
        // SAFETY: every piece was allocated by the C library; NULL is allowed.
        unsafe {
            let whole = info.read();
            libc::free(whole.ai_src_addr);
            libc::free(whole.ai_dst_addr);
            libc::free(whole.ai_src_canonname.cast());
            libc::free(whole.ai_dst_canonname.cast());
            libc::free(whole.ai_route);
            libc::free(whole.ai_connect);
            libc::free(info.cast());
            info = whole.ai_next;
        }
    }
}

/// An unfinished answer. It is freed unless [`Info::give`] hands it over.
struct Info(*mut AddrInfo);

impl Info {
    fn new() -> Outcome<Self> {
        // SAFETY: a plain allocation; zeros are a valid struct.
        Ok(Self(made(unsafe { libc::calloc(1, size_of::<AddrInfo>()) })?.cast()))
    }

    #[allow(clippy::mut_from_ref, reason = "the allocation is this value's own, and references to it are short")]
    fn get(&self) -> &mut AddrInfo {
        // SAFETY: allocated in `new`, and nothing else refers to it.
        unsafe { &mut *self.0 }
    }

    fn give(self) -> *mut AddrInfo {
        let info = self.0;
        let _kept = std::mem::ManuallyDrop::new(self);
        info
    }

    /// Without names, the answer is the hints.
    ///
    /// # Safety
    /// The hints' addresses are valid for their lengths.
    unsafe fn copy_hints(&self, hints: Option<&AddrInfo>) -> Outcome<()> {
        let (info, hints) = (self.get(), hints.copied().unwrap_or(AddrInfo::zeroed()));
        info.ai_flags = hints.ai_flags;
        info.ai_family = hints.ai_family;
        info.ai_qp_type = hints.ai_qp_type;
        info.ai_port_space = hints.ai_port_space;
        if hints.ai_dst_len > 0 && !hints.ai_dst_addr.is_null() {
            // SAFETY: the caller's promise.
            info.ai_dst_addr = unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len) }?;
            info.ai_dst_len = hints.ai_dst_len;
        }
        Ok(())
    }

    /// Asks the resolver.
    ///
    /// # Safety
    /// The strings are NULL or C strings.
    unsafe fn resolve(&self, node: *const c_char, service: *const c_char, hints: Option<&AddrInfo>) -> Outcome<c_int> {
        let asked = hints.map(question);
        let mut list: *mut libc::addrinfo = null_mut();
        let asked = asked.as_ref().map_or(null(), std::ptr::from_ref);
        // SAFETY: the caller's promise; `list` is ours.
        let code = unsafe { libc::getaddrinfo(node, service, asked, &raw mut list) };
        if code != 0 {
            if code == libc::EAI_SYSTEM {
                return Err(last_error());
            }
            return Ok(code);
        }
        // SAFETY: on success there is at least one answer.
        let done = unsafe { self.fill(hints, &*list) };
        // SAFETY: the resolver's own list.
        unsafe { libc::freeaddrinfo(list) };
        done.map(|()| 0)
    }

    /// # Safety
    /// `answer` is from the resolver's list.
    unsafe fn fill(&self, hints: Option<&AddrInfo>, answer: &libc::addrinfo) -> Outcome<()> {
        let info = self.get();
        let hint = |of: fn(&AddrInfo) -> c_int| hints.map(of).filter(|hint| *hint != 0);
        let stream = answer.ai_socktype == libc::SOCK_STREAM;
        let (qp_type, space) = if stream { (qpt::RC, ps::TCP) } else { (qpt::UD, ps::UDP) };
        info.ai_qp_type = hint(|hints| hints.ai_qp_type).unwrap_or(qp_type.cast_signed());
        info.ai_port_space = hint(|hints| hints.ai_port_space).unwrap_or(space.cast_signed());
        let flags = hints.map_or(0, |hints| hints.ai_flags);
        let native =
            flags & FAMILY != 0 && flags & NUMERIC_HOST != 0 && hints.is_some_and(|hints| hints.ai_family == AF_IB);
        // SAFETY: the caller's promise.
        let (address, len) = unsafe {
            if native {
                let converted = convert(info.ai_port_space, answer)?;
                (copy(converted.bytes().as_ptr().cast(), 48)?, 48)
            } else {
                (copy(answer.ai_addr.cast(), answer.ai_addrlen)?, answer.ai_addrlen)
            }
        };
        info.ai_family = if native { AF_IB } else { answer.ai_family };
        let mut name = null_mut();
        if !answer.ai_canonname.is_null() {
            // SAFETY: a C string of the resolver.
            name = unsafe { libc::strdup(answer.ai_canonname) };
        }
        if flags & PASSIVE != 0 {
            info.ai_flags = PASSIVE;
            (info.ai_src_addr, info.ai_src_len, info.ai_src_canonname) = (address, len, name);
        } else {
            (info.ai_dst_addr, info.ai_dst_len, info.ai_dst_canonname) = (address, len, name);
        }
        Ok(())
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and not handed over.
        unsafe { release(self.0) };
    }
}

/// Translates the hints for the resolver.
fn question(hints: &AddrInfo) -> libc::addrinfo {
    // SAFETY: a C struct of numbers and pointers; zeros are a valid one.
    let mut asked: libc::addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERIC_HOST != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    asked.ai_family = if hints.ai_family == AF_IB { libc::AF_UNSPEC } else { hints.ai_family };
    asked.ai_socktype = match hints.ai_qp_type.cast_unsigned() {
        qpt::RC | qpt::UC | qpt::XRC_SEND | qpt::XRC_RECV => libc::SOCK_STREAM,
        qpt::UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    asked.ai_protocol = match (hints.ai_port_space.cast_unsigned(), asked.ai_socktype) {
        (ps::TCP, _) | (ps::IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (ps::IPOIB | ps::UDP, _) | (ps::IB, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => 0,
    };
    asked
}

/// Converts a numeric IPv6 address to an AF_IB address: the address is the GID, and a service id
/// stands for the port.
///
/// # Safety
/// `answer` is from the resolver's list.
unsafe fn convert(space: c_int, answer: &libc::addrinfo) -> Outcome<Address> {
    // SAFETY: the resolver's address is as long as its family says.
    let found = unsafe { sockaddr::read(answer.ai_addr.cast()) }?.and_then(|found| found.socket_addr());
    let Some(SocketAddr::V6(found)) = found else {
        return Err(refuse!(EINVAL, "rdma_getaddrinfo: an address of the family AF_IB is written as an IPv6 address"));
    };
    let space = u64::try_from(space).unwrap_or(0);
    let mut service_mask = 0;
    if space != 0 {
        service_mask |= SPACE_MASK;
    }
    if found.port() != 0 {
        service_mask |= PORT_MASK;
    }
    Ok(AddressIb {
        pkey: 0xffff,
        flow_info: u32::from_be(found.flowinfo()),
        gid: found.ip().octets(),
        service: (space << 16) + u64::from(found.port()),
        service_mask,
        scope: found.scope_id().into(),
    }
    .into())
}

/// A copy made with the C library's allocator.
///
/// # Safety
/// `from` is valid for `len` bytes.
unsafe fn copy(from: *const c_void, len: u32) -> Outcome<*mut c_void> {
    let len = usize::try_from(len).map_err(|_| Refusal(libc::EINVAL))?;
    // SAFETY: a plain allocation.
    let to = made(unsafe { libc::calloc(1, len.max(1)) })?;
    // SAFETY: both sides have that many bytes, and the destination is new.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast::<u8>(), len) };
    Ok(to)
}
