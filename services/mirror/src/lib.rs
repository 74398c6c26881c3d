//! mirror
