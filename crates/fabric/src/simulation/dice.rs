//! Random numbers from a seed. Principal type: [`Dice`].

/// A pseudorandom sequence (splitmix64).
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn happens(&mut self, part: f64) -> bool {
        // A double holds 53 bits.
        ((self.next() >> 11) as f64) < part * (1u64 << 53) as f64
    }

    /// A random number below `bound`, or 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no bound in a simulation is large enough for the bias to
        // matter.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
