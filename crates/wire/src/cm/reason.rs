//! The reason of a rejection: the codes of REJ. Not the additional information. IBA 12.6.7.2.
//! Principal type: [`Reason`].

use std::fmt;

/// The reason of a rejection. Codes without a name here are kept unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(pub u16);

macro_rules! reasons {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Reason {
            $(
                #[doc = concat!("Code ", stringify!($code), ": ", $text, ".")]
                pub const $name: Reason = Reason($code);
            )*

            /// All reasons that have a name.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// The meaning of the code, in a few words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "a reason that the specification does not name",
                }
            }
        }
    };
}

reasons! {
    NO_QP = 1, "no queue pair available";
    NO_EEC = 2, "no end-to-end context available";
    NO_RESOURCES = 3, "no resources available";
    TIMEOUT = 4, "waited too long for an answer";
    UNSUPPORTED_REQUEST = 5, "the request is not supported";
    INVALID_COMM_ID = 6, "unknown communication id";
    INVALID_COMM_INSTANCE = 7, "unknown pair of communication ids";
    INVALID_SERVICE_ID = 8, "nobody listens at this service id";
    INVALID_TRANSPORT_TYPE = 9, "the transport type does not fit the service";
    STALE_CONNECTION = 10, "another connection here has the same QP number of the same adapter (a stale connection)";
    RDC_NOT_EXIST = 11, "there is no reliable datagram channel";
    INVALID_GID = 12, "the primary path's GID is not accepted";
    INVALID_LID = 13, "the primary path's LID is not accepted";
    INVALID_SL = 14, "the primary path's service level is not accepted";
    INVALID_TRAFFIC_CLASS = 15, "the primary path's traffic class is not accepted";
    INVALID_HOP_LIMIT = 16, "the primary path's hop limit is not accepted";
    INVALID_PACKET_RATE = 17, "the primary path's packet rate is not accepted";
    INVALID_ALT_GID = 18, "the alternate path's GID is not accepted";
    INVALID_ALT_LID = 19, "the alternate path's LID is not accepted";
    INVALID_ALT_SL = 20, "the alternate path's service level is not accepted";
    INVALID_ALT_TRAFFIC_CLASS = 21, "the alternate path's traffic class is not accepted";
    INVALID_ALT_HOP_LIMIT = 22, "the alternate path's hop limit is not accepted";
    INVALID_ALT_PACKET_RATE = 23, "the alternate path's packet rate is not accepted";
    PORT_CM_REDIRECT = 24, "ask the communication manager of another port";
    PORT_REDIRECT = 25, "ask at another port";
    INVALID_MTU = 26, "the path MTU is not accepted";
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "too few responder resources";
    CONSUMER_DEFINED = 28, "the program declined";
    INVALID_RNR_RETRY = 29, "the RNR retry count is not accepted";
    DUPLICATE_LOCAL_COMM_ID = 30, "this communication id is in use for another connection";
    INVALID_CLASS_VERSION = 31, "the class version is not supported";
    INVALID_FLOW_LABEL = 32, "the primary path's flow label is not accepted";
    INVALID_ALT_FLOW_LABEL = 33, "the alternate path's flow label is not accepted";
    VENDOR_OPTION_NOT_SUPPORTED = 35, "the vendor's options are not supported";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (reason {})", self.text(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_the_codes_and_words_of_the_specification() {
        assert_eq!(Reason::INVALID_SERVICE_ID.0, 8);
        assert_eq!(Reason::CONSUMER_DEFINED.to_string(), "the program declined (reason 28)");
        assert_eq!(Reason(999).to_string(), "a reason that the specification does not name (reason 999)");
        assert!(Reason::ALL.is_sorted());
    }

    #[test]
    fn every_reason_has_words_of_its_own() {
        let words: std::collections::BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.text()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(!words.contains(Reason(999).text()));
    }
}
