//! The libFuzzer main of the target `netlink`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::netlink(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without libFuzzer; run `fuzz/run netlink SECONDS` instead");
    std::process::exit(2);
}
