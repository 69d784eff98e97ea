//! The way back.

use serde_json::json;
use trimtab_events::{Candidate, Decision};
use trimtab_policy::Action;
use trimtab_targets::{Act, Effect, Undo};

use crate::ground::{Ground, QUICK, Taken, permit, state_of};

async fn acted(ground: &Ground, stream: &str, alive: &[&str], action: Action) -> (Decision, Undo) {
    let (decision, seen) = ground.decided(stream, "old", alive, action).await;
    let (taken, seen) = (Taken::default(), Candidate::Subscriber(Box::new(seen)));
    let effect = ground.acting(QUICK).act(&decision, &seen, &taken, &permit()).await.unwrap();
    assert_eq!(effect.skipped, None);
    let evidence = taken.0.into_inner().unwrap();
    (decision.clone(), Undo { decision, before: None, after: None, evidence })
}

async fn taken_back(ground: &Ground, undo: &Undo) -> Effect {
    ground.acting(QUICK).undo(undo, &Taken::default(), &permit()).await.unwrap()
}

/// Where another consumer still holds the messages, a consumer that was moved or deleted gets all of them again.
pub(crate) async fn a_consumer_gets_back_what_is_still_there() {
    let ground = Ground::new().await;
    let kinds = [
        ("ALL", json!({ "filter_subject": "KIND.a", "max_ack_pending": 77, "metadata": { "team": "x" } })),
        ("SEQ", json!({ "deliver_policy": "by_start_sequence", "opt_start_seq": 3 })),
        ("TIME", json!({ "deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z" })),
        ("PUSH", json!({ "deliver_subject": "nobody.listens", "deliver_group": "workers" })),
    ];
    let cases = kinds
        .into_iter()
        .flat_map(|(kind, config)| [Action::Reclaim, Action::Delete].map(|action| (kind, config.clone(), action)));
    futures::future::join_all(cases.map(async |(kind, config, action)| {
        let stream = format!("{kind}{action:?}");
        ground.stream(&stream, json!({ "subjects": [format!("{stream}.>")] })).await;
        let config = serde_json::from_str(&config.to_string().replace("KIND", &stream)).unwrap();
        ground.consumer(&stream, "old", config).await;
        ground.consumer(&stream, "ahead", json!({})).await;
        ground.publish(&format!("{stream}.a"), 100).await;
        assert_eq!(ground.drain(&stream, "ahead", 50).await.len(), 50);
        let before = ground.info(&stream, "old").await;
        let (_, undo) = acted(&ground, &stream, &["ahead"], action).await;
        assert_eq!(ground.held(&stream).await.0, 50, "{stream}");
        let effect = taken_back(&ground, &undo).await;
        assert_eq!(effect.skipped, None, "{stream}");
        assert!(effect.notes.iter().any(|note| note.contains("gone for good")), "{stream}: {effect:?}");
        let after = ground.info(&stream, "old").await;
        assert_eq!(without_notes(&after["config"]), without_notes(&before["config"]), "{stream}");
        assert!(before["ack_floor"]["stream_seq"].as_u64() < Some(50), "{stream}");
        assert_eq!(after["ack_floor"]["stream_seq"], 50, "{stream}: before that there is nothing any more");
        let pending = state_of(&ground.observe(&stream).await, "old").pending;
        assert_eq!(pending, 50, "{stream}: what is left of what it had not taken");
        if kind != "PUSH" {
            assert_eq!(ground.owed(&stream, "old", 50).await, (51..=100).collect::<Vec<u64>>(), "{stream}");
        }
    }))
    .await;
}

/// Servers write their own labels beside a user's.
fn without_notes(config: &serde_json::Value) -> serde_json::Value {
    let mut config = config.clone();
    if let Some(labels) = config["metadata"].as_object_mut() {
        labels.retain(|key, _| !key.starts_with("_nats."));
    }
    let map = config.as_object_mut().unwrap();
    map.remove("pause_until");
    if map.get("metadata").is_some_and(|labels| labels.as_object().is_some_and(serde_json::Map::is_empty)) {
        map.remove("metadata");
    }
    config
}

pub(crate) async fn one_that_began_at_what_was_new_begins_where_it_stood() {
    let ground = Ground::new().await;
    ground.stream("N", json!({})).await;
    ground.consumer("N", "ahead", json!({})).await;
    ground.publish("n.a", 10).await;
    ground.consumer("N", "old", json!({ "deliver_policy": "new" })).await;
    ground.publish("n.a", 90).await;
    assert_eq!(ground.drain("N", "ahead", 50).await.len(), 50);
    let (_, undo) = acted(&ground, "N", &["ahead"], Action::Delete).await;
    let effect = taken_back(&ground, &undo).await;
    assert!(effect.notes.iter().any(|note| note.contains("by_start_sequence")), "{effect:?}");
    assert_eq!(ground.owed("N", "old", 50).await, (51..=100).collect::<Vec<u64>>());
}

pub(crate) async fn nothing_is_taken_back_from_who_went_on_or_is_there_again() {
    let ground = Ground::new().await;
    for action in [Action::Reclaim, Action::Delete] {
        let stream = format!("X{action:?}");
        ground.stream(&stream, json!({ "subjects": [format!("{stream}.>")] })).await;
        ground.consumer(&stream, "old", json!({})).await;
        ground.publish(&format!("{stream}.a"), 20).await;
        let (_, undo) = acted(&ground, &stream, &[], action).await;
        if action == Action::Delete {
            ground.consumer(&stream, "old", json!({})).await;
        }
        ground.publish(&format!("{stream}.a"), 5).await;
        assert_eq!(ground.drain(&stream, "old", 2).await.len(), 2);
        let effect = taken_back(&ground, &undo).await;
        assert_eq!(effect.skipped.map(|why| (why.rule, why.alive)), Some(("changed", true)), "{stream}");
        assert_eq!(ground.owed(&stream, "old", 3).await, [23, 24, 25]);
    }
    // A purge has no way back.
    ground.stream("XP", json!({ "subjects": ["XP.>"] })).await;
    ground.consumer("XP", "old", json!({ "deliver_policy": "new" })).await;
    ground.publish("XP.a", 20).await;
    let (_, undo) = acted(&ground, "XP", &[], Action::Reclaim).await;
    let refused = ground.acting(QUICK).undo(&undo, &Taken::default(), &permit()).await.unwrap_err();
    assert!(refused.to_string().contains("gone for good"), "{refused}");
}
