//! What leaves a cluster as it found it shares one, and happens at once, each in a namespace of its own.

use trimtab_tests::pulsar::PulsarRig;
use trimtab_tests::together::side_by_side;

use crate::ground::cluster;
use crate::{boundaries, online, story, told, undo};

#[test]
#[ignore = "needs Pulsar, BookKeeper, ZooKeeper"]
fn acts_on_subscriptions() {
    let rig = cluster(PulsarRig::builder());
    let rig = &rig;
    side_by_side(vec![
        ("where acknowledgements end, and of whom".into(), Box::new(|| boundaries::ends_and_identity(rig))),
        ("names, runs and deletions".into(), Box::new(|| boundaries::names_runs_and_deletions(rig))),
        ("batches, chunks, transactions".into(), Box::new(|| boundaries::batches_chunks_and_transactions(rig))),
        ("who is connected or comes back".into(), Box::new(|| online::connected_or_back(rig))),
        ("who comes back while we are attached".into(), Box::new(|| online::back_while_attached(rig))),
        ("put back while the data is there".into(), Box::new(|| undo::put_back_while_the_data_is_there(rig))),
        ("found, announced and moved".into(), Box::new(|| story::found_announced_and_moved(rig))),
        ("where loaded ones stand".into(), Box::new(|| told::where_loaded_ones_stand(rig))),
        ("freed, and not put back".into(), Box::new(|| story::freed_and_not_put_back(rig))),
    ]);
}
