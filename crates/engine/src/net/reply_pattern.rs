//! Whether a program answers each message it receives: then an acknowledgement can wait for the
//! answer (see `delayed_ack.rs`). Principal type: [`ReplyPattern`].

/// How often in a row a program must have posted after a receive.
const REPLIES: u8 = 2;

/// What a program does after a receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplyPattern {
    replies: u8,
    /// The program has received and not posted since.
    received: bool,
}

impl ReplyPattern {
    /// The program gets a message; returns whether it is likely to reply.
    pub(crate) fn receive(&mut self) -> bool {
        if std::mem::replace(&mut self.received, true) {
            self.replies = 0;
        }
        self.is_reply_due()
    }

    /// Whether the program has received a message and is likely to reply.
    pub(crate) fn is_reply_due(&self) -> bool {
        self.received && self.replies >= REPLIES
    }

    /// The program posts.
    pub(crate) fn post(&mut self) {
        if std::mem::take(&mut self.received) {
            self.replies = (self.replies + 1).min(REPLIES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_pattern_takes_two_replies_and_ends_with_one_missing() {
        let mut pattern = ReplyPattern::default();
        assert!(!pattern.receive());
        pattern.post();
        assert!(!pattern.receive());
        pattern.post();
        pattern.post();
        assert!(!pattern.is_reply_due(), "nothing was received since");
        assert!(pattern.receive(), "it has replied twice");
        assert!(pattern.is_reply_due());
        assert!(!pattern.receive(), "and now it has not");
        assert!(!pattern.is_reply_due());
        pattern.post();
        assert!(!pattern.receive());
    }
}
