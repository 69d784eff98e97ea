//! Rigs: the real systems, booted on loopback for a test and stopped when it ends.
