//! The libFuzzer main of the target `frame`.

#![cfg_attr(fuzzing, no_main)]

fuzz::main!(frame);
