//! The libFuzzer main of the target `config`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::config(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without libFuzzer; run `fuzz/run config SECONDS` instead");
    std::process::exit(2);
}
