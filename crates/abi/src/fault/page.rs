//! The area behind a context page in which an engine finds its rules and counts what they do:
//! [`area`] has the offsets.

/// Places for counts: a rule has the place of its number, modulo this.
pub const PLACES: u32 = 64;

constants! {
    /// The area for faults behind a context page, byte offsets in it.
    pub mod area: usize {
        /// Increased when the rules change; odd while they are being written.
        EPOCH = 0,
        /// Bytes of text.
        LEN = 4,
        /// See `state`.
        STATE = 8,
        /// The epoch of the rules that the engine uses, written by the engine.
        TAKEN = 12,
        /// Two words for each place: how many packets a rule applied to, and on how many it acted.
        /// Written by the engine.
        COUNTS = 64,
        /// The rules, one per line: the number, a space, the rule. Rules of an engine at the other
        /// end of a lane: `@` and the number of that engine, a space, the rule. Before
        /// ENGINE_HELLO: the rules that the engine's program asks for.
        TEXT = 1024,
    }

    /// Bits of the area's STATE.
    pub mod state: u32 {
        /// Packets of this engine, or of engines at the other ends of its lanes, are harmed: lanes
        /// can lose packets.
        LOSSY = 1,
        /// Commands may fail: the engine must not assume success before the answer.
        COMMANDS = 2,
        /// With LOSSY: only connections that a rule of the text may concern lose packets. Without
        /// it, all do.
        NAMED = 4,
    }
}

/// Bytes of the area.
pub const AREA_LEN: usize = 8192;
/// Bytes of text, at most.
pub const TEXT_MAX: usize = AREA_LEN - area::TEXT;

const _: () = assert!(area::COUNTS + 8 * PLACES as usize <= area::TEXT);
