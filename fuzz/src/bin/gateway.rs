//! The libFuzzer main of the target `gateway`.

#![cfg_attr(fuzzing, no_main)]

fuzz::main!(gateway);
