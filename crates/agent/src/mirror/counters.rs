//! The counters of a port in the mirror: `ports/N/counters` and `ports/N/hw_counters` of sysfs. The
//! path redirector asks for them before a program opens one. Adds to [`Mirror`].

use std::io;
use std::time::Duration;

use abi::queue::hw_counter;
use mad::counters::Counter;

use super::{Mirror, home};
use crate::context::HwCounters;
use crate::device::Device;

/// For how long values are not counted again, at least. Programs that read all counters of a port
/// open many files, and looking at all queue pairs is work.
pub(crate) const AGE: Duration = Duration::from_millis(2);

/// The names of the counters in sysfs.
pub(crate) const COUNTERS: [(&str, Counter); 21] = [
    ("VL15_dropped", Counter::Vl15Dropped),
    ("excessive_buffer_overrun_errors", Counter::BufferOverruns),
    ("link_downed", Counter::LinkDowned),
    ("link_error_recovery", Counter::LinkRecoveries),
    ("local_link_integrity_errors", Counter::LocalIntegrityErrors),
    ("multicast_rcv_packets", Counter::MulticastReceivePackets),
    ("multicast_xmit_packets", Counter::MulticastXmitPackets),
    ("port_rcv_constraint_errors", Counter::ReceiveConstraintErrors),
    ("port_rcv_data", Counter::ReceiveData),
    ("port_rcv_errors", Counter::ReceiveErrors),
    ("port_rcv_packets", Counter::ReceivePackets),
    ("port_rcv_remote_physical_errors", Counter::RemotePhysicalErrors),
    ("port_rcv_switch_relay_errors", Counter::SwitchRelayErrors),
    ("port_xmit_constraint_errors", Counter::XmitConstraintErrors),
    ("port_xmit_data", Counter::XmitData),
    ("port_xmit_discards", Counter::XmitDiscards),
    ("port_xmit_packets", Counter::XmitPackets),
    ("port_xmit_wait", Counter::XmitWait),
    ("symbol_error", Counter::SymbolErrors),
    ("unicast_rcv_packets", Counter::UnicastReceivePackets),
    ("unicast_xmit_packets", Counter::UnicastXmitPackets),
];

/// The values of a port's counters.
#[derive(Debug)]
pub(crate) struct PortCounters {
    /// Those of performance management, in the order of [`COUNTERS`].
    pub(crate) standard: [u64; COUNTERS.len()],
    /// What programs have counted; not at a port of iWARP.
    pub(crate) hardware: Option<HwCounters>,
}

impl PortCounters {
    /// The counters of a port that has not been used.
    pub(super) fn zeros(has_packets: bool) -> Self {
        Self { standard: [0; COUNTERS.len()], hardware: has_packets.then(HwCounters::default) }
    }
}

/// The counters of `hw_counters` with their names.
pub(crate) fn named(counters: HwCounters) -> impl Iterator<Item = (String, u64)> {
    hw_counter::ALL.iter().map(|counter| counter.name.to_lowercase()).zip(counters)
}

impl Mirror {
    /// Shows the counters of a port.
    pub(crate) fn show_counters(&self, device: &Device, port: u8, counters: &PortCounters) -> io::Result<()> {
        if self.only.is_some_and(|only| only != device.index) {
            return Ok(());
        }
        let at = home(device).join(format!("ports/{port}"));
        for ((name, _), value) in COUNTERS.iter().zip(counters.standard) {
            self.write(&at.join("counters").join(name), &value.to_string())?;
        }
        let Some(hardware) = counters.hardware else { return Ok(()) };
        let at = at.join("hw_counters");
        self.write(&at.join("lifespan"), &AGE.as_millis().to_string())?;
        named(hardware).try_for_each(|(name, value)| self.write(&at.join(name), &value.to_string()))
    }
}
