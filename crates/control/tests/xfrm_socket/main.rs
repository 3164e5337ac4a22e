//! The XFRM socket with real clients, the well-behaved and the others.

mod hostile;
mod service;
mod storm;
mod world;
