//! Somebody comes back at each moment of an act, in each way that there is; and an act that is cut off at each moment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::future::FutureExt;
use serde_json::{Value, json};
use trimtab_events::Candidate;
use trimtab_policy::Action;
use trimtab_targets::Act;
use trimtab_targets::jetstream::{Moment, Times};

use crate::ground::{Ground, PATIENCE, QUICK, Reader, Taken, acknowledged, api, at, permit, reader, until};

const MOMENTS: [Moment; 5] = [Moment::Checked, Moment::Held, Moment::Looked, Moment::Called, Moment::LetGo];

/// Whether somebody who comes back at this moment is seen, and so loses nothing.
fn seen(moment: Moment) -> bool {
    matches!(moment, Moment::Checked | Moment::Held)
}

/// What comes to a consumer of 100 messages that is moved to 100, with 5 more published afterwards.
fn owed(moment: Moment) -> Vec<u64> {
    if seen(moment) { (1..=105).collect() } else { (101..=105).collect() }
}

/// A pull that waits, as most clients have one.
pub(crate) async fn whoever_pulls_again_is_seen_and_loses_nothing() {
    let ground = Ground::new().await;
    let cases = [Action::Reclaim, Action::Delete].into_iter().flat_map(|action| MOMENTS.map(|moment| (action, moment)));
    futures::future::join_all(cases.map(async |(action, moment)| {
        let stream = format!("P{action:?}{moment:?}");
        ground.stream(&stream, json!({})).await;
        ground.consumer(&stream, "old", json!({})).await;
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 100).await;
        let kept: Arc<Mutex<Option<Reader>>> = Arc::default();
        let (client, its, keep) = (ground.client.clone(), stream.clone(), kept.clone());
        let act = at(ground.acting(QUICK), moment, move || {
            async move {
                let reader = reader(&client, &its, "old").await;
                reader.ask(1_000).await;
                *keep.lock().unwrap() = Some(reader);
            }
            .boxed()
        });
        let effect = ground.act(&act, &stream, "old", &[], action).await.unwrap();
        let skipped = effect.skipped.as_ref().map(|why| (why.rule, why.alive));
        assert_eq!(skipped, seen(moment).then_some(("online", true)), "{action:?} at {moment:?}: {effect:?}");
        ground.publish(&subject, 5).await;
        let mut reader = kept.lock().unwrap().take().unwrap();
        if action == Action::Delete && !seen(moment) {
            assert!(reader.got_nothing(), "at {moment:?} there is nothing any more to pull from");
            assert_eq!(ground.info(&stream, "old").await["error"]["code"], 404);
        } else {
            // Its pull is still the same one: it waited.
            assert_eq!(reader.take(owed(moment).len()).await, owed(moment), "{action:?} at {moment:?}");
            assert!(ground.owed(&stream, "old", 0).await.is_empty(), "{action:?} at {moment:?}");
        }
    }))
    .await;
}

/// A client that fetches for an instant only, between two looks: no look shows it, and it is heard. Where one may not listen, it is not.
pub(crate) async fn whoever_fetches_for_an_instant_is_heard() {
    let ground = Ground::new().await;
    let fetches =
        [("SHORT", json!({ "batch": 10, "expires": 1_000_000 })), ("NOWAIT", json!({ "batch": 10, "no_wait": true }))];
    let cases =
        fetches.into_iter().flat_map(|(how, pull)| [Moment::Checked, Moment::Held].map(|at| (how, pull.clone(), at)));
    futures::future::join_all(cases.map(async |(how, pull, moment)| {
        let stream = format!("F{how}{moment:?}");
        ground.stream(&stream, json!({})).await;
        // It has some in hand already, and so gets none.
        ground.consumer(&stream, "old", json!({ "max_ack_pending": 5 })).await;
        ground.publish(&format!("{}.a", stream.to_lowercase()), 100).await;
        let mut holder = ground.reader(&stream, "old").await;
        holder.ask(5).await;
        ground.says(&stream, "old", "num_ack_pending", 5).await;
        let (client, its) = (ground.client.clone(), stream.clone());
        let act = at(ground.acting(QUICK), moment, move || {
            async move {
                let reader = reader(&client, &its, "old").await;
                reader.ask_so(pull).await;
                until!("it waits no more", {
                    let info = api(&client, &format!("CONSUMER.INFO.{its}.old"), Value::Null).await;
                    info["num_waiting"].as_u64() == Some(0)
                });
            }
            .boxed()
        });
        let effect = ground.act(&act, &stream, "old", &[], Action::Reclaim).await.unwrap();
        let skipped = effect.skipped.map(|why| (why.rule, why.alive));
        assert_eq!(skipped, Some(("online", true)), "{how} at {moment:?}");
        let info = ground.info(&stream, "old").await;
        let number = |key: &str| info[key].as_u64().unwrap();
        assert_eq!(info["ack_floor"]["stream_seq"], 0, "{info}");
        assert_eq!(number("num_pending") + number("num_ack_pending"), 100, "{info}");
        assert_eq!(holder.take(5).await, [1, 2, 3, 4, 5]);
    }))
    .await;
}

/// One that had messages in hand acknowledges them.
pub(crate) async fn whoever_acknowledges_is_seen_and_loses_nothing() {
    let ground = Ground::new().await;
    futures::future::join_all(MOMENTS.map(async |moment| {
        let stream = format!("A{moment:?}");
        ground.stream(&stream, json!({})).await;
        ground.consumer(&stream, "old", json!({})).await;
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 100).await;
        let inbox = ground.client.new_inbox();
        let mut messages = ground.client.subscribe(inbox.clone()).await.unwrap();
        let next = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.old");
        ground.client.publish_with_reply(next, inbox, "1".into()).await.unwrap();
        let ack = messages.next().await.unwrap().reply.unwrap();
        ground.says(&stream, "old", "num_ack_pending", 1).await;
        let client = ground.client.clone();
        let act = at(ground.acting(QUICK), moment, move || {
            async move {
                if matches!(moment, Moment::Called | Moment::LetGo) {
                    // Nobody confirms it: it is about what was given up.
                    client.publish(ack, "+ACK".into()).await.unwrap();
                    return client.flush().await.unwrap();
                }
                acknowledged(&client, ack).await;
            }
            .boxed()
        });
        let effect = ground.act(&act, &stream, "old", &[], Action::Reclaim).await.unwrap();
        let skipped = effect.skipped.as_ref().map(|why| (why.rule, why.alive));
        assert_eq!(skipped.map(|(_, alive)| alive), seen(moment).then_some(true), "{moment:?}");
        ground.publish(&subject, 5).await;
        let owed = if seen(moment) { (2..=105).collect() } else { owed(moment) };
        assert_eq!(ground.owed(&stream, "old", owed.len()).await, owed, "{moment:?}");
    }))
    .await;
}

/// A subscriber of a push consumer.
pub(crate) async fn whoever_subscribes_again_is_seen_and_loses_nothing() {
    let ground = Ground::new().await;
    futures::future::join_all(MOMENTS.map(async |moment| {
        let stream = format!("U{moment:?}");
        ground.stream(&stream, json!({})).await;
        let deliver = format!("to.{moment:?}");
        ground.consumer(&stream, "old", json!({ "deliver_subject": deliver })).await;
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 100).await;
        let kept: Arc<Mutex<Option<async_nats::Subscriber>>> = Arc::default();
        let (client, keep, its) = (ground.client.clone(), kept.clone(), stream.clone());
        let act = at(ground.acting(QUICK), moment, move || {
            async move {
                let subscriber = client.subscribe(deliver).await.unwrap();
                until!("its servers know of it", {
                    api(&client, &format!("CONSUMER.INFO.{its}.old"), Value::Null).await["push_bound"] == true
                });
                *keep.lock().unwrap() = Some(subscriber);
            }
            .boxed()
        });
        let effect = ground.act(&act, &stream, "old", &[], Action::Reclaim).await.unwrap();
        // At the first of them nothing stops what is pushed to it: it is seen to have taken it.
        let skipped = effect.skipped.as_ref().map(|why| why.alive);
        assert_eq!(skipped, seen(moment).then_some(true), "{moment:?}: {effect:?}");
        ground.publish(&subject, 5).await;
        let mut subscriber = kept.lock().unwrap().take().unwrap();
        let mut got = 0;
        while got < owed(moment).len() {
            let message = tokio::time::timeout(PATIENCE, subscriber.next()).await.expect("it gets what it is owed");
            got += usize::from(message.unwrap().reply.is_some());
        }
        ground.says(&stream, "old", "num_pending", 0).await;
        assert!(subscriber.next().now_or_never().is_none(), "{moment:?}: and no more");
    }))
    .await;
}

/// Between the sighting and the act, and another one of the same name.
pub(crate) async fn whoever_moved_went_or_was_made_anew_since_the_decision_is_left_alone() {
    let ground = Ground::new().await;
    for (stream, how) in
        [("MOVED", "changed"), ("GONE", "gone"), ("ANEW", "changed"), ("PAUSED", "paused"), ("FRESH", "changed")]
    {
        ground.stream(stream, json!({})).await;
        ground.consumer(stream, "old", json!({})).await;
        ground.consumer(stream, "other", json!({})).await;
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 100).await;
        ground.drain(stream, "other", 100).await;
        let (decision, seen) = ground.decided(stream, "old", &["other"], Action::Reclaim).await;
        match stream {
            "MOVED" => drop(ground.drain(stream, "old", 1).await),
            "PAUSED" => {
                let until = json!({ "pause_until": "2100-01-01T00:00:00Z" });
                ground.api("CONSUMER.PAUSE.PAUSED.old", until).await;
            }
            "FRESH" => {
                ground.api("STREAM.DELETE.FRESH", Value::Null).await;
                ground.stream(stream, json!({})).await;
                ground.consumer(stream, "old", json!({})).await;
                ground.publish(&subject, 100).await;
            }
            _ => drop(ground.api(&format!("CONSUMER.DELETE.{stream}.old"), Value::Null).await),
        }
        if stream == "ANEW" {
            ground.consumer(stream, "old", json!({})).await;
        }
        let before = ground.held(stream).await;
        let seen = Candidate::Subscriber(Box::new(seen));
        let effect = ground.acting(QUICK).act(&decision, &seen, &Taken::default(), &permit()).await.unwrap();
        assert_eq!(effect.skipped.map(|why| why.rule), Some(how), "{stream}");
        assert_eq!(ground.held(stream).await, before, "{stream}");
        let paused = ground.info(stream, "old").await["paused"].as_bool().unwrap_or(false);
        assert_eq!(paused, stream == "PAUSED", "{stream}: somebody's pause stays, ours is over");
    }
}

/// A pause that somebody makes while we hold it is their wish: it is not ended, and nothing is done.
pub(crate) async fn a_pause_that_is_not_ours_stays() {
    let ground = Ground::new().await;
    ground.stream("W", json!({})).await;
    ground.consumer("W", "old", json!({})).await;
    ground.publish("w.a", 100).await;
    let client = ground.client.clone();
    let act = at(ground.acting(QUICK), Moment::Held, move || {
        async move {
            let until = json!({ "pause_until": "2100-01-01T00:00:00Z" });
            api(&client, "CONSUMER.PAUSE.W.old", until).await;
        }
        .boxed()
    });
    let effect = ground.act(&act, "W", "old", &[], Action::Reclaim).await.unwrap();
    assert_eq!(effect.skipped.map(|why| (why.rule, why.alive)), Some(("paused", false)));
    assert_eq!(ground.held("W").await.0, 100);
    let info = ground.info("W", "old").await;
    assert_eq!(
        (info["paused"].as_bool(), info["config"]["pause_until"].as_str()),
        (Some(true), Some("2100-01-01T00:00:00Z"))
    );
}

/// A crash between any two steps leaves a pause that ends by itself, and a consumer that stands at one end of the act or the other.
pub(crate) async fn an_act_that_is_cut_off_leaves_a_pause_that_ends_by_itself() {
    let ground = Ground::new().await;
    let short = Times { hold: Duration::from_secs(10), within: Duration::from_secs(9), ..QUICK };
    futures::future::join_all(MOMENTS.map(async |moment| {
        let stream = format!("C{moment:?}");
        ground.stream(&stream, json!({})).await;
        ground.consumer(&stream, "old", json!({})).await;
        let subject = format!("{}.a", stream.to_lowercase());
        ground.publish(&subject, 100).await;
        let (reached, mut waits) = tokio::sync::mpsc::channel::<()>(1);
        let act = at(ground.acting(short), moment, move || {
            async move {
                reached.send(()).await.unwrap();
                futures::future::pending::<()>().await;
            }
            .boxed()
        });
        let (decision, seen) = ground.decided(&stream, "old", &[], Action::Reclaim).await;
        let seen = Candidate::Subscriber(Box::new(seen));
        let task = tokio::spawn(async move { act.act(&decision, &seen, &Taken::default(), &permit()).await });
        waits.recv().await.unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let paused = ground.info(&stream, "old").await["paused"].as_bool().unwrap_or(false);
        assert_eq!(paused, matches!(moment, Moment::Held | Moment::Looked | Moment::Called), "{moment:?}");
        while ground.info(&stream, "old").await["paused"].as_bool().unwrap_or(false) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        ground.publish(&subject, 5).await;
        let owed: Vec<u64> = match moment {
            Moment::Called | Moment::LetGo => (101..=105).collect(),
            _ => (1..=105).collect(),
        };
        assert_eq!(ground.owed(&stream, "old", owed.len()).await, owed, "{moment:?}");
    }))
    .await;
}
