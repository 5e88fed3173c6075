//! The counters of a port in the mirror: `ports/N/counters` of sysfs. The path redirector asks for
//! them before a program opens one. Adds to [`Mirror`].

use std::io;

use mad::counters::Counter;

use super::{Mirror, home};
use crate::device::Device;

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

impl Mirror {
    /// Shows the counters of a port.
    pub(crate) fn show_counters(&self, device: &Device, port: u8, values: &[u64; COUNTERS.len()]) -> io::Result<()> {
        if self.only.is_some_and(|only| only != device.index) {
            return Ok(());
        }
        let at = home(device).join(format!("ports/{port}/counters"));
        let named = COUNTERS.iter().zip(values);
        named.into_iter().try_for_each(|((name, _), value)| self.write(&at.join(name), &value.to_string()))
    }
}
