//! Pure rules: what may be reclaimed, and why.
