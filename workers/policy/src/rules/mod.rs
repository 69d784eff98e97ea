//! The rules, one a file. Each is a function over values; none knows the others.

pub mod cursors;
pub mod exclude;
pub mod retention;
