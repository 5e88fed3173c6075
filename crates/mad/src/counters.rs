//! The counters of a port, each with 64 bits, and how they are seen in attributes with fewer bits.
//! Not who counts. Principal types: [`Counters`], [`Counter`].

use wire::layout::Bits;
use wire::perf::{PortCounters, PortCountersExtended};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the fields of wire::perf, which are explained there")]
pub enum Counter {
    SymbolErrors,
    LinkRecoveries,
    LinkDowned,
    ReceiveErrors,
    RemotePhysicalErrors,
    SwitchRelayErrors,
    XmitDiscards,
    XmitConstraintErrors,
    ReceiveConstraintErrors,
    LocalIntegrityErrors,
    BufferOverruns,
    Vl15Dropped,
    XmitData,
    ReceiveData,
    XmitPackets,
    ReceivePackets,
    XmitWait,
    Qp1Dropped,
    UnicastXmitPackets,
    UnicastReceivePackets,
    MulticastXmitPackets,
    MulticastReceivePackets,
    DiscardsInactive,
    DiscardsMtu,
    DiscardsSwitchLifeTime,
    DiscardsHeadOfQueue,
    ReceivedLocalPhysical,
    ReceivedMalformed,
    ReceivedBufferOverrun,
    ReceivedDlidMapping,
    ReceivedVlMapping,
    ReceivedLooping,
}

const COUNT: usize = Counter::ReceivedLooping as usize + 1;

/// The counters of one port. They need no memory before one of them counts.
#[derive(Clone, Debug, Default)]
pub struct Counters(Option<Box<[u64; COUNT]>>);

/// A counter in an attribute: its first bit, its bits, and its bit in the selection.
type CounterField = (Counter, usize, usize, u32);

/// The places in [`PortCounters`]. Bits 16 and up of the selection are `select2`.
pub const NARROW: &[CounterField] = &[
    (Counter::SymbolErrors, 32, 16, 0),
    (Counter::LinkRecoveries, 48, 8, 1),
    (Counter::LinkDowned, 56, 8, 2),
    (Counter::ReceiveErrors, 64, 16, 3),
    (Counter::RemotePhysicalErrors, 80, 16, 4),
    (Counter::SwitchRelayErrors, 96, 16, 5),
    (Counter::XmitDiscards, 112, 16, 6),
    (Counter::XmitConstraintErrors, 128, 8, 7),
    (Counter::ReceiveConstraintErrors, 136, 8, 8),
    (Counter::LocalIntegrityErrors, 152, 4, 9),
    (Counter::BufferOverruns, 156, 4, 10),
    (Counter::Vl15Dropped, 176, 16, 11),
    (Counter::XmitData, 192, 32, 12),
    (Counter::ReceiveData, 224, 32, 13),
    (Counter::XmitPackets, 256, 32, 14),
    (Counter::ReceivePackets, 288, 32, 15),
    (Counter::XmitWait, 320, 32, 16),
    (Counter::Qp1Dropped, 160, 16, 17),
];

/// The places in [`PortCountersExtended`]. Bits 16 and up of the selection are `select2`.
pub const WIDE: &[CounterField] = &[
    (Counter::XmitData, 64, 64, 0),
    (Counter::ReceiveData, 128, 64, 1),
    (Counter::XmitPackets, 192, 64, 2),
    (Counter::ReceivePackets, 256, 64, 3),
    (Counter::UnicastXmitPackets, 320, 64, 4),
    (Counter::UnicastReceivePackets, 384, 64, 5),
    (Counter::MulticastXmitPackets, 448, 64, 6),
    (Counter::MulticastReceivePackets, 512, 64, 7),
    (Counter::SymbolErrors, 576, 64, 16),
    (Counter::LinkRecoveries, 640, 64, 17),
    (Counter::LinkDowned, 704, 64, 18),
    (Counter::ReceiveErrors, 768, 64, 19),
    (Counter::RemotePhysicalErrors, 832, 64, 20),
    (Counter::SwitchRelayErrors, 896, 64, 21),
    (Counter::XmitDiscards, 960, 64, 22),
    (Counter::XmitConstraintErrors, 1024, 64, 23),
    (Counter::ReceiveConstraintErrors, 1088, 64, 24),
    (Counter::LocalIntegrityErrors, 1152, 64, 25),
    (Counter::BufferOverruns, 1216, 64, 26),
    (Counter::Vl15Dropped, 1280, 64, 27),
    (Counter::XmitWait, 1344, 64, 28),
    (Counter::Qp1Dropped, 1408, 64, 29),
];

/// The places in `PortXmitDiscardDetails`.
pub const DISCARDS: &[CounterField] = &[
    (Counter::DiscardsInactive, 32, 16, 0),
    (Counter::DiscardsMtu, 48, 16, 1),
    (Counter::DiscardsSwitchLifeTime, 64, 16, 2),
    (Counter::DiscardsHeadOfQueue, 80, 16, 3),
];

/// The places in `PortReceiveErrorDetails`.
pub const RECEIVE_ERRORS: &[CounterField] = &[
    (Counter::ReceivedLocalPhysical, 32, 16, 0),
    (Counter::ReceivedMalformed, 48, 16, 1),
    (Counter::ReceivedBufferOverrun, 64, 16, 2),
    (Counter::ReceivedDlidMapping, 80, 16, 3),
    (Counter::ReceivedVlMapping, 96, 16, 4),
    (Counter::ReceivedLooping, 112, 16, 5),
];

/// The data of the longest of these attributes.
pub type Data = [u8; PortCountersExtended::LEN];

const _: () = assert!(PortCounters::LEN <= PortCountersExtended::LEN);

impl Counters {
    /// Adds to a counter; it stays at its end.
    pub fn add(&mut self, counter: Counter, more: u64) {
        if more != 0 {
            let value = &mut self.all_mut()[counter as usize];
            *value = value.saturating_add(more);
        }
    }

    /// The value of a counter.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.as_ref().map_or(0, |all| all[counter as usize])
    }

    fn all_mut(&mut self) -> &mut [u64; COUNT] {
        self.0.get_or_insert_with(|| Box::new([0; COUNT]))
    }

    /// Writes the counters to an attribute. Values that are too large stay at the field's end.
    pub fn show(&self, places: &[CounterField], data: &mut Data) {
        for (counter, at, bits, _) in places {
            self.value(*counter).min(u64::MAX >> (64 - bits)).put(data, *at, *bits);
        }
    }

    /// Sets the selected counters to the values of an attribute.
    pub fn set(&mut self, places: &[CounterField], select: u64, data: &Data) {
        for (counter, at, bits, bit) in places {
            if select >> bit & 1 != 0 {
                self.all_mut()[*counter as usize] = u64::get(data, *at, *bits);
            }
        }
    }

    /// Adds the counters of another port, for the sum of all ports.
    pub fn merge(&mut self, other: &Counters) {
        let Some(other) = &other.0 else { return };
        for (own, other) in self.all_mut().iter_mut().zip(other.iter()) {
            *own = own.saturating_add(*other);
        }
    }
}
