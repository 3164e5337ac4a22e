//! (crate header: what it does, and what it does not do)
