//! A management datagram of the connection manager.

use wire::cm::Message;
use wire::mad::MAD_LEN;

pub(crate) fn run(bytes: &[u8]) {
    let mut mad = [0; MAD_LEN];
    let len = bytes.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&bytes[..len]);
    if let Ok((header, message)) = Message::parse(&mad) {
        let again = message.emit(header.transaction, header.modifier);
        let (header_again, message_again) = Message::parse(&again).expect("what was put together");
        assert_eq!((header_again.transaction, header_again.modifier), (header.transaction, header.modifier));
        assert_eq!(message_again, message);
        assert!(!format!("{message:?}").is_empty());
    }
}
