//! The code that is modelled, line by line in its order. Where it changes, this fails, and the model is to be looked at again.

use std::path::Path;

/// Files of the workers, and what must stand in each, one after the other.
const PLACES: [(&str, &[&str]); 24] = [
    (
        "trimtab/src/workers/executor.rs",
        &[
            "pub async fn carry_out(",
            "None => drop(intents.insert(key.clone(), Intent::Claimed))",
            "Some(Intent::Claimed | Intent::Running) =>",
            "Some(Intent::Open) =>",
            "self.close_open(&key, out).await",
            "Some(Intent::Closed) =>",
            "\"repeated\"",
        ],
    ),
    (
        "trimtab/src/workers/executor.rs",
        &[
            "async fn attempt(",
            "Permit::for_mode(parts.mode)",
            "parts.inventory.observe(&decision.subject).await?",
            "decide_any(&seen",
            "difference(&decision, &again)",
            "check_any(&again",
            ".reserve(decision.scan.id",
            "self.intend(&again, &before, &seen).await",
            "self.act(&again, &seen, before, &permit).await",
        ],
    ),
    (
        "trimtab/src/workers/executor.rs",
        &[
            "async fn act(",
            "parts.act.act(decision, seen, &record, permit)",
            "parts.inventory.observe(&decision.subject).await",
            "judge(decision, before, acted, after)",
            "async fn finish(",
            "journal.write(entry).await",
            "Intent::Closed",
            "self.told(&outcome, out).await?",
        ],
    ),
    ("trimtab/src/workers/executor.rs", &["async fn close_open(", "inventory.observe(", "act.tidy(", "self.finish("]),
    (
        "trimtab/src/workers/executor.rs",
        &["fn handle<'a>", "gate(decision.scan.id)", "gate.scan.fence >= decision.scan.fence", "self.carry_out("],
    ),
    ("trimtab/src/worker.rs", &["async fn settle(", "Ok(()) => (\"done\", settle.done().await)"]),
    ("trimtab/src/workers/decider.rs", &["act_on_any(", "out.emit_all(&acts).await?", "== Published::Outstanding"]),
    (
        "trimtab/src/workers/scanner.rs",
        &[
            "async fn lead(",
            ".acquire(&name",
            "self.lead_under(",
            ".release(",
            "self.scans.lead(",
            "progress.led(scan, now)",
        ],
    ),
    (
        "trimtab/src/workers/scanner.rs",
        &[
            "async fn read(",
            ".acquire(&name",
            "self.read_and_merge(",
            ".release(",
            "async fn begin(",
            "progress.is_done(asked.index)",
            "progress.report.scan != asked.scan",
            "async fn read_and_merge(",
            "shard_with_tries(",
            "self.renew(scan)",
            "progress.merge(",
        ],
    ),
    (
        "trimtab/src/workers/scanner.rs",
        &[
            "async fn end(",
            ".acquire(",
            "filter(Progress::finished)",
            "self.scans.lead(",
            "self.judge(",
            "self.scans.finish(",
        ],
    ),
    ("trimtab/src/workers/scanner.rs", &["async fn judge(", "trigger.follows()", "self.scans.follow(", "over_caps("]),
    (
        "trimtab/src/scans/progress.rs",
        &["pub fn merge(", "self.done.get(index)", "self.report.scan != part.report.scan", "self.done.set(index)"],
    ),
    (
        "trimtab/src/scans.rs",
        &["pub async fn begin(", "Expect::Absent", "pub async fn advance", "Expect::Revision(revision)"],
    ),
    ("trimtab/src/scans.rs", &["pub async fn lead(", "fence > leader.scan.fence", "expect).await"]),
    ("trimtab/src/scans.rs", &["pub async fn finish(", "known.scan.fence > gate.scan.fence", "expect).await"]),
    ("trimtab/src/scans.rs", &["pub async fn reserve(", "self.change(", "acts > caps.max_acts"]),
    (
        "targets/src/pulsar/act.rs",
        &["visit::trim(&self.admin", "async fn expire(", "self.admin.expire(name, &expire.subscription, expire.ttl_s)"],
    ),
    ("targets/src/pulsar/visit.rs", &["admin.trim(name).await?", "gone(inventory, name, ledgers)"]),
    (
        "targets/src/pulsar/admin.rs",
        &[
            "pub(crate) async fn trim(",
            "{}/trim",
            "pub(crate) async fn expire(",
            "expireMessages/{ttl_s}",
            "pub(crate) async fn close(",
            "self.connected(name).await?",
            "producers + connected.consumers > 0",
            "self.unload(name).await?",
        ],
    ),
    (
        "targets/src/pulsar/subscriptions/mod.rs",
        &[
            "async fn try_consume(",
            "self.same(&job.subscriber, true).await?",
            "self.hold(&job.subscriber, steps, visited).await?",
            "held.let_go(steps, consumed).await",
            "async fn consume_held(",
            "unmoved(",
            "steps.before(Step::Acknowledge(",
            "held.attachment.acknowledge(up_to).await",
        ],
    ),
    (
        "targets/src/pulsar/subscriptions/hold.rs",
        &[
            "async fn hold(",
            "self.ask(subscriber, visited).await?",
            "connection.attach(attach).await",
            "self.confirm(",
            "async fn confirm(",
            "node.seen.created_zxid == cursor.created_zxid",
            "took > self.options.prompt",
            "attachment.last_message().await",
        ],
    ),
    (
        "targets/src/hedwig/act.rs",
        &[
            "async fn steps(",
            "self.settled(what).await?",
            "self.target(what, None).await?",
            "self.attach(what, &hub, owner).await?",
            "self.hold(what, attached, visit).await",
            "attached.consume_and_close(&target.end)",
            "subscriber.seen != what.seen",
            "stands > pointer && what.stood_at != Some(stands)",
        ],
    ),
    (
        "targets/src/bookkeeper/act.rs",
        &[
            "async fn delete(",
            "stat.seen() != ledger.seen",
            "record.record(evidence).await?",
            "guarded(&ledger.guards",
            "Write::Delete { path, version: stat.version }",
            ".commit(&writes).await?",
            "fn guarded",
            "Evidence::Present(seen) => writes.push(Write::Check",
            "Write::Create { path, value: &[]",
            "Write::Delete { path, version: 0 }",
        ],
    ),
    (
        "targets/src/jetstream/act.rs",
        &[
            "async fn carry_out(",
            "checked(hands.info(name)",
            "record.record(",
            "self.hold(&hands",
            "if !unanswered",
            "self.let_go(",
            "async fn held(",
            "self.last_look(hands, parties, case)",
            "hands.reset(subject, end + 1)",
        ],
    ),
];

#[test]
fn what_is_modelled_is_what_the_code_does() {
    let workers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers");
    for (file, lines) in PLACES {
        let text = std::fs::read_to_string(workers.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let mut from = 0;
        for line in lines {
            let at = text[from..].find(line);
            from += at.unwrap_or_else(|| panic!("{file} has no {line:?} after the former: look at the model again"));
        }
    }
}
