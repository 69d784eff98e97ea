//! The vocabulary of trimtab: ids, envelope, event families.
