//! The functions a program calls instead of libc's.
//!
//! Each asks the table first: a descriptor that is not there goes straight to libc. Safety is in
//! each case what it is in C: pointers must be valid for what their lengths say.

mod create;
mod descriptor;
mod epoll;
mod name;
mod option;
mod receive;
mod send;
mod several;
