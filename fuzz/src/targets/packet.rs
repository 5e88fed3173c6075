//! A packet from its BTH on.

use wire::Headers;
use wire::icrc::Envelope;

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(headers) = Headers::parse(bytes) {
        assert!(headers.len() <= bytes.len());
        let mut again = vec![0; headers.len()];
        assert_eq!(headers.emit(&mut again), Ok(again.len()));
        assert_eq!(Headers::parse(&again), Ok(headers));
        assert!(headers.emit(&mut vec![0; headers.len() - 1]).is_err());
    }
    // With IPv4, where the number of the packet is part of it, and with IPv6.
    let v4 = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
    let id = u16::from(bytes.first().copied().unwrap_or(0));
    for envelope in [Envelope::new(&[1; 16], &[2; 16], 3), Envelope::new(&v4(1), &v4(2), 3)] {
        if let Some(found) = envelope.check(bytes, id) {
            let (packet, icrc) = bytes.split_at(bytes.len() - 4);
            assert_eq!(envelope.icrc(found, packet), icrc, "the number that was found makes it fit");
        }
        let covered = &bytes[..bytes.len().min(4096)];
        let packet = [covered, &envelope.icrc(id, covered)].concat();
        assert_eq!(envelope.check(&packet, id), (packet.len() >= 16).then_some(id));
    }
}
