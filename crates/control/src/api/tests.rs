//! Tests of `api`.
