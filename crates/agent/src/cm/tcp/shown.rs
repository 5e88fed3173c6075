//! Captures of start-up frames, and of connections that end before an engine has them. Adds to
//! [`Manager`].

use std::net::{IpAddr, SocketAddr, TcpStream};

use abi::capture::{CaptureRecord, path, record_flag};

use crate::cm::Manager;

/// Bytes that arrived, and the flags of their end.
pub(super) const ARRIVED: u32 = path::WIRE_IN;
/// Bytes that leave.
pub(super) const LEAVES: u32 = path::WIRE_OUT;

impl Manager {
    /// Shows captures the bytes of a connection. `name` is the id, or the listener.
    pub(super) fn show_frame(&self, name: u32, socket: &TcpStream, path: u32, bytes: &[u8]) {
        self.show_bytes(name, socket, path, 0, bytes);
    }

    /// Shows captures that this side has sent its end.
    pub(super) fn show_end(&self, name: u32, socket: &TcpStream) {
        self.show_bytes(name, socket, LEAVES, record_flag::FIN, &[]);
    }

    fn show_bytes(&self, name: u32, socket: &TcpStream, path: u32, flags: u16, bytes: &[u8]) {
        let watchers = self.mail.outlets.watchers();
        if !watchers.are_there() {
            return;
        }
        let (Ok(local), Ok(remote)) = (socket.local_addr(), socket.peer_addr()) else { return };
        let (from, to) = if path == LEAVES { (local, remote) } else { (remote, local) };
        let Some(id) = self.ids.get(name) else { return };
        let device = id.attachment.map_or(0, |attachment| attachment.device as u32 + 1);
        let about = CaptureRecord {
            path,
            device,
            from: octets(from),
            to: octets(to),
            from_port: from.port(),
            id: to.port(),
            flags: flags | record_flag::TCP,
            ..CaptureRecord::default()
        };
        let user = self.channels.get(&id.channel).map_or(0, |owner| owner.channel.peer.uid);
        watchers.show_root(&about, bytes, "");
        watchers.show_user(user, &about, bytes, "");
    }
}

fn octets(at: SocketAddr) -> [u8; 16] {
    match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
