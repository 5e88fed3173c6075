//! The sampling of counters: what is sampled, and the result. IBA 16.1.3.2 and 16.1.3.3. Principal
//! types: [`PortSamplesControl`], [`PortSamplesResult`].

use crate::layout::layout;

/// The counters that are sampled at once, at most.
pub const SAMPLED: usize = 15;

layout! {
    /// PortSamplesControl: a Set begins an interval.
    pub struct PortSamplesControl[80] = 0x0010 {
        /// What the node lets the manager do.
        0, 8 => opcode: u8;
        /// The port that is sampled.
        8, 8 => port: u8;
        /// The unit of times: this number of symbols and one more.
        16, 8 => tick: u8;
        /// The bits of the counters: 16, and 4 more for each step.
        29, 3 => counter_width: u8;
        /// Which kinds of quantities each of the first ten counters can have: mandatory ones 1,
        /// optional ones 2, those of the vendor 4.
        34, 30 => first_masks: [u8; 10];
        /// The same for the other counters.
        65, 15 => last_masks: [u8; 5];
        /// Other sampling mechanisms.
        80, 8 => mechanisms: u8;
        /// 0 is done, 1 is waiting for the start, 2 is running.
        94, 2 => status: u8;
        /// The optional quantities that there are.
        96, 64 => option_mask: u64;
        /// The quantities of the vendor that there are.
        160, 64 => vendor_mask: u64;
        /// The ticks until the interval begins.
        224, 32 => start: u32;
        /// The ticks that it lasts.
        256, 32 => interval: u32;
        /// A number of the manager, by which it knows its interval.
        288, 16 => tag: u16;
        /// The quantity of each counter.
        304, 240 => counter_select: [u16; SAMPLED];
        /// The optional quantities that there are for samples only.
        576, 64 => samples_only_option_mask: u64;
    }
}

layout! {
    /// PortSamplesResult: the counters of the last interval.
    pub struct PortSamplesResult[64] = 0x0011 {
        /// The number of the manager.
        0, 16 => tag: u16;
        /// 0 is done, 1 is waiting for the start, 2 is running.
        30, 2 => status: u8;
        /// How much each counter has grown.
        32, 480 => counters: [u32; SAMPLED];
    }
}
