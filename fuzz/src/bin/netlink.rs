//! The libFuzzer main of the target `netlink`.

#![cfg_attr(fuzzing, no_main)]

fuzz::main!(netlink);
