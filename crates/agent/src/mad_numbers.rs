//! The numbers of ports in `umadN` and `issmN`, the nodes of management datagrams.
//!
//! A port gets the smallest free number when its device is added, as from a kernel, and keeps it
//! until the device is removed. The principal type is [`MadNumbers`].

use crate::device::Device;

/// The ports by number.
#[derive(Debug, Default)]
pub(crate) struct MadNumbers(Vec<Option<(usize, u32)>>);

impl MadNumbers {
    /// Gives each port of a new device a number. iWARP has no management datagrams.
    pub(crate) fn add(&mut self, device: &Device) {
        if device.is_iwarp() {
            return;
        }
        for port in (1..).take(device.ports.len()) {
            let port = Some((device.index, port));
            match self.0.iter_mut().find(|slot| slot.is_none()) {
                Some(free) => *free = port,
                None => self.0.push(port),
            }
        }
    }

    /// Frees the numbers of a removed device's ports.
    pub(crate) fn remove(&mut self, device: usize) {
        for slot in &mut self.0 {
            slot.take_if(|(of, _)| *of == device);
        }
    }

    /// The number of a port.
    pub(crate) fn number(&self, device: usize, port: u32) -> Option<u32> {
        let position = self.0.iter().position(|slot| *slot == Some((device, port)))?;
        u32::try_from(position).ok()
    }

    /// The port with a number: the index of its device, and its own number there.
    pub(crate) fn port(&self, number: u32) -> Option<(usize, u32)> {
        *self.0.get(usize::try_from(number).ok()?)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DeviceConfig, PortConfig};

    fn device(index: usize, ports: usize) -> Device {
        let ports = vec![PortConfig::default(); ports];
        Device::new(index, &DeviceConfig { ports, ..DeviceConfig::default() }, "test")
    }

    #[test]
    fn a_port_keeps_its_number_until_its_device_is_removed() {
        let mut numbers = MadNumbers::default();
        numbers.add(&device(0, 1));
        numbers.add(&device(1, 2));
        numbers.add(&device(2, 1));
        assert_eq!(
            [(0, 1), (1, 1), (1, 2), (2, 1)].map(|(device, port)| numbers.number(device, port).unwrap()),
            [0, 1, 2, 3]
        );
        numbers.remove(0);
        assert_eq!((numbers.number(0, 1), numbers.port(0), numbers.port(2)), (None, None, Some((1, 2))));
        numbers.add(&device(0, 2));
        assert_eq!((numbers.port(0), numbers.port(4), numbers.port(3)), (Some((0, 1)), Some((0, 2)), Some((2, 1))));
        assert_eq!((numbers.port(5), numbers.number(1, 3)), (None, None));
    }
}
