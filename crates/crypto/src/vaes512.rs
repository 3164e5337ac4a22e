//! The engine of our own for CPUs with AVX-512, VAES and VPCLMULQDQ: AES-GCM in registers of four blocks.
//!
//! There are 32 such registers, and masks leave out what a packet does not have.

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
