//! `umad_get_smi_gsi_pairs` and its relative: which devices have the QP 0 and the QP 1 of the same
//! port GUID. Devices here have both, so both names of a pair are the device's.

use std::ffi::{c_char, c_int, c_uint};

use crate::devices::{named, negative};
use crate::entry::{Outcome, Refusal};
use crate::layout::{CaPair, text};
use crate::sysfs;

const NO_DEVICE: Refusal = Refusal(libc::ENODEV);

/// A port of a device.
type Port = (String, u32);

/// The two ports with one GUID.
#[derive(Default)]
struct Pair {
    guid: u64,
    smi: Option<Port>,
    gsi: Option<Port>,
}

/// A pair for each GUID: that of the first port with one of each device. If two devices have the
/// same GUID, one of them is for QP 0, and the one that says that it has none is for QP 1.
fn pairs() -> Vec<Pair> {
    let firsts = sysfs::devices().into_iter().filter_map(|name| {
        let (port, guid) = sysfs::ports(&name).into_iter().find_map(|port| {
            let guid = sysfs::port_guid(&name, port);
            (guid != 0).then_some((port, guid))
        })?;
        Some((guid, (name, port)))
    });
    let firsts: Vec<(u64, Port)> = firsts.collect();
    let mut pairs: Vec<Pair> = Vec::new();
    for (guid, port) in &firsts {
        let index = pairs.iter().position(|pair| pair.guid == *guid).unwrap_or_else(|| {
            pairs.push(Pair { guid: *guid, ..Pair::default() });
            pairs.len() - 1
        });
        let Some(pair) = pairs.get_mut(index) else { continue };
        let is_alone = firsts.iter().filter(|(other, _)| other == guid).count() == 1;
        let has_smi = !sysfs::is_smi_disabled(&port.0, port.1);
        if has_smi {
            pair.smi = Some(port.clone());
        }
        if is_alone || !has_smi {
            pair.gsi = Some(port.clone());
        }
    }
    pairs
}

impl Pair {
    /// As the program sees it, without preferred ports.
    fn shown(&self) -> CaPair {
        let name = |port: &Option<Port>| text(port.as_ref().map_or("", |(name, _)| name));
        CaPair { smi_name: name(&self.smi), gsi_name: name(&self.gsi), ..CaPair::default() }
    }
}

/// `umad_get_smi_gsi_pairs`: how many pairs there are in the array.
pub(crate) unsafe extern "C" fn all(cas: *mut CaPair, max: usize) -> c_int {
    negative("umad_get_smi_gsi_pairs", || {
        let pairs = pairs();
        let shown = pairs.iter().map(Pair::shown).chain(std::iter::repeat_with(CaPair::default));
        for (index, pair) in shown.take(max).enumerate() {
            // SAFETY: the program promises room for `max` pairs.
            unsafe { cas.add(index).write(pair) };
        }
        Ok(pairs.len().min(max) as c_int)
    })
}

/// `umad_get_smi_gsi_pair_by_ca_name`: the pair of a device, or the first one, with the ports to
/// use.
pub(crate) unsafe extern "C" fn named_pair(
    name: *const c_char,
    port: u8,
    pair: *mut CaPair,
    needs_smi: c_uint,
) -> c_int {
    if pair.is_null() {
        return -1;
    }
    negative("umad_get_smi_gsi_pair_by_ca_name", || {
        // SAFETY: the program passes NULL or a C string.
        let name = unsafe { named(name) }?;
        let found = found(name, port.into(), needs_smi != 0);
        // SAFETY: not NULL, and the program passes memory for the struct.
        unsafe { pair.write(found.as_ref().copied().unwrap_or_default()) };
        found.map(|_| 0)
    })
}

fn found(name: Option<&str>, port: u32, needs_smi: bool) -> Outcome<CaPair> {
    let pairs = pairs();
    let usable = pairs.iter().filter(|pair| pair.gsi.is_some() && (pair.smi.is_some() || !needs_smi));
    let is = |side: &Option<Port>| name.is_none_or(|name| side.as_ref().is_some_and(|(known, _)| known == name));
    let found = usable.filter(|pair| is(&pair.smi) || is(&pair.gsi)).find_map(|pair| {
        let preferred = |side: &Option<Port>| match side {
            Some((device, _)) => preferred(device, port, name.is_some()),
            None => Some(0),
        };
        let (smi_preferred_port, gsi_preferred_port) = (preferred(&pair.smi)?, preferred(&pair.gsi)?);
        Some(CaPair { smi_preferred_port, gsi_preferred_port, ..pair.shown() })
    });
    found.ok_or(NO_DEVICE)
}

/// The port of a device that a program should use: the one that it asks for, or else the first one
/// that is not down. Of a device that the program names, its only port is taken in every state.
fn preferred(device: &str, port: u32, is_named: bool) -> Option<u32> {
    let ports = sysfs::ports(device);
    let wanted = |number: &u32| port == 0 || *number == port;
    let is_chosen = is_named && (port != 0 || ports.len() == 1);
    ports.into_iter().filter(wanted).find(|number| is_chosen || sysfs::is_up(device, *number))
}
