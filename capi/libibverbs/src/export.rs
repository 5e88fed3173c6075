//! The `export!` macro: gives a function its names and versions in the dynamic symbol table. It
//! decides nothing about the function's work; the lists are in `exports`, `exports_private` and
//! `exports_first`.
//!
//! rustc links a cdylib with a version script of its own, and a `#[no_mangle]` name that this
//! script matches gets no version. So the functions here have no exported name. Instead, an
//! assembly trampoline has one label for each version. The `.symver` directives stand in the same
//! assembly block, so that the split into codegen units cannot separate them.

/// Exports each `$function` as `$name` in all the versions of a list. Versions are written as
/// readelf prints them: new programs are linked with `@@NODE`, and only older programs ask for
/// `@NODE`.
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

/// Exports a byte of writable data, initially zero, as `$name` in all the versions of a list.
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
