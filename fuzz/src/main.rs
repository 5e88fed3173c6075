//! The program that AFL++ drives: `fuzz TARGET`.
#![forbid(unsafe_code)]

fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some(target) = softhca_fuzz::target(&name) else {
        let names: Vec<_> = softhca_fuzz::TARGETS.iter().map(|target| target.name).collect();
        eprintln!("fuzz TARGET, and TARGET is one of: {}", names.join(" "));
        std::process::exit(2);
    };
    afl::fuzz!(|bytes: &[u8]| (target.run)(bytes));
}
