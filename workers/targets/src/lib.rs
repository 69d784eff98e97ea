//! The systems trimtab works on: inventory and act.
