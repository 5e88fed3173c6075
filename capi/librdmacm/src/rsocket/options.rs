//! `rsetsockopt` and `rgetsockopt`: the options of `rsocket(7)`; socket options that programs
//! commonly set and that have no effect here; and for datagram sockets the options of the UDP
//! socket.

use super::datagram::DatagramSocket;
use super::settings::Settings;
use super::stream::{Phase, StreamSocket};
use super::table::{Socket, current, socket};
use super::waiting::refusal;
use crate::entry::{self, Outcome, Refusal};
use libc::{c_int, c_void, linger, timeval};
use rsocket::connect::iomap_size;
use rsocket::stream::{LOW_WATER, MOST_QUEUE};
use std::sync::Arc;
use std::time::Duration;

/// `SOL_RDMA` of `rsocket.h`, and its options.
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;

/// `RDMA_OPTION_ID` and its options, of `rdma_cma.h`.
const OPTION_ID: c_int = 0;
const OPTION_ID_TOS: c_int = 0;
const OPTION_ID_REUSEADDR: c_int = 1;
const OPTION_ID_AFONLY: c_int = 2;

const UNKNOWN: Refusal = Refusal(libc::ENOTSUP);
const INVALID: Refusal = Refusal(libc::EINVAL);

/// `rsetsockopt`.
///
/// # Safety
/// `value` has `length` bytes.
pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_int {
    entry::or_minus_one("rsetsockopt", || {
        let socket = socket(fd)?;
        if value.is_null() {
            return Err(Refusal(libc::EFAULT));
        }
        let length = usize::try_from(length).map_err(|_| INVALID)?;
        // SAFETY: the caller's promise.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
        match &socket {
            Socket::Stream(stream) => set(stream, level, name, value)?,
            Socket::Datagram(datagram) => set_datagram(datagram, level, name, value)?,
            Socket::Epoll(_) => return Err(Refusal(libc::ENOTSOCK)),
        }
        Ok(0)
    })
}

/// The option's value as a number. Fails with EINVAL if it is too short.
fn number(value: &[u8]) -> Outcome<c_int> {
    value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)).ok_or(INVALID)
}

/// A size, which is never negative.
fn count(value: &[u8]) -> Outcome<u32> {
    u32::try_from(number(value)?).map_err(|_| INVALID)
}

/// A buffer size, doubled as Linux doubles it.
fn doubled(value: &[u8]) -> Outcome<u32> {
    Ok(count(value)?.saturating_mul(2).clamp(2 * LOW_WATER, 1 << 30))
}

/// A number of queue entries.
fn entries(value: &[u8]) -> Outcome<u16> {
    Ok(u16::try_from(count(value)?).unwrap_or(MOST_QUEUE).min(MOST_QUEUE))
}

/// A time limit; zero means no limit.
fn limit(value: &[u8]) -> Outcome<Option<Duration>> {
    let (seconds, rest) = value.split_first_chunk::<8>().ok_or(INVALID)?;
    let micros = rest.first_chunk::<8>().ok_or(INVALID)?;
    let part = |bytes: [u8; 8]| u64::try_from(i64::from_ne_bytes(bytes)).map_err(|_| Refusal(libc::EDOM));
    let limit = Duration::from_secs(part(*seconds)?).saturating_add(Duration::from_micros(part(*micros)?));
    Ok((!limit.is_zero()).then_some(limit))
}

fn set(stream: &Arc<StreamSocket>, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
    let mut state = stream.state();
    let fresh = matches!(state.phase, Phase::New | Phase::Bound);
    let unconnected = fresh || state.phase == Phase::Listening;
    let keepalive = {
        let settings = &mut state.settings;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {
                settings.reuse_address = number(value)? != 0;
                let set = stream.endpoint().set_option(OPTION_ID, OPTION_ID_REUSEADDR, value);
                // It is too late for a socket that has an address, and ignoring it does no harm.
                return if fresh { set } else { Ok(()) };
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                settings.keepalive = number(value)? != 0;
                true
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                settings.keepalive_time = count(value)?.max(1);
                if number(value)? == 0 {
                    return Err(INVALID);
                }
                true
            }
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                settings.v6_only = number(value)? != 0;
                return stream.endpoint().set_option(OPTION_ID, OPTION_ID_AFONLY, value);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                settings.traffic_class = number(value)?;
                let byte = [u8::try_from(settings.traffic_class & 0xFF).unwrap_or(0)];
                return stream.endpoint().set_option(OPTION_ID, OPTION_ID_TOS, &byte);
            }
            (SOL_RDMA, _) if !unconnected => return Err(INVALID),
            (SOL_RDMA, RDMA_ROUTE) => {
                settings.route = Some(value.to_vec());
                false
            }
            _ => {
                set_common(settings, level, name, value)?;
                false
            }
        }
    };
    let seconds = state.settings.keepalive.then_some(state.settings.keepalive_time);
    drop(state);
    if keepalive {
        current().keepalive.set(stream, seconds);
    }
    Ok(())
}

/// Options whose values are only stored.
fn set_common(settings: &mut Settings, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => settings.receive_buffer = doubled(value)?,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => settings.send_buffer = doubled(value)?,
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let (on, rest) = value.split_first_chunk::<4>().ok_or(INVALID)?;
            settings.linger = if c_int::from_ne_bytes(*on) == 0 { None } else { Some(number(rest)?) };
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => settings.receive_limit = limit(value)?,
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => settings.send_limit = limit(value)?,
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => settings.oob_inline = number(value)? != 0,
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => settings.no_delay = number(value)? != 0,
        // These options control how TCP works. The queue pair does not need them.
        (libc::SOL_SOCKET, libc::SO_BROADCAST | libc::SO_PRIORITY)
        | (
            libc::IPPROTO_TCP,
            libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG | libc::TCP_CONGESTION | libc::TCP_QUICKACK,
        )
        | (
            libc::IPPROTO_TCP,
            libc::TCP_CORK
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_DEFER_ACCEPT
            | libc::TCP_SYNCNT
            | libc::TCP_NOTSENT_LOWAT,
        ) => {}
        (SOL_RDMA, RDMA_SQSIZE) => settings.send_queue = entries(value)?,
        (SOL_RDMA, RDMA_RQSIZE) => settings.receive_queue = entries(value)?,
        (SOL_RDMA, RDMA_INLINE) => settings.inline = count(value)?.min(u32::from(MOST_QUEUE)),
        (SOL_RDMA, RDMA_IOMAPSIZE) => settings.iomap = iomap_size(count(value)?),
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

fn set_datagram(datagram: &DatagramSocket, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
    if level != SOL_RDMA {
        let length = u32::try_from(value.len()).map_err(|_| INVALID)?;
        // SAFETY: the socket is open; `value` has `length` bytes.
        if unsafe { libc::setsockopt(datagram.fd(), level, name, value.as_ptr().cast(), length) } != 0 {
            return Err(crate::verbs::last_error());
        }
    }
    match set_common(&mut datagram.state().settings, level, name, value) {
        Err(_) if level != SOL_RDMA => Ok(()),
        other => other,
    }
}

/// `rgetsockopt`.
///
/// # Safety
/// `value` has as many bytes as `length` says.
pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut u32,
) -> c_int {
    entry::or_minus_one("rgetsockopt", || {
        let socket = socket(fd)?;
        if value.is_null() || length.is_null() {
            return Err(Refusal(libc::EFAULT));
        }
        // SAFETY: the caller's promise.
        let room = usize::try_from(unsafe { length.read() }).map_err(|_| INVALID)?;
        let answer = match &socket {
            Socket::Stream(stream) => get(stream, level, name)?,
            Socket::Datagram(datagram) => get_datagram(datagram, level, name)?,
            Socket::Epoll(_) => return Err(Refusal(libc::ENOTSOCK)),
        };
        if (level, name) == (SOL_RDMA, RDMA_ROUTE) && room < answer.len() {
            return Err(INVALID);
        }
        let count = room.min(answer.len());
        // SAFETY: the caller's promise; no more bytes than there is room for.
        unsafe { std::ptr::copy_nonoverlapping(answer.as_ptr(), value.cast::<u8>(), count) };
        // SAFETY: the caller's promise.
        unsafe { length.write(u32::try_from(count).unwrap_or(0)) };
        Ok(0)
    })
}

fn int<T: TryInto<c_int>>(value: T) -> Vec<u8> {
    value.try_into().unwrap_or(c_int::MAX).to_ne_bytes().to_vec()
}

fn get(stream: &StreamSocket, level: c_int, name: c_int) -> Outcome<Vec<u8>> {
    let mut state = stream.state();
    let path = || stream.endpoint().path();
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => int(std::mem::replace(&mut state.error, 0)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => int(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => int(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => int(stream.family()),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => int(c_int::from(state.phase == Phase::Listening)),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
            int(path().filter(|path| path.mtu > 0).map_or(2048, |path| 128 << path.mtu.min(5)))
        }
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => b"rsocket\0".to_vec(),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => int(1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => int(state.settings.keepalive_time),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            let mut info = vec![0; size_of::<libc::tcp_info>()];
            // TCP_ESTABLISHED, TCP_CLOSE.
            info[0] = if state.phase == Phase::Connected { 1 } else { 7 };
            info
        }
        (SOL_RDMA, RDMA_ROUTE) => match &state.settings.route {
            Some(route) => route.clone(),
            None => path().map_or_else(Vec::new, |path| path_data(&path)),
        },
        _ => get_common(&state.settings, level, name)?,
    })
}

/// The stored values, or the defaults.
fn get_common(settings: &Settings, level: c_int, name: c_int) -> Outcome<Vec<u8>> {
    let switch = |on: bool| int(c_int::from(on));
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => switch(settings.reuse_address),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => switch(settings.keepalive),
        (libc::SOL_SOCKET, libc::SO_OOBINLINE) => switch(settings.oob_inline),
        (libc::SOL_SOCKET, libc::SO_BROADCAST) => switch(false),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(settings.receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(settings.send_buffer),
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            let value =
                linger { l_onoff: c_int::from(settings.linger.is_some()), l_linger: settings.linger.unwrap_or(0) };
            [value.l_onoff.to_ne_bytes(), value.l_linger.to_ne_bytes()].concat()
        }
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => time(settings.receive_limit),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => time(settings.send_limit),
        (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => int(settings.traffic_class),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => switch(settings.no_delay),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => switch(settings.v6_only),
        (SOL_RDMA, RDMA_SQSIZE) => int(settings.send_queue),
        (SOL_RDMA, RDMA_RQSIZE) => int(settings.receive_queue),
        (SOL_RDMA, RDMA_INLINE) => int(settings.inline),
        (SOL_RDMA, RDMA_IOMAPSIZE) => int(settings.iomap),
        _ => return Err(UNKNOWN),
    })
}

fn time(limit: Option<Duration>) -> Vec<u8> {
    let limit = limit.unwrap_or_default();
    let value =
        timeval { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), tv_usec: limit.subsec_micros().into() };
    [value.tv_sec.to_ne_bytes(), value.tv_usec.to_ne_bytes()].concat()
}

fn get_datagram(datagram: &DatagramSocket, level: c_int, name: c_int) -> Outcome<Vec<u8>> {
    match (level, name) {
        (SOL_RDMA, _) => get_common(&datagram.state().settings, level, name),
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            if let Some(error) = datagram.state().error.take() {
                return Ok(int(error.0));
            }
            rustix::net::sockopt::socket_error(super::waiting::borrowed(datagram.fd()))
                .map(|error| int(error.err().map_or(0, |errno| errno.raw_os_error())))
                .map_err(refusal)
        }
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(int(datagram.family())),
        _ => {
            let (mut room, mut length) = ([0_u8; 128], 128_u32);
            // SAFETY: the socket is open; `room` has `length` bytes.
            let code =
                unsafe { libc::getsockopt(datagram.fd(), level, name, room.as_mut_ptr().cast(), &raw mut length) };
            if code != 0 {
                return Err(crate::verbs::last_error());
            }
            Ok(room.iter().copied().take(usize::try_from(length).unwrap_or(0)).collect())
        }
    }
}

/// A path as `struct ibv_path_data` (`sa.h`), the format of `RDMA_ROUTE`: flags and a path record
/// of the IBA.
fn path_data(path: &crate::layout::SaPathRec) -> Vec<u8> {
    let mut data = vec![0_u8; 72];
    // The selector "exactly", in the upper two bits of fields that have a selector.
    let exactly = |value: u8| value | 2 << 6;
    data[0..4].copy_from_slice(&u32::from(path.preference).to_ne_bytes());
    let record = &mut data[8..];
    record[8..24].copy_from_slice(&path.dgid.0);
    record[24..40].copy_from_slice(&path.sgid.0);
    record[40..42].copy_from_slice(&path.dlid.to_ne_bytes());
    record[42..44].copy_from_slice(&path.slid.to_ne_bytes());
    let flow = u32::from_be(path.flow_label) << 8 | u32::from(path.hop_limit);
    record[44..48].copy_from_slice(&flow.to_be_bytes());
    record[48] = path.traffic_class;
    record[49] = u8::from(path.reversible != 0) << 7 | 1;
    record[50..52].copy_from_slice(&path.pkey.to_ne_bytes());
    record[52..54].copy_from_slice(&u16::from(path.sl).to_be_bytes());
    (record[54], record[55], record[56]) = (exactly(path.mtu), exactly(path.rate), exactly(path.packet_life_time));
    data
}
