//! Any bytes as what NATS servers say of a stream and of its consumers: reading never panics, and whatever is read from it, what is decided
//! by rules that allow everything keeps the promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trimtab_events::{Candidate, History, ScanRef};
use trimtab_policy::{Action, Context, Policy, PolicyConfig, Rule, abridge, check_any, decide_any};
use trimtab_targets::jetstream::{StreamName, stream_of_answers};

const NOW_MS: i64 = 1_800_000_000_000;

fuzz_target!(|data: &[u8]| {
    // The two answers, one on each line.
    let Some(end) = data.iter().position(|byte| *byte == b'\n') else { return };
    let (stream, consumers) = (&data[..end], &data[end + 1..]);
    let Ok(mut log) = stream_of_answers(&StreamName::new("A", "S"), stream, consumers) else { return };
    assert_eq!(stream_of_answers(&StreamName::new("A", "S"), stream, consumers).ok().as_ref(), Some(&log));
    for subscriber in &mut log.subscribers {
        subscriber.history = Some(History { since_ms: 1, last_ms: NOW_MS - 1, sightings: 9 });
    }
    for action in [Action::Reclaim, Action::Delete] {
        let rule = Rule {
            action,
            stale_after_s: Some(1),
            grace_s: Some(0),
            ttl_s: Some(1),
            overrides: true,
            allow_unguarded: true,
            ..Rule::default()
        };
        let config = PolicyConfig { rules: vec![rule], ..PolicyConfig::default() };
        let policy = Policy::new(config, "fuzz").expect("valid rules");
        let context = Context { scan: ScanRef { id: uuid::Uuid::nil(), fence: 0 }, target: "t", now_ms: NOW_MS };
        let mut log = log.clone();
        for round in 0..2 {
            let candidate = Candidate::Subscriber(Box::new(log.clone()));
            let decisions = decide_any(&candidate, &policy, &context);
            for decision in &decisions {
                check_any(decision, &candidate, &policy, NOW_MS)
                    .unwrap_or_else(|e| panic!("round {round}: {e}: {decision:#?}"));
            }
            abridge(&mut log, &decisions);
        }
    }
});
