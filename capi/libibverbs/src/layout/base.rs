//! What every mirrored struct is made of: simple types, and the macro [`mirror!`](mirror).

use bytemuck::Zeroable;
use std::ffi::c_void;

/// A function pointer in a table or an object. `verbs.h` defines its signature.
pub(crate) type Op = *const c_void;

/// `union ibv_gid`: 16 bytes in network order.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Zeroable)]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// The space of a `pthread_mutex_t`. This library uses its own locks instead.
#[repr(C, align(8))]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct Mutex([u8; 40]);

/// The space of a `pthread_cond_t`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Zeroable)]
pub(crate) struct Cond([u8; 48]);

/// Declares the mirror of one C struct: `SIZE "c_name" struct Name { OFFSET field: Type, … }`.
macro_rules! mirror {
    ($(#[$meta:meta])* $size:literal $c_name:literal struct $name:ident { $($offset:literal $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Zeroable)]
        #[allow(dead_code, reason = "a mirror has every field of the C struct, also those that only programs use")]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
        };

        #[cfg(test)]
        impl $crate::layout::tests::Mirror for $name {
            const C_NAME: &'static str = $c_name;
            const SIZE: usize = size_of::<Self>();
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    };
}
pub(crate) use mirror;
