//! A cluster of three: leaders change, and nodes die, in the middle of an act.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::FutureExt;
use serde_json::{Value, json};
use trimtab_events::{Candidate, Evidence};
use trimtab_policy::Action;
use trimtab_targets::jetstream::{Moment, Times};
use trimtab_targets::{Act, Class, Effect, Inventory, TargetError};
use trimtab_tests::nats::NatsRig;

use crate::ground::{Ground, QUICK, Taken, api, at, permit, state_of, stream_of, until};

const MOMENTS: [Moment; 4] = [Moment::Checked, Moment::Held, Moment::Looked, Moment::Called];

/// Long enough for an election. An act that is too late does nothing, and what is late in coming comes while the hold lasts.
const PATIENT: Times = Times { hold: Duration::from_secs(14), within: Duration::from_secs(7), ..QUICK };

/// A stream of 100 messages of which `live` has taken 60, and `old` none.
async fn prepared(ground: &Ground, stream: &str) -> String {
    ground.stream(stream, json!({ "num_replicas": 3 })).await;
    ground.consumer(stream, "live", json!({})).await;
    ground.consumer(stream, "old", json!({})).await;
    let subject = format!("{}.a", stream.to_lowercase());
    ground.publish(&subject, 100).await;
    ground.drain(stream, "live", 60).await;
    // What one node knows by now the others may not.
    until!("all is known", {
        let log = ground.observe(stream).await;
        let (old, live) = (state_of(&log, "old"), state_of(&log, "live"));
        (old.pending, live.pending, live.floor, stream_of(&log).last) == (100, 40, 60, 100)
    });
    subject
}

/// Whatever came of the act: `old` stands at one end of it, and `live` has lost nothing.
async fn nothing_is_lost(ground: &Ground, stream: &str, outcome: &Result<Effect, TargetError>, what: &str) {
    until!(format!("{what}: not paused"), !ground.info(stream, "old").await["paused"].as_bool().unwrap_or(false));
    let moved = match outcome {
        Ok(effect) => {
            assert!(effect.skipped.as_ref().is_none_or(|why| !why.alive), "{what}: nobody came back");
            effect.skipped.is_none()
        }
        // It was not answered, and may have been carried out. By now it was, or never will be.
        Err(e) => {
            assert_eq!(e.class(), Class::Transient, "{what}");
            ground.info(stream, "old").await["ack_floor"]["stream_seq"] == 60
        }
    };
    assert_eq!(ground.owed(stream, "live", 40).await, (61..=100).collect::<Vec<u64>>(), "{what}");
    let expected: Vec<u64> = if moved { (61..=100).collect() } else { (1..=100).collect() };
    assert_eq!(ground.owed(stream, "old", expected.len()).await, expected, "{what}");
}

/// One cluster for all of it; that a node dies comes last.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
#[ignore = "needs nats-server"]
async fn whatever_happens_to_the_servers_nobody_loses_a_message() {
    let ground = Ground::of(NatsRig::builder().cluster()).await;
    futures::join!(leaders_change_in_the_middle_of_an_act(&ground), who_comes_back_while_leaders_change(&ground));
    let ground = a_node_dies_in_the_middle_of_an_act(ground).await;
    a_consumer_whose_servers_are_away_is_unknown(ground).await;
}

async fn leaders_change_in_the_middle_of_an_act(ground: &Ground) {
    futures::future::join_all(MOMENTS.map(async |moment| {
        let stream = format!("L{moment:?}").to_uppercase();
        prepared(ground, &stream).await;
        let (client, its) = (ground.client.clone(), stream.clone());
        let act = at(ground.acting(PATIENT), moment, move || {
            async move {
                for tail in [format!("CONSUMER.LEADER.STEPDOWN.{its}.old"), format!("STREAM.LEADER.STEPDOWN.{its}")] {
                    let answer = api(&client, &tail, Value::Null).await;
                    assert_eq!(answer["success"], true, "{answer}");
                }
            }
            .boxed()
        });
        let outcome = ground.act(&act, &stream, "old", &["live"], Action::Reclaim).await;
        let what = format!("{moment:?}: {outcome:?}");
        nothing_is_lost(ground, &stream, &outcome, &what).await;
    }))
    .await;
}

/// Acts on four streams are held up, each at another moment, and then the node that leads all four consumers is killed.
async fn a_node_dies_in_the_middle_of_an_act(mut ground: Ground) -> Ground {
    const NODE: usize = 1;
    let mut cases = Vec::new();
    for moment in MOMENTS {
        let stream = format!("D{moment:?}").to_uppercase();
        prepared(&ground, &stream).await;
        let leader = format!("node{NODE}");
        while ground.info(&stream, "old").await["cluster"]["leader"] != leader.as_str() {
            let there = json!({ "placement": { "preferred": leader } });
            ground.api(&format!("CONSUMER.LEADER.STEPDOWN.{stream}.old"), there).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let (decision, seen) = ground.decided(&stream, "old", &["live"], Action::Reclaim).await;
        cases.push((moment, stream, decision, Candidate::Subscriber(Box::new(seen))));
    }
    let held = Arc::new(tokio::sync::Barrier::new(MOMENTS.len() + 1));
    let killed = Arc::new(tokio::sync::Barrier::new(MOMENTS.len() + 1));
    let running: Vec<_> = cases
        .into_iter()
        .map(|(moment, stream, decision, seen)| {
            let (held, killed) = (held.clone(), killed.clone());
            let act = at(ground.acting(PATIENT), moment, move || {
                async move {
                    held.wait().await;
                    killed.wait().await;
                }
                .boxed()
            });
            tokio::spawn(async move {
                let outcome = act.act(&decision, &seen, &Taken::default(), &permit()).await;
                (moment, stream, outcome)
            })
        })
        .collect();
    held.wait().await;
    ground = blocking(ground, |ground| ground.rig.kill9(NODE).unwrap()).await;
    killed.wait().await;
    let mut ended = Vec::new();
    for act in running {
        ended.push(act.await.unwrap());
    }
    ground = blocking(ground, |ground| ground.rig.start(NODE).unwrap()).await;
    futures::future::join_all(ended.iter().map(async |(moment, stream, outcome)| {
        let what = format!("node {NODE} at {moment:?}: {outcome:?}");
        nothing_is_lost(&ground, stream, outcome, &what).await;
    }))
    .await;
    ground
}

async fn blocking(mut ground: Ground, call: impl FnOnce(&mut Ground) + Send + 'static) -> Ground {
    let called = tokio::task::spawn_blocking(move || {
        call(&mut ground);
        ground
    });
    called.await.unwrap()
}

/// Somebody who comes back is seen by whoever leads by then.
async fn who_comes_back_while_leaders_change(ground: &Ground) {
    futures::future::join_all([Moment::Checked, Moment::Held].map(async |moment| {
        let stream = format!("B{moment:?}").to_uppercase();
        prepared(ground, &stream).await;
        let (client, its) = (ground.client.clone(), stream.clone());
        let reader = ground.reader(&stream, "old").await;
        let kept = Arc::new(Mutex::new(Some(reader)));
        let asks = kept.clone();
        let act = at(ground.acting(QUICK), moment, move || {
            async move {
                api(&client, &format!("CONSUMER.LEADER.STEPDOWN.{its}.old"), Value::Null).await;
                let reader = asks.lock().unwrap().take().unwrap();
                // What is asked while nobody leads reaches nobody.
                until!("whoever leads knows of it", {
                    reader.ask(1_000).await;
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    let info = api(&client, &format!("CONSUMER.INFO.{its}.old"), Value::Null).await;
                    info["num_waiting"].as_u64() > Some(0) || info["num_ack_pending"].as_u64() > Some(0)
                });
                *asks.lock().unwrap() = Some(reader);
            }
            .boxed()
        });
        let effect = ground.act(&act, &stream, "old", &["live"], Action::Reclaim).await.unwrap();
        assert_eq!(effect.skipped.as_ref().map(|why| why.alive), Some(true), "{moment:?}: {effect:?}");
        let mut reader = kept.lock().unwrap().take().unwrap();
        let got = reader.take(100).await;
        assert_eq!(got, (1..=100).collect::<Vec<u64>>(), "{moment:?}");
    }))
    .await;
}

/// A consumer whose servers are away is not known, and not gone.
async fn a_consumer_whose_servers_are_away_is_unknown(mut ground: Ground) {
    ground.stream("M", json!({ "num_replicas": 3, "retention": "limits" })).await;
    for index in 0..6 {
        ground.consumer("M", &format!("c{index}"), json!({ "num_replicas": 1 })).await;
    }
    ground.publish("m.a", 10).await;
    let mut leads: Vec<String> = Vec::new();
    for index in 0..6 {
        leads.push(ground.info("M", &format!("c{index}")).await["cluster"]["leader"].as_str().unwrap().to_owned());
    }
    let node: usize = leads[0].strip_prefix("node").unwrap().parse().unwrap();
    ground = blocking(ground, move |ground| ground.rig.kill9(node).unwrap()).await;
    // An election may have to come first. What is answered then is right, or nothing is.
    let observed = async || ground.inventory.observe("jetstream://$G/M").await.ok();
    let mut log;
    until!("somebody answers", {
        log = observed().await;
        log.is_some()
    });
    let Some(Some(Candidate::Subscriber(log))) = log else { panic!("{log:?}") };
    assert_eq!(log.subscribers.len(), 6);
    for (index, state) in stream_of(&log).consumers.iter().enumerate() {
        let away = leads[index] == leads[0];
        assert_eq!(matches!(state, Evidence::Unknown(_)), away, "c{index} on {}: {state:?}", leads[index]);
        assert_eq!(log.subscribers[index].progress.unknown().is_some(), away);
    }
}
