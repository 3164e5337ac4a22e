//! The engine of our own: AES-GCM for CPUs with AVX-512, VAES and VPCLMULQDQ.
//!
//! Four blocks fill a register, of which there are 32, and masks leave out what a packet does not have.

mod ends;
mod general;
mod ghash;
mod groups;
mod hash;
mod lanes;
mod packet;
mod stream;

use crate::vaes::engine;

engine!("avx512f", "avx512bw", "avx512vl", "bmi2", "vaes", "vpclmulqdq");
