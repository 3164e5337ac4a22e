//! The libFuzzer main of the target `frame`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::frame(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without libFuzzer; run `fuzz/run frame SECONDS` instead");
    std::process::exit(2);
}
