//! Tests of `route_feed`.
