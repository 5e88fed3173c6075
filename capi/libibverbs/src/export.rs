//! How a function gets its names and versions in the dynamic symbol table: the `export!` macro. It decides nothing about
//! what a function does; the lists are in `exports`, `exports_private` and `exports_first`.
//!
//! rustc links a cdylib with a version script of its own, and a `#[no_mangle]` name matched there stays without a version.
//! So the functions here carry no exported name; a trampoline in assembly does, with one label for each version, and the `.symver`
//! directives stand in the same assembly block, so that the split into codegen units cannot part them.

/// Exports each `$function` as `$name` in all the versions of a list. They are written as readelf prints them: `@@NODE` is the version
/// that new programs are linked with, `@NODE` one that only older programs ask for.
macro_rules! export {
    ($($version:literal)+: $($name:ident = $function:path),+ $(,)?) => {
        $crate::export::export!(@each [$($version)+] $($name = $function),+);
    };
    (@each $versions:tt $($name:ident = $function:path),+) => {
        $($crate::export::export!(@one $versions $name $function);)+
    };
    (@one [$($version:literal)+] $name:ident $function:path) => {
        std::arch::global_asm!(
            concat!(".section .text.abi.", stringify!($name), $($version,)+ ",\"ax\",@progbits"),
            $(
                concat!(".globl \"__abi_", stringify!($name), $version, "\""),
                concat!(".type \"__abi_", stringify!($name), $version, "\",@function"),
                concat!("\"__abi_", stringify!($name), $version, "\":"),
            )+
            "jmp {f}",
            $(
                concat!(".size \"__abi_", stringify!($name), $version, "\", .-\"__abi_", stringify!($name), $version, "\""),
                concat!(".symver \"__abi_", stringify!($name), $version, "\", ", stringify!($name), $version, ", remove"),
            )+
            ".text",
            f = sym $function
        );
    };
}
pub(crate) use export;

/// Exports a byte of writable data, zero at start, as `$name` in all the versions of a list.
macro_rules! export_flag {
    ($($version:literal)+: $name:ident) => {
        std::arch::global_asm!(
            concat!(".section .data.abi.", stringify!($name), ",\"aw\",@progbits"),
            $(
                concat!(".globl \"__abi_", stringify!($name), $version, "\""),
                concat!(".type \"__abi_", stringify!($name), $version, "\",@object"),
                concat!("\"__abi_", stringify!($name), $version, "\":"),
            )+
            ".byte 0",
            $(
                concat!(".size \"__abi_", stringify!($name), $version, "\", 1"),
                concat!(".symver \"__abi_", stringify!($name), $version, "\", ", stringify!($name), $version, ", remove"),
            )+
            ".text",
        );
    };
}
pub(crate) use export_flag;
