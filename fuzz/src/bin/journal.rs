//! The libFuzzer main of the target `journal`.

#![cfg_attr(fuzzing, no_main)]

fuzz::main!(journal);
