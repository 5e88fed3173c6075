//! Bytes of a fixed size that the communication manager carries and does not read: private data,
//! and additional information of a rejection. Principal type: [`Data`].

use std::fmt;
use std::ops::Deref;

/// `N` bytes of a message. Bytes that a user has not filled are zero. The message does not say how
/// many bytes are filled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Data<const N: usize>([u8; N]);

impl<const N: usize> Data<N> {
    /// The number of bytes.
    pub const LEN: usize = N;

    /// These bytes, padded with zeroes, or `None` if there are too many.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Data<N>> {
        let mut data = [0; N];
        data.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Data(data))
    }

    /// The `N` bytes of a datagram that begin at `at`.
    pub(super) fn parse(mad: &[u8], at: usize) -> Data<N> {
        let mut data = [0; N];
        data.copy_from_slice(&mad[at..at + N]);
        Data(data)
    }

    /// Writes all bytes at `at`.
    pub(super) fn emit(&self, mad: &mut [u8], at: usize) {
        mad[at..at + N].copy_from_slice(&self.0);
    }

    /// Whether all bytes are zero.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

impl<const N: usize> Default for Data<N> {
    fn default() -> Data<N> {
        Data([0; N])
    }
}

impl<const N: usize> Deref for Data<N> {
    type Target = [u8; N];
    fn deref(&self) -> &[u8; N] {
        &self.0
    }
}

/// In hex, without the zeroes at the end.
impl<const N: usize> fmt::Debug for Data<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(f, "{N} bytes")?;
        for byte in &self.0[..used] {
            write!(f, " {byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_data_is_padded_with_zeros_and_long_data_is_refused() {
        let data = Data::<4>::new(&[1, 2]).unwrap();
        assert_eq!(*data, [1, 2, 0, 0]);
        assert_eq!(format!("{data:?}"), "4 bytes 01 02");
        assert_eq!(Data::<4>::new(&[0; 5]), None);
        assert!(Data::<4>::new(&[0; 4]).unwrap().is_blank());
        assert!(!data.is_blank());
    }
}
