//! The XFRM shim.
