//! Copies of a stream's bytes for captures. The principal function is [`Qp::show_stream`].
//!
//! FPDUs appear one by one when they are handed to the output, or when fault rules have seen them.
//! Other bytes appear as the socket gives them.

use abi::capture::{CaptureRecord, path, record_flag};

use super::part::Addresses;
use crate::qp::Qp;

/// The most bytes of a record. An IP packet holds no more than twice as many.
const MOST: usize = 32 * 1024 + 64;

impl Qp {
    /// Shows bytes of a connection, or its end. `flags` are those of the record.
    pub(super) fn show_stream(&self, addresses: &Addresses, path: u32, flags: u16, bytes: &[u8]) {
        if self.engine().is_capturing() {
            self.copy_stream(addresses, path, flags, (bytes, ""));
        }
    }

    /// Shows an FPDU, with words about its fault.
    pub(super) fn show_fpdu(&self, addresses: &Addresses, path: u32, bytes: &[u8], words: &str) {
        if self.engine().is_capturing() {
            self.copy_stream(addresses, path, 0, (bytes, words));
        }
    }

    #[cold]
    fn copy_stream(&self, addresses: &Addresses, path: u32, flags: u16, (bytes, words): (&[u8], &str)) {
        let Addresses { local, remote } = *addresses;
        let leaves = path == path::WIRE_OUT;
        let ((from, from_port), (to, to_port)) = if leaves { (local, remote) } else { (remote, local) };
        let (src_qp, dest_qp) = if leaves { (self.qpn(), 0) } else { (0, self.qpn()) };
        let flags = flags | record_flag::TCP;
        let about = CaptureRecord {
            path,
            src_qp,
            dest_qp,
            from,
            to,
            from_port,
            id: to_port,
            flags,
            ..CaptureRecord::default()
        };
        let (first, rest) = bytes.split_at(bytes.len().min(MOST));
        self.engine().capture.packet(&about, first, words);
        for part in rest.chunks(MOST) {
            // Where frames begin here is not known.
            let about = CaptureRecord { flags: flags | record_flag::INSIDE, ..about };
            self.engine().capture.packet(&about, part, "");
        }
    }
}
