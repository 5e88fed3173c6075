//! Decides whether a queue pair may go from one state to another with given attributes, by the
//! table in [`crate::qp`]. The values of the attributes are not checked here, because that needs a
//! device and its ports. Principal function: [`check`].

use crate::qp::{Service, State, TRANSITIONS};
use std::fmt;
use std::ops::BitOr;

/// A set of queue pair attributes: the verbs' attribute mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Attributes(pub u32);

#[allow(missing_docs, reason = "the names are the verbs' own")]
impl Attributes {
    pub const STATE: Attributes = Attributes(1 << 0);
    pub const CUR_STATE: Attributes = Attributes(1 << 1);
    pub const EN_SQD_ASYNC_NOTIFY: Attributes = Attributes(1 << 2);
    pub const ACCESS_FLAGS: Attributes = Attributes(1 << 3);
    pub const PKEY_INDEX: Attributes = Attributes(1 << 4);
    pub const PORT: Attributes = Attributes(1 << 5);
    pub const QKEY: Attributes = Attributes(1 << 6);
    pub const AV: Attributes = Attributes(1 << 7);
    pub const PATH_MTU: Attributes = Attributes(1 << 8);
    pub const TIMEOUT: Attributes = Attributes(1 << 9);
    pub const RETRY_CNT: Attributes = Attributes(1 << 10);
    pub const RNR_RETRY: Attributes = Attributes(1 << 11);
    pub const RQ_PSN: Attributes = Attributes(1 << 12);
    pub const MAX_QP_RD_ATOMIC: Attributes = Attributes(1 << 13);
    pub const ALT_PATH: Attributes = Attributes(1 << 14);
    pub const MIN_RNR_TIMER: Attributes = Attributes(1 << 15);
    pub const SQ_PSN: Attributes = Attributes(1 << 16);
    pub const MAX_DEST_RD_ATOMIC: Attributes = Attributes(1 << 17);
    pub const PATH_MIG_STATE: Attributes = Attributes(1 << 18);
    pub const CAP: Attributes = Attributes(1 << 19);
    pub const DEST_QPN: Attributes = Attributes(1 << 20);
    pub const RATE_LIMIT: Attributes = Attributes(1 << 25);

    /// The empty set.
    pub const NONE: Attributes = Attributes(0);

    /// Whether all of `others` are in this set.
    #[must_use]
    pub const fn contains(self, others: Attributes) -> bool {
        self.0 & others.0 == others.0
    }

    /// The attributes that are in this set and not in `others`.
    #[must_use]
    pub const fn without(self, others: Attributes) -> Attributes {
        Attributes(self.0 & !others.0)
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Attributes {
    type Output = Attributes;
    fn bitor(self, other: Attributes) -> Attributes {
        Attributes(self.0 | other.0)
    }
}

/// Names of bits 0 to 20. RATE_LIMIT has a higher bit and is treated separately.
const NAMES: [&str; 21] = [
    "STATE",
    "CUR_STATE",
    "EN_SQD_ASYNC_NOTIFY",
    "ACCESS_FLAGS",
    "PKEY_INDEX",
    "PORT",
    "QKEY",
    "AV",
    "PATH_MTU",
    "TIMEOUT",
    "RETRY_CNT",
    "RNR_RETRY",
    "RQ_PSN",
    "MAX_QP_RD_ATOMIC",
    "ALT_PATH",
    "MIN_RNR_TIMER",
    "SQ_PSN",
    "MAX_DEST_RD_ATOMIC",
    "PATH_MIG_STATE",
    "CAP",
    "DEST_QPN",
];

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for bit in (0..32).filter(|bit| self.0 >> bit & 1 == 1) {
            let apart = (1 << bit == Attributes::RATE_LIMIT.0).then_some(&"RATE_LIMIT");
            match NAMES.get(bit).or(apart) {
                Some(name) => write!(f, "{separator}{name}")?,
                None => write!(f, "{separator}bit {bit}")?,
            }
            separator = " ";
        }
        Ok(())
    }
}

/// Why a transition is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The table has no such transition.
    #[error("{service} QPs do not go from {current} to {next}")]
    NoSuchTransition {
        /// The service.
        service: Service,
        /// The current state.
        current: State,
        /// The requested state.
        next: State,
    },
    /// A required attribute is missing.
    #[error("{service} {current} to {next} needs {missing} too")]
    Missing {
        /// The service.
        service: Service,
        /// The current state.
        current: State,
        /// The requested state.
        next: State,
        /// The missing attributes.
        missing: Attributes,
    },
    /// An attribute is given that this transition does not take.
    #[error("{service} {current} to {next} does not take {extra}")]
    NotTaken {
        /// The service.
        service: Service,
        /// The current state.
        current: State,
        /// The requested state.
        next: State,
        /// The attributes that are not taken.
        extra: Attributes,
    },
}

/// The attributes of `mask` that apply to a service. Programs name the attributes of RC for both
/// ends of an XRC connection. Attributes of the other end are ignored, as the verbs of Linux ignore
/// them.
#[must_use]
pub fn counting(service: Service, mask: Attributes) -> Attributes {
    let others = match service {
        Service::XrcIni => Attributes::MAX_DEST_RD_ATOMIC | Attributes::MIN_RNR_TIMER,
        Service::XrcTgt => Attributes::MAX_QP_RD_ATOMIC | Attributes::RETRY_CNT | Attributes::RNR_RETRY,
        Service::Rc | Service::Uc | Service::Ud => Attributes::NONE,
    };
    mask.without(others)
}

/// Whether a queue pair of `service` may go from `current` to `next` with the attributes in `mask`.
/// `STATE` itself may be in the mask or not. If `CUR_STATE` is given, the caller checks its value.
///
/// # Errors
/// See [`ModifyError`]. A program gets EINVAL for all of them.
pub fn check(service: Service, current: State, next: State, mask: Attributes) -> Result<(), ModifyError> {
    let rule = TRANSITIONS
        .iter()
        .find(|(from, to, _)| from.contains(&current) && *to == next)
        .and_then(|(_, _, rules)| rules[service as usize]);
    let Some((required, optional)) = rule else {
        return Err(ModifyError::NoSuchTransition { service, current, next });
    };
    let missing = required.without(mask);
    if !missing.is_empty() {
        return Err(ModifyError::Missing { service, current, next, missing });
    }
    let extra = mask.without(required | optional | Attributes::STATE);
    if !extra.is_empty() {
        return Err(ModifyError::NotTaken { service, current, next, extra });
    }
    Ok(())
}
