//! Smoke.
use super::*;
#[test]
fn smoke() {
    install().unwrap();
    let r = unsafe { copy(8 as *mut u8, b"abc".as_ptr(), 3) };
    println!("{r:?}");
    let mut b = [0u8; 600];
    println!("{:?}", unsafe { copy(b.as_mut_ptr(), 16 as *const u8, 300) });
    println!("{:?}", unsafe { copy(b.as_mut_ptr(), 0x8000_0000_0000_0000 as *const u8, 300) });
    println!("{:?}", unsafe { copy(0xffff_8000_0000_0000 as *mut u8, b.as_ptr(), 300) });
    println!("{:?}", unsafe { compare_swap(16 as *mut u64, 1, 2) });
    println!("{:?}", unsafe { load(16 as *mut u64) });
    println!("{:?}", mappings::check(b.as_ptr() as u64, 600, true));
    println!("{:?}", mappings::check(b.as_ptr() as u64, 1 << 40, true));
    println!("{:?}", mappings::check(0, 1 << 40, true));
    println!("{:?}", mappings::check(smoke as *const () as u64, 10, true));
    println!("{:?}", mappings::check(smoke as *const () as u64, 10, false));
}
