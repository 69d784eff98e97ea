//! Parallel recovery of Kafka log directories after an unclean stop.
