//! Changes of the workers' code that each break a promise, and that the simulation has to notice.

use std::path::Path;

/// A change of the code: of texts that each are there once.
pub struct Mutant {
    /// What the code then does.
    pub does: &'static str,
    /// File below `workers/`, text there, and what it becomes.
    pub changes: &'static [(&'static str, &'static str, &'static str)],
}

const EXECUTOR: &str = "trimtab/src/workers/executor.rs";
const SCANNER: &str = "trimtab/src/workers/scanner.rs";
const SCANS: &str = "trimtab/src/scans.rs";
const PROGRESS: &str = "trimtab/src/scans/progress.rs";
const ACTIVITY: &str = "trimtab/src/activity.rs";

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        does: "acts although what it sees now says something else",
        changes: &[(
            EXECUTOR,
            "if let Some(changed) = difference(&decision, &again) {",
            "if let Some(changed) = difference(&decision, &again).filter(|_| false) {",
        )],
    },
    Mutant {
        does: "does not look again, and obeys what it was told",
        changes: &[
            (EXECUTOR, "let again = Decision { id: decision.id, ..again };", "let again = decision.clone();"),
            (
                EXECUTOR,
                "check_any(&again, &seen, &parts.policy, context.now_ms) {",
                "check_any(&again, &seen, &parts.policy, context.now_ms) && false {",
            ),
        ],
    },
    Mutant {
        does: "records an act under the id that a decision of now would have",
        changes: &[(EXECUTOR, "let again = Decision { id: decision.id, ..again };", "")],
    },
    Mutant {
        does: "leads a scan although a later lease has led",
        changes: &[(SCANS, "if fence > leader.scan.fence {", "if fence > leader.scan.fence && false {")],
    },
    Mutant {
        does: "opens a gate that a later lease has closed",
        changes: &[(
            SCANS,
            "Some((known, _)) if known.scan.fence > gate.scan.fence => {",
            "Some((known, _)) if known.scan.fence > gate.scan.fence && false => {",
        )],
    },
    Mutant {
        does: "takes a time of 0 for a moment in 1970",
        changes: &[
            (
                "policy/src/rules/retention.rs",
                "        closed_ms: (info.closed_ms > 0).then_some(info.closed_ms),\n        really_closed_ms: (info.closed_ms > 0).then_some(info.closed_ms),\n        last: false,",
                "        closed_ms: Some(info.closed_ms),\n        really_closed_ms: Some(info.closed_ms),\n        last: false,",
            ),
            (
                "policy/src/check.rs",
                "    Some(closed_ms).filter(|closed| *closed > 0)\n",
                "    Some(closed_ms).filter(|closed| *closed > -1)\n",
            ),
        ],
    },
    Mutant {
        does: "takes an error of a look before an act for absence",
        changes: &[(
            EXECUTOR,
            "let mut seen = match parts.inventory.observe(&decision.subject).await? {",
            "let mut seen = match parts.inventory.observe(&decision.subject).await.unwrap_or(None) {",
        )],
    },
    Mutant {
        does: "takes a shard that failed for one that was read",
        changes: &[(SCANNER, "                Err(e) => return Ok(Err(e)),\n", "                Err(_) => break,\n")],
    },
    Mutant {
        does: "adds a shard that is in already",
        changes: &[(PROGRESS, "        if self.done.get(index) {\n", "        if self.done.get(index) && false {\n")],
    },
    Mutant {
        does: "ends a scan before all shards are in",
        changes: &[(
            PROGRESS,
            "        self.report.shards >= u64::from(self.shards)\n",
            "        self.report.shards + 1 >= u64::from(self.shards)\n",
        )],
    },
    Mutant {
        does: "acts before the intent is recorded",
        changes: &[(
            EXECUTOR,
            "if let Err(e) = self.intend(&again, &before, &seen).await {",
            "if let Err(e) = Ok::<(), Failure>(()) {",
        )],
    },
    Mutant {
        does: "acts on decisions of a scan that a limit has stopped",
        changes: &[
            (
                EXECUTOR,
                "        Ok(gate.is_none_or(|gate| gate.closed().is_none()))\n",
                "        Ok(gate.is_none_or(|_| true))\n",
            ),
            (
                EXECUTOR,
                "if let Some(why) = gate.as_ref().and_then(|gate| gate.closed()) {",
                "if let Some(why) = gate.as_ref().and_then(|gate| gate.closed()).filter(|_| false) {",
            ),
        ],
    },
    Mutant {
        does: "sets no budget aside",
        changes: &[(
            SCANS,
            "            if acts > caps.max_acts || all > caps.max_bytes {\n",
            "            if (acts > caps.max_acts || all > caps.max_bytes) && false {\n",
        )],
    },
    Mutant {
        does: "believes whoever sends a decision",
        changes: &[(
            EXECUTOR,
            "            self.parts.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;\n",
            "",
        )],
    },
    Mutant {
        does: "does not heed a wish that came after the scan",
        changes: &[
            (
                ACTIVITY,
                "        Ok(wish.filter(|wish| wish.until_ms.is_none_or(|until| now_ms < until)))\n",
                "        Ok(wish.filter(|_| now_ms < 0))\n",
            ),
            (
                ACTIVITY,
                "(subscriber.mark, subscriber.protected) = (mark, protected);",
                "(subscriber.mark, subscriber.protected) = (mark, protected.filter(|_| false));",
            ),
        ],
    },
    Mutant {
        does: "forgets what it has carried out",
        changes: &[(
            EXECUTOR,
            "            let known = intents.get(&key).copied();\n",
            "            let known = intents.get(&key).copied().filter(|how| *how != Intent::Closed);\n",
        )],
    },
    Mutant {
        does: "carries out what another of its tasks is at",
        changes: &[(
            EXECUTOR,
            "            let known = intents.get(&key).copied();\n",
            "            let known = intents.get(&key).copied().filter(|how| !matches!(how, Intent::Claimed | Intent::Running));\n",
        )],
    },
    Mutant {
        does: "leaves open what it could not record",
        changes: &[(EXECUTOR, "self.executor.left_open.store(true, Ordering::Relaxed);", "")],
    },
    Mutant {
        does: "skips decisions of a clock that is a little ahead",
        changes: &[(
            EXECUTOR,
            "            && early <= parts.caps.max_clock_skew\n",
            "            && early <= parts.caps.max_clock_skew\n            && false\n",
        )],
    },
    Mutant {
        does: "moves a subscriber as soon as it is announced",
        changes: &[(
            "policy/src/subscribers/mod.rs",
            "            if now_ms >= until { Grace::Over } else { Grace::Until(until) }\n",
            "            if now_ms >= until || grace_s > 0 { Grace::Over } else { Grace::Until(until) }\n",
        )],
    },
    Mutant {
        does: "does not see that a subscriber has moved",
        changes: &[(
            ACTIVITY,
            "        let same = known.progress == number;\n",
            "        let same = known.progress == number || known.progress != 0;\n",
        )],
    },
    Mutant {
        does: "takes everybody for stale who was seen twice",
        changes: &[(
            "policy/src/subscribers/stale.rs",
            "    if idle_s <= limit_s {\n",
            "    if idle_s <= limit_s && false {\n",
        )],
    },
];

impl Mutant {
    /// Changes the code below `root`.
    ///
    /// # Errors
    /// The text that is not there once: the code has changed, and this has to follow.
    pub fn apply(&self, root: &Path) -> Result<(), String> {
        for (file, from, to) in self.changes {
            let path = root.join("workers").join(file);
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let there = text.matches(from).count();
            if there != 1 {
                return Err(format!("{:?}: {file} has {there} times, not once: {from}", self.does));
            }
            std::fs::write(&path, text.replace(from, to)).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }
}
