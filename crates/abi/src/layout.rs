//! Declarations of records: each is declared once, with its offsets, in a form from which the
//! documentation is generated. The records themselves are in other modules.
//!
//! [`crate::record!`] declares a `repr(C)` struct from (offset, name, type, meaning) rows. The
//! offsets and the size are asserted at compile time and kept in [`Layout`], from which
//! `docs/abi.md` is generated. [`crate::constants!`] does the same for the values of a field.

use bytemuck::Pod;

/// One field of a record, as the documentation shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in the struct.
    pub name: &'static str,
    /// Offset in bytes from the start of the record.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// Rust type of the field.
    pub kind: &'static str,
    /// What it means, with its unit.
    pub meaning: &'static str,
}

/// The shape of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Name of the struct.
    pub name: &'static str,
    /// What the record is.
    pub meaning: &'static str,
    /// Size in bytes; records have no hidden padding.
    pub size: usize,
    /// All fields, in order.
    pub fields: &'static [Field],
}

/// A record of the ABI: plain old data with a described layout.
pub trait Record: Pod {
    /// Shape of the record.
    const LAYOUT: Layout;

    /// Copies a record out of the first bytes of `bytes`; `None` when there are too few.
    #[must_use]
    fn read(bytes: &[u8]) -> Option<Self> {
        Some(bytemuck::pod_read_unaligned(bytes.get(..size_of::<Self>())?))
    }

    /// Copies a record out of `bytes`, with zeros in place of missing bytes at the end.
    #[must_use]
    fn read_zero_extended(bytes: &[u8]) -> Self {
        let mut record = Self::zeroed();
        let known = bytes.len().min(size_of::<Self>());
        bytemuck::bytes_of_mut(&mut record)[..known].copy_from_slice(&bytes[..known]);
        record
    }

    /// The record's bytes.
    #[must_use]
    fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(self)
    }
}

/// One named value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constant {
    /// Name of the value.
    pub name: &'static str,
    /// The value.
    pub value: u64,
    /// What it means.
    pub meaning: &'static str,
}

/// Declares records:
/// `record! { /// meaning  pub struct Name[size] { /// meaning  offset => field: type, … } }`.
#[macro_export]
macro_rules! record {
    ($(
        $(#[doc = $doc:literal])+
        pub struct $name:ident[$size:literal] {
            $( $(#[doc = $field_doc:literal])+ $offset:literal => $field:ident: $kind:ty, )+
        }
    )+) => {$(
        $(#[doc = $doc])+
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $( $(#[doc = $field_doc])+ pub $field: $kind, )+
        }

        impl Default for $name {
            fn default() -> Self {
                bytemuck::Zeroable::zeroed()
            }
        }

        impl $crate::layout::Record for $name {
            const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: stringify!($name),
                meaning: concat!($($doc, "\n"),+),
                size: $size,
                fields: &[$( $crate::layout::Field {
                    name: stringify!($field),
                    offset: $offset,
                    size: size_of::<$kind>(),
                    kind: stringify!($kind),
                    meaning: concat!($($field_doc),+),
                } ),+],
            };
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $( assert!(std::mem::offset_of!($name, $field) == $offset); )+
        };
    )+};
}

/// Declares the values of a field as a module:
/// `constants! { /// meaning  pub mod name: u32 { /// meaning  NAME = value, … } }`.
#[macro_export]
macro_rules! constants {
    ($(
        $(#[doc = $doc:literal])+
        pub mod $module:ident: $kind:ty {
            $( $(#[doc = $value_doc:literal])+ $name:ident = $value:expr, )+
        }
    )+) => {$(
        $(#[doc = $doc])+
        pub mod $module {
            $( $(#[doc = $value_doc])+ pub const $name: $kind = $value; )+

            /// What the values are.
            pub const MEANING: &str = concat!($($doc),+);

            /// Every value of this module.
            pub const ALL: &[$crate::layout::Constant] = &[$( $crate::layout::Constant {
                name: stringify!($name),
                value: $name as u64,
                meaning: concat!($($value_doc),+),
            } ),+];

            /// The name of a value, if it has one.
            #[must_use]
            pub fn name(value: $kind) -> Option<&'static str> {
                ALL.iter().find(|constant| constant.value == value as u64).map(|constant| constant.name)
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pd::{AllocPd, AllocPdAnswer};

    #[test]
    fn records_are_read_from_bytes_at_any_alignment() {
        let bytes = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(AllocPd::read(&bytes[1..]), Some(AllocPd { response: 0x0807_0605_0403_0201 }));
        assert_eq!(AllocPd::read(&bytes[..7]), None);
        assert_eq!(AllocPd::read_zero_extended(&bytes[1..3]), AllocPd { response: 0x0201 });
        assert_eq!(AllocPd::read_zero_extended(&bytes[1..]), AllocPd { response: 0x0807_0605_0403_0201 });
        assert_eq!(AllocPdAnswer { pd_handle: 0x0403_0201 }.bytes(), &bytes[1..5]);
    }

    #[test]
    fn layouts_have_neither_gaps_nor_overlaps() {
        for row in crate::command::ROWS {
            for layout in [row.request, row.private_in, row.answer, row.private_out].into_iter().flatten() {
                let mut end = 0;
                for field in layout.fields {
                    assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
                    assert!(!field.meaning.trim().is_empty(), "{}.{}", layout.name, field.name);
                    end += field.size;
                }
                assert_eq!(end, layout.size, "{}", layout.name);
            }
        }
    }
}
