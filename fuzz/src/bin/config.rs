//! The libFuzzer main of the target `config`.

#![cfg_attr(fuzzing, no_main)]

fuzz::main!(config);
