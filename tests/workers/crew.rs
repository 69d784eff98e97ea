//! What the workers of these tests are to leave of the rig's topics.

use trimtab_tests::roles::Settings;

use crate::ground::{Broker, Ground, LEDGERS};

/// What workers are told whose brokers are played.
pub(crate) fn settings(nats: &str, from: &str, broker: &Broker<'_>, config: &str) -> Settings {
    Settings {
        nats: nats.to_owned(),
        from: from.to_owned(),
        admin: Some(broker.url()),
        config: Some(config.to_owned()),
        ..Settings::default()
    }
}

/// Of each eight topics, one is blocked by its cursor and one is young, as the rig's filler makes them: how many ledgers a topic is to keep
/// in the end.
pub(crate) fn to_keep(number: usize) -> usize {
    if matches!(number % 8, 5 | 6) { LEDGERS } else { 1 }
}

/// Topics that have another number of ledgers than they are to have in the end; none of them may have fewer.
pub(crate) fn still_due(ground: &Ground, topics: usize) -> usize {
    let mut due = 0;
    for number in 0..topics {
        let (has, keeps) = (ground.ids(number).len(), to_keep(number));
        assert!(has >= keeps, "topic {number} has {has} ledgers, and was to keep {keeps}");
        due += usize::from(has > keeps);
    }
    due
}
