//! The `trimtab` binary.
fn main() {}
