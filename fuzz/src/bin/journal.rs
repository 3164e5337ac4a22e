//! The libFuzzer main of the target `journal`.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::journal(data));

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("built without libFuzzer; run `fuzz/run journal SECONDS` instead");
    std::process::exit(2);
}
