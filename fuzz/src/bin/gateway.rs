//! The libFuzzer main of the target `gateway`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::gateway(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without libFuzzer; run `fuzz/run gateway SECONDS` instead");
    std::process::exit(2);
}
