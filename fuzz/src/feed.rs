//! Reads numbers and slices from a byte string in order. After its end it returns zeros. Principal
//! type: [`Feed`].

/// The bytes that have not been read.
pub(crate) struct Feed<'a>(pub(crate) &'a [u8]);

impl<'a> Feed<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next `len` bytes, or fewer at the end.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (head, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.take(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}

/// Replaces each word `0xeeeeeeNN` of a request by answer number NN. So an input can name objects
/// whose handles it cannot know.
pub(crate) fn fill_in(body: &mut [u8], answers: &[u32]) {
    for word in body.as_chunks_mut::<4>().0 {
        if let ([nth, 0xee, 0xee, 0xee], false) = (*word, answers.is_empty()) {
            *word = answers[usize::from(nth) % answers.len()].to_le_bytes();
        }
    }
}
