//! Layouts of management attributes as tables: one row for each field, with its position as the
//! specification prints it. Not the headers of packets, which are few and on the data path.
//!
//! ```text
//!     layout! {
//!         /// What the attribute says.
//!         pub struct SwitchInfo[20] = 0x0012 {
//!             /// What the field says.
//!             0, 16 => linear_cap: u16;
//!             ...
//! ```
//! The first line has the length in bytes and the attribute's id. A row has the first bit and the
//! number of bits, then the field's name and type. Bit 0 is the most significant bit of byte
//! 0. The table becomes a plain struct with `LEN`, `ATTRIBUTE`, `FIELDS`, `parse` and `emit`. A row
//! of a record of subnet administration also has the component of the field: `Component DGID 2`
//! makes the constant `DGID`, bit 2 of a component mask. [`matches()`] compares records by it.
//!
//! Principal types: [`Bits`], [`Field`], [`Layout`].

use crate::rate::rate_mbps;

/// A value in a field: an integer, a flag, an array of equal elements, or another layout.
pub trait Bits: Copy {
    /// The rows of a layout, or of one element of an array. Empty for other values.
    const FIELDS: &'static [Field] = &[];
    /// How many elements an array has.
    const ELEMENTS: usize = 1;

    /// Reads `bits` bits from bit `at`.
    #[must_use]
    fn get(bytes: &[u8], at: usize, bits: usize) -> Self;

    /// Writes the low `bits` bits at bit `at`. The other bits stay.
    fn put(self, bytes: &mut [u8], at: usize, bits: usize);
}

/// A struct that a table describes.
pub trait Layout: Bits {
    /// Its bytes.
    const LEN: usize;

    /// Reads the struct from the front of `bytes`, if they are enough.
    #[must_use]
    fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= Self::LEN).then(|| Self::get(bytes, 0, 8 * Self::LEN))
    }

    /// Writes the struct to the front of `bytes`, reserved bits as zeros. Returns whether there is
    /// room.
    fn write(self, bytes: &mut [u8]) -> bool {
        let Some(bytes) = bytes.get_mut(..Self::LEN) else { return false };
        bytes.fill(0);
        self.put(bytes, 0, 8 * Self::LEN);
        true
    }
}

/// One row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its first bit.
    pub at: usize,
    /// Its length in bits.
    pub bits: usize,
    /// How many elements it has, if it is an array.
    pub elements: usize,
    /// Its place in a component mask.
    pub matching: Option<Matching>,
    /// The rows of the layout in it, or in each element, with positions from its first bit.
    pub fields: &'static [Field],
}

/// The place of a field in a component mask, and how it is compared. IBA 15.4.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matching {
    /// One component. For a layout: the component of its first field, from which the others count.
    Component(u8),
    /// An array in which each element is a component, beginning with this one.
    Components(u8),
    /// Says how the next row is compared: 0 greater, 1 less, 2 equal, 3 any.
    Selector(u8),
    /// A value that a selector may precede.
    Selected(u8),
    /// A static rate that a selector may precede. The codes of rates are not in order.
    SelectedRate(u8),
}

/// Whether a record has the template's value in each component of the mask. Components that the
/// record does not have are ignored. IBA 15.4.4.
#[must_use]
pub fn matches<R: Layout>(record: &R, template: &R, mask: u64) -> bool {
    let [mut own, mut wanted] = [[0; LONGEST]; 2];
    record.write(&mut own) && template.write(&mut wanted) && agree(R::FIELDS, 0, 0, [&own, &wanted], mask)
}

/// The longest record, in bytes: the data of one datagram of subnet administration.
const LONGEST: usize = 200;

fn agree(fields: &[Field], at: usize, first: u8, [own, wanted]: [&[u8]; 2], mask: u64) -> bool {
    let asked = |component: u8| mask.checked_shr((first + component).into()).is_some_and(|mask| mask & 1 != 0);
    let mut selector = 2;
    fields.iter().all(|field| {
        let start = at + field.at;
        let value = |bytes| u64::get(bytes, start, field.bits);
        match field.matching {
            None => agree(field.fields, start, first, [own, wanted], mask),
            Some(Matching::Component(base)) if !field.fields.is_empty() => {
                agree(field.fields, start, first + base, [own, wanted], mask)
            }
            Some(Matching::Component(component)) => !asked(component) || same(start, field.bits, own, wanted),
            Some(Matching::Components(base)) => {
                let bits = field.bits / field.elements;
                (base..)
                    .zip(0..field.elements)
                    .all(|(component, nth)| !asked(component) || same(start + nth * bits, bits, own, wanted))
            }
            Some(Matching::Selector(component)) => {
                selector = if asked(component) { value(wanted) } else { 2 };
                true
            }
            Some(Matching::Selected(component)) => !asked(component) || select(selector, value(own), value(wanted)),
            Some(Matching::SelectedRate(component)) => {
                let rate = |bytes| rate_mbps(u8::get(bytes, start, field.bits));
                !asked(component) || select(selector, rate(own), rate(wanted))
            }
        }
    })
}

fn same(at: usize, bits: usize, own: &[u8], wanted: &[u8]) -> bool {
    (0..bits).step_by(64).all(|from| {
        let value = |bytes| u64::get(bytes, at + from, (bits - from).min(64));
        value(own) == value(wanted)
    })
}

fn select<T: PartialOrd>(selector: u64, own: T, wanted: T) -> bool {
    match selector {
        0 => own > wanted,
        1 => own < wanted,
        2 => own == wanted,
        _ => true,
    }
}

/// The bytes that hold the bits, as one number; and how many bits of it follow them.
fn window(bytes: &[u8], at: usize, bits: usize) -> (u128, usize) {
    let end = (at + bits).div_ceil(8);
    let number = bytes[at / 8..end].iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    (number, 8 * end - at - bits)
}

impl Bits for u64 {
    fn get(bytes: &[u8], at: usize, bits: usize) -> u64 {
        // Most fields are whole bytes, and the path of a datagram is 128 of them.
        if at.is_multiple_of(8) && bits.is_multiple_of(8) {
            return bytes[at / 8..(at + bits) / 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        }
        let (number, after) = window(bytes, at, bits);
        let [.., low] = split(number >> after);
        if bits < 64 { low & ((1 << bits) - 1) } else { low }
    }

    fn put(self, bytes: &mut [u8], at: usize, bits: usize) {
        if at.is_multiple_of(8) && bits.is_multiple_of(8) {
            let field = &mut bytes[at / 8..(at + bits) / 8];
            let own = self.to_be_bytes();
            return field.copy_from_slice(&own[own.len() - field.len()..]);
        }
        let (number, after) = window(bytes, at, bits);
        let mask = ((1_u128 << bits) - 1) << after;
        let mut number = number & !mask | u128::from(self) << after & mask;
        for byte in bytes[at / 8..(at + bits).div_ceil(8)].iter_mut().rev() {
            [.., *byte] = number.to_be_bytes();
            number >>= 8;
        }
    }
}

fn split(number: u128) -> [u64; 2] {
    let bytes = number.to_be_bytes();
    let (high, low) = bytes.split_at(8);
    [high, low].map(|half| half.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

macro_rules! narrow {
    ($($type:ty),*) => {$(
        impl Bits for $type {
            #[expect(clippy::cast_possible_truncation, reason = "a table gives a field at most the bits of its type")]
            fn get(bytes: &[u8], at: usize, bits: usize) -> $type {
                u64::get(bytes, at, bits) as $type
            }

            fn put(self, bytes: &mut [u8], at: usize, bits: usize) {
                u64::from(self).put(bytes, at, bits);
            }
        }
    )*};
}
narrow!(u8, u16, u32);

impl Bits for bool {
    fn get(bytes: &[u8], at: usize, bits: usize) -> bool {
        u64::get(bytes, at, bits) != 0
    }

    fn put(self, bytes: &mut [u8], at: usize, bits: usize) {
        u64::from(self).put(bytes, at, bits);
    }
}

impl<T: Bits, const N: usize> Bits for [T; N] {
    const FIELDS: &'static [Field] = T::FIELDS;
    const ELEMENTS: usize = N;

    fn get(bytes: &[u8], at: usize, bits: usize) -> [T; N] {
        std::array::from_fn(|nth| T::get(bytes, at + nth * (bits / N), bits / N))
    }

    fn put(self, bytes: &mut [u8], at: usize, bits: usize) {
        for (nth, element) in self.into_iter().enumerate() {
            element.put(bytes, at + nth * (bits / N), bits / N);
        }
    }
}

/// A struct from a table. The module's opening paragraph describes the rows.
macro_rules! layout {
    (
        $(#[$meta:meta])*
        pub struct $name:ident[$len:literal] $(= $attribute:literal)? {
            $($(#[$doc:meta])* $at:literal, $bits:literal => $field:ident: $type:ty
                $(, $matching:ident $($mask:ident)? $component:literal)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $name {
            /// Bytes of the layout.
            pub const LEN: usize = $len;
            $(/// The attribute's id.
            pub const ATTRIBUTE: u16 = $attribute;)?
            $($($(#[doc = concat!("The component of `", stringify!($field), "`.")]
            pub const $mask: u64 = 1 << $component;)?)?)*

            /// Parses the layout from the front of an array. Reserved bits are ignored.
            #[must_use]
            pub fn parse<const N: usize>(bytes: &[u8; N]) -> $name {
                const { assert!(N >= $len, "the array is shorter than the layout") }
                $crate::layout::Bits::get(bytes, 0, 8 * $len)
            }

            /// Encodes the layout at the front of an array. Reserved bits become zeros, and values
            /// that are too large lose their upper bits.
            pub fn emit<const N: usize>(&self, bytes: &mut [u8; N]) {
                const { assert!(N >= $len, "the array is shorter than the layout") }
                $crate::layout::Layout::write(*self, bytes);
            }
        }

        impl $crate::layout::Bits for $name {
            const FIELDS: &'static [$crate::layout::Field] = &[$($crate::layout::Field {
                name: stringify!($field),
                at: $at,
                bits: $bits,
                elements: <$type as $crate::layout::Bits>::ELEMENTS,
                matching: layout!(@matching $($matching $component)?),
                fields: <$type as $crate::layout::Bits>::FIELDS,
            }),*];

            fn get(bytes: &[u8], at: usize, _: usize) -> $name {
                $name { $($field: $crate::layout::Bits::get(bytes, at + $at, $bits),)* }
            }

            fn put(self, bytes: &mut [u8], at: usize, _: usize) {
                $($crate::layout::Bits::put(self.$field, bytes, at + $at, $bits);)*
            }
        }

        impl $crate::layout::Layout for $name {
            const LEN: usize = $len;
        }

        /// All fields zero.
        impl Default for $name {
            fn default() -> $name {
                $name::parse(&[0; $len])
            }
        }
    };
    (@matching) => { None };
    (@matching $matching:ident $component:literal) => { Some($crate::layout::Matching::$matching($component)) };
}
pub(crate) use layout;

#[cfg(test)]
pub(crate) mod tests;
