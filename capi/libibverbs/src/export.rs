//! How a function gets its name and version in the dynamic symbol table: the `export!` macro. It decides nothing about
//! what a function does; the lists are in `exports` and `exports_private`.
//!
//! rustc links a cdylib with a version script of its own, and a `#[no_mangle]` name matched there stays without a version.
//! So the functions here carry no exported name; a trampoline in assembly does, and the `.symver` directive stands in the
//! same assembly block, so that the split into codegen units cannot part the two.

/// Exports `$function` as `$name@@$version`.
macro_rules! export {
    ($version:literal: $($name:ident = $function:path),+ $(,)?) => {
        $(
            std::arch::global_asm!(
                concat!(".section .text.abi.", stringify!($name), ",\"ax\",@progbits"),
                concat!(".globl __abi_", stringify!($name)),
                concat!(".type __abi_", stringify!($name), ",@function"),
                concat!("__abi_", stringify!($name), ":"),
                "jmp {f}",
                concat!(".size __abi_", stringify!($name), ", .-__abi_", stringify!($name)),
                concat!(".symver __abi_", stringify!($name), ", ", stringify!($name), "@@", $version, ", remove"),
                ".text",
                f = sym $function
            );
        )+
    };
}
pub(crate) use export;

/// Exports a byte of writable data, zero at start, as `$name@@$version`.
macro_rules! export_flag {
    ($version:literal: $name:ident) => {
        std::arch::global_asm!(
            concat!(".section .data.abi.", stringify!($name), ",\"aw\",@progbits"),
            concat!(".globl __abi_", stringify!($name)),
            concat!(".type __abi_", stringify!($name), ",@object"),
            concat!("__abi_", stringify!($name), ":"),
            ".byte 0",
            concat!(".size __abi_", stringify!($name), ", 1"),
            concat!(".symver __abi_", stringify!($name), ", ", stringify!($name), "@@", $version, ", remove"),
            ".text",
        );
    };
}
pub(crate) use export_flag;
