//! x
use crate::{ddp, fpdu, rdmap};
/// The FPDU of a Terminate message.
pub(crate) fn terminate_fpdu(sender: &mut fpdu::Sender, payload: &[u8]) -> Vec<u8> {
    let place = ddp::Place::Untagged { invalidate: ddp::Stag(0), queue: rdmap::QUEUE_TERMINATE, msn: 1, offset: 0 };
    let mut header = [0; ddp::UNTAGGED_LEN];
    let len = ddp::Header { last: true, rdmap: rdmap::Opcode::Terminate.emit(), place }.emit(&mut header);
    let mut out = vec![0; sender.room(len + payload.len())];
    let fetch = |offset: usize, piece: &mut [u8]| {
        piece.copy_from_slice(&payload[offset..offset + piece.len()]);
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(written) = sender.frame(&mut out, &header[..len], payload.len(), fetch);
    out.truncate(written);
    out
}
