//! Putting a subscription back.

use std::sync::Arc;

use trimtab_events::Position;
use trimtab_targets::TargetError;
use trimtab_targets::pulsar::Hole;
use trimtab_targets::pulsar::subscriptions::{Acted, Consume, Outcome, Restore, Skip, Trim};
use trimtab_targets::pulsar::wire::{AckType, SubType};
use trimtab_tests::pulsar::PulsarRig;

use crate::ground::{At, Ground, Hook, done, online, permit, skipped};

/// What the record of an act says of how to undo it.
fn back(ground: &Ground, topic: &str, acted: &Acted) -> Restore {
    Restore {
        subscriber: ground.subscriber(topic, "s"),
        left_at: acted.now,
        resume_at: acted.before.resume_at.unwrap(),
        holes: acted.before.node.info.holes.clone(),
    }
}

fn restore(ground: &Ground, job: &Restore, hook: &Hook<'_>) -> Result<Outcome<Acted>, TargetError> {
    ground.runtime.block_on(ground.subscriptions.restore(job, hook, &permit()))
}

pub(crate) fn put_back_while_the_data_is_there(rig: &Arc<PulsarRig>) {
    let ground = Ground::at(rig, "u");
    from_the_beginning(&ground);
    to_where_it_was(&ground);
    what_was_acknowledged_one_by_one(&ground);
    not_what_is_in_use(&ground);
    not_what_is_gone(&ground);
}

fn from_the_beginning(ground: &Ground) {
    let topic = "acme/keep/beginning";
    let entries = ground.topic(topic, "s", 35);
    let acted = done(ground.consume(topic, "s", entries[29]));
    let job = back(ground, topic, &acted);
    let undone = done(restore(ground, &job, &Hook::none()));
    assert!(undone.unloaded && !undone.pending && undone.node.is_some(), "{undone:?}");
    assert_eq!(undone.notes, Vec::<String>::new());
    assert_eq!(skipped(restore(ground, &job, &Hook::none())), Skip::Already(undone.now.unwrap()));
    assert_eq!(ground.rest.owed(topic, "s"), entries);
}

fn to_where_it_was(ground: &Ground) {
    // In the middle of a ledger, and at the end of one.
    for (number, read) in [(0, 13), (1, 20)] {
        let topic = &format!("acme/keep/position-{number}");
        let entries = ground.topic(topic, "s", 35);
        let mut consumer = ground.rest.consumer(topic, "s", SubType::Exclusive).unwrap();
        consumer.acknowledge(AckType::Cumulative, &[entries[read - 1]]);
        consumer.close();
        ground.rest.stored(topic);
        // Still loaded: the node says less than the broker knows, and the act records what the broker knows.
        let acted = done(ground.consume(topic, "s", entries[34]));
        assert_eq!(acted.before.mark_delete, entries[read - 1]);
        assert!(acted.before.node.info.mark_delete < entries[read - 1], "{acted:?}");
        ground.rest.unload(topic);
        let undone = done(restore(ground, &back(ground, topic, &acted), &Hook::none()));
        assert_eq!(undone.now, Some(entries[read - 1]), "{undone:?}");
        assert_eq!(ground.rest.owed(topic, "s"), &entries[read..]);
    }
}

fn what_was_acknowledged_one_by_one(ground: &Ground) {
    let topic = "acme/keep/holes";
    let entries = ground.topic(topic, "s", 35);
    let mut consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    consumer.receive();
    let one_by_one = [entries[3], entries[9], entries[10], entries[11], entries[31]];
    consumer.acknowledge(AckType::Individual, &one_by_one);
    consumer.close();
    ground.rest.unload(topic);
    let acted = done(ground.consume(topic, "s", entries[24]));
    let job = back(ground, topic, &acted);
    // A run ends where its ledger does.
    assert_eq!(job.holes.len(), 4, "{:?}", job.holes);
    let undone = done(restore(ground, &job, &Hook::none()));
    assert_eq!(undone.notes, Vec::<String>::new());
    let left: Vec<Position> = entries.iter().copied().filter(|p| !one_by_one.contains(p)).collect();
    assert_eq!(ground.rest.owed(topic, "s"), left);

    // Too many to say one by one: said so, and delivered again.
    let topic = "acme/keep/many";
    let entries = ground.topic(topic, "s", 15);
    let acted = done(ground.consume(topic, "s", entries[9]));
    let mut job = back(ground, topic, &acted);
    let all = Hole { after: entries[2], last: entries[7] };
    job.holes = vec![all; 3000];
    let undone = done(restore(ground, &job, &Hook::none()));
    assert!(undone.notes[0].contains("delivered again"), "{undone:?}");
    assert_eq!(ground.rest.owed(topic, "s"), entries);
}

fn not_what_is_in_use(ground: &Ground) {
    let topic = "acme/keep/in-use";
    let entries = ground.topic(topic, "s", 35);
    let acted = done(ground.consume(topic, "s", entries[19]));
    let job = back(ground, topic, &acted);
    // Connected.
    let mut consumer = ground.rest.consumer(topic, "s", SubType::Shared).unwrap();
    online(restore(ground, &job, &Hook::none()));
    assert_eq!(consumer.receive(), &entries[20..]);
    consumer.acknowledge(AckType::Individual, &[entries[20]]);
    consumer.close();
    // It has gone on since.
    assert_eq!(skipped(restore(ground, &job, &Hook::none())), Skip::Moved(entries[20]));
    assert_eq!(ground.rest.owed(topic, "s"), &entries[21..]);
    // Comes back while we are attached.
    let rest = ground.rest.clone();
    let hook = Hook::before(At::Act, move || {
        rest.consumer(topic, "s", SubType::Exclusive).err().expect("it is refused");
    });
    let job = Restore { left_at: None, ..job };
    online(restore(ground, &job, &hook));
    assert_eq!(ground.rest.owed(topic, "s"), &entries[21..]);
}

fn not_what_is_gone(ground: &Ground) {
    let topic = "acme/u/trimmed";
    let entries = ground.topic(topic, "s", 35);
    let ledgers = vec![entries[0].ledger, entries[10].ledger];
    let job = Consume { subscriber: ground.subscriber(topic, "s"), up_to: entries[19], trim: Trim::These(ledgers) };
    let acted = done(ground.runtime.block_on(ground.subscriptions.consume(&job, &Hook::none(), &permit())));
    let skip = skipped(restore(ground, &back(ground, topic, &acted), &Hook::none()));
    assert!(matches!(&skip, Skip::NoSuchEntry(why) if why.contains("gone")), "{skip:?}");
    assert_eq!(ground.rest.owed(topic, "s"), &entries[20..]);
}
