//! The bus between workers and the small state store they share.
