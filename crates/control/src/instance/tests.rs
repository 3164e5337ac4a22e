//! Tests of `instance`.
