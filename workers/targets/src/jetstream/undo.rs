//! The way back: a consumer that was moved is moved back, one that was deleted is made again from its recorded configuration, where it
//! stood. Messages that went are gone; it gets what is left of those that it had not taken.

use serde_json::{Map, Value};
use trimtab_events::{Consume, Decision, JetStreamStream, Verdict};

use super::act::JetStreamAct;
use super::hands::Hands;
use super::names::StreamName;
use crate::error::{Class, Result, TargetError};
use crate::{Effect, Skipped, Undo};

/// How a consumer was, from the record.
struct Was {
    created: String,
    config: Map<String, Value>,
    floor: u64,
}

impl Was {
    /// The next message that it gets: the first that it had not taken, or what the stream begins with by now. Servers refuse to move one
    /// that began at a time to before the stream's beginning.
    fn next(&self, stream: &JetStreamStream) -> u64 {
        self.floor.saturating_add(1).max(stream.first)
    }
}

pub(super) async fn undo(act: &JetStreamAct, undo: &Undo) -> Result<Effect> {
    let Decision { verdict, subject, consume, .. } = &undo.decision;
    let failed = |class, why: &str| TargetError::new(class, format!("taking back {verdict} on {subject}"), why);
    let consume = consume.as_ref().ok_or_else(|| failed(Class::Invalid, "it says nothing of a consumer"))?;
    match verdict {
        Verdict::Consume | Verdict::DeleteSubscription => {}
        Verdict::Mark => return Err(undo.impossible()),
        _ => return Err(failed(Class::Invalid, "what was purged is gone for good")),
    }
    let name =
        StreamName::of_subject(&consume.log).ok_or_else(|| failed(Class::Invalid, "it is not a stream's name"))?;
    let was = undo.evidence.iter().rev().find_map(|evidence| recorded(evidence, &consume.subscription));
    let was = was.ok_or_else(|| failed(Class::Invalid, "the record does not say how the consumer was"))?;
    let inventory = act.inventory();
    let hands = Hands::open(inventory.account(&name.account)?, inventory.pace(), &name).await?;
    hands.pace.one().await;
    let stream = hands.stream_info().await?;
    let mut effect = Effect::default();
    effect.notes.push(match stream.first.checked_sub(was.floor + 1) {
        None | Some(0) => "nothing that it had not taken has gone by its place in the stream".to_owned(),
        Some(gone) => {
            format!("the stream begins at {} by now: {gone} sequences behind its place are gone for good", stream.first)
        }
    });
    match verdict {
        Verdict::Consume => move_back(&hands, &was, was.next(&stream), consume, &mut effect).await?,
        _ => {
            let next = was.next(&stream);
            make_again(&hands, was, next, consume, &mut effect).await?;
        }
    }
    Ok(effect)
}

async fn move_back(hands: &Hands<'_>, was: &Was, next: u64, consume: &Consume, effect: &mut Effect) -> Result<()> {
    let name = &consume.subscription;
    let changed = |says: String, alive| Some(Skipped { rule: "changed", says, alive });
    let Some(info) = hands.info(name).await? else {
        effect.skipped = changed(format!("consumer {name:?} does not exist any more"), false);
        return Ok(());
    };
    if info.created() != was.created {
        effect.skipped = changed(format!("consumer {name:?} was deleted and made anew since"), false);
    } else if i64::try_from(info.floor()) != Ok(consume.to.entry) {
        let says = format!("consumer {name:?} stands at {} by now: it went on by itself", info.floor());
        effect.skipped = changed(says, true);
    } else {
        hands.reset(name, next).await?;
    }
    Ok(())
}

async fn make_again(hands: &Hands<'_>, was: Was, next: u64, consume: &Consume, effect: &mut Effect) -> Result<()> {
    let name = &consume.subscription;
    if hands.info(name).await?.is_some() {
        let says = format!("there is a consumer {name:?} again");
        effect.skipped = Some(Skipped { rule: "changed", says, alive: true });
        return Ok(());
    }
    let mut config = was.config;
    config.remove("pause_until");
    if let Some(Value::Object(labels)) = config.get_mut("metadata") {
        labels.retain(|key, _| !key.starts_with("_nats."));
    }
    // Only what began at a place that stays the same can be moved back to where it stood. Another one gets that place as its beginning.
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let moves = matches!(text("deliver_policy"), "all" | "by_start_sequence" | "by_start_time");
    if !moves {
        effect.notes.push(format!(
            "it began with deliver_policy = {:?}; now it begins by_start_sequence, which is where it stood",
            text("deliver_policy")
        ));
        config.insert("deliver_policy".to_owned(), "by_start_sequence".into());
        config.insert("opt_start_seq".to_owned(), next.into());
        config.remove("opt_start_time");
    }
    hands.create(name, &config).await?;
    if moves {
        hands.reset(name, next).await?;
    }
    Ok(())
}

fn recorded(evidence: &Value, name: &str) -> Option<Was> {
    let consumers = evidence["consumers"].as_array()?;
    let one = consumers.iter().find(|one| one["name"] == name)?;
    Some(Was {
        created: one["created"].as_str()?.to_owned(),
        config: one["config"].as_object()?.clone(),
        floor: one["floor"].as_u64()?,
    })
}
