//! The traffic of a test as arithmetic: which size, which addresses, which bytes for frame `n`.
//!
//! Everything is a function of a port's frame number, so the receiving side can tell for every
//! frame where it belongs. Nothing here sends, sleeps or reads a clock.

mod checksum;
mod cycle;
mod frame;
mod load;
mod mix;

pub(crate) use cycle::advance;
pub use cycle::{Addresses, Cycle, CycleError};
pub use frame::{
    FrameError, FrameSpec, Kind, PAYLOAD_HEADER_BYTES, SIGNATURE, Stamp, Template, min_frame_bytes,
    parse_frame, write_frame,
};
pub use load::{
    GENERATOR_LIMITED_RATIO, PROBE_FRAME_BYTES, PROBES_PER_SECOND, expected_frames, rate,
    rate_of_bits,
};
pub use mix::{Mix, MixError, Stream, imix};
