//! scylla
