//! Small clusters made up for one case each.

use trimtab_events::Decision;
use trimtab_tests::formats::{self, Stage, ledger_path};

use crate::fake::{Fake, Judged, NOW_MS, Nodes, live, snapshot};

pub(crate) const DAY_MS: i64 = 86_400_000;

/// A cluster while it is made up: namespace `t/n`, ids below 100,000 handed out, everything 30 days old.
#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) nodes: Nodes,
}

impl World {
    pub(crate) fn new() -> World {
        let mut world = World { nodes: Nodes::default() };
        for path in [
            "/",
            "/ledgers",
            "/ledgers/available",
            "/ledgers/idgen",
            "/managed-ledgers",
            "/managed-ledgers/t",
            "/schemas",
            "/admin",
            "/admin/policies",
            "/pulsar",
            "/loadbalance",
            "/loadbalance/brokers",
        ] {
            world.nodes.put(path, b"");
        }
        // The root was made by no transaction.
        world.nodes.0.get_mut("/").unwrap().created_zxid = 0;
        world.handed_out(100_000);
        world.namespace("t/n");
        world
    }

    pub(crate) fn handed_out(&mut self, ids: i32) {
        self.nodes.0.get_mut("/ledgers/idgen").unwrap().children_version = ids * 2;
    }

    /// A node with those above it.
    pub(crate) fn node(&mut self, path: &str, value: &[u8]) {
        for (at, _) in path.match_indices('/').skip(1) {
            if !self.nodes.0.contains_key(&path[..at]) {
                self.nodes.put(&path[..at], b"");
            }
        }
        self.nodes.put(path, value);
    }

    pub(crate) fn namespace(&mut self, name: &str) {
        self.node(&format!("/admin/policies/{name}"), b"{}");
        self.node(&format!("/managed-ledgers/{name}/persistent"), b"");
    }

    /// A topic by its path below `/managed-ledgers/`.
    pub(crate) fn topic(&mut self, managed_ledger: &str, ledgers: &[i64]) {
        self.node(&format!("/managed-ledgers/{managed_ledger}"), &formats::managed_ledger(ledgers));
    }

    pub(crate) fn cursor(&mut self, managed_ledger: &str, name: &str, value: &[u8]) {
        self.node(&format!("/managed-ledgers/{managed_ledger}/{name}"), value);
    }

    pub(crate) fn schema(&mut self, id: &str, ledgers: &[i64]) {
        self.node(&format!("/schemas/{id}"), &formats::schema(ledgers));
    }

    /// A ledger with these marks.
    pub(crate) fn marked(&mut self, id: i64, stage: Stage, marks: &[(&str, &str)]) {
        let value = formats::ledger(stage, &["bookie:3181".to_owned()], None, marks);
        self.node(&ledger_path(id), &value);
    }

    /// A closed ledger of a topic.
    pub(crate) fn ledger(&mut self, id: i64, managed_ledger: &str) {
        self.staged(id, managed_ledger, Stage::Closed(10, 1000));
    }

    pub(crate) fn staged(&mut self, id: i64, managed_ledger: &str, stage: Stage) {
        let marks =
            [("application", "pulsar"), ("component", "managed-ledger"), ("pulsar/managed-ledger", managed_ledger)];
        self.marked(id, stage, &marks);
    }

    /// Sets when a ledger was made and written.
    pub(crate) fn written_ms(&mut self, id: i64, ms: i64) {
        let node = self.nodes.0.get_mut(&ledger_path(id)).unwrap();
        (node.created_ms, node.modified_ms) = (ms, ms);
    }

    /// The nodes, with one that tells the time.
    pub(crate) fn finished(&self) -> Nodes {
        let mut nodes = self.nodes.clone();
        nodes.put("/loadbalance/brokers/b:8080", b"{}");
        let clock = nodes.0.get_mut("/loadbalance/brokers/b:8080").unwrap();
        (clock.created_ms, clock.modified_ms) = (NOW_MS - 60_000, NOW_MS - 60_000);
        nodes
    }

    pub(crate) fn tree(&self) -> Fake {
        Fake::new(&self.finished())
    }

    /// Read live and from a snapshot, which must agree.
    pub(crate) fn judged(&self) -> Judged {
        let nodes = self.finished();
        let (live, snapshot) = (live(&Fake::new(&nodes)).unwrap(), snapshot(&nodes).unwrap());
        let rules = |judged: &Judged| {
            let rule = |(id, d): (&i64, &Decision)| (*id, d.verdict, d.reasons[0].rule.clone());
            judged.decisions.iter().map(rule).collect::<Vec<_>>()
        };
        assert_eq!(rules(&live), rules(&snapshot));
        let without_reasons = |judged: &Judged| {
            let mut report = judged.report.clone();
            report.incomplete.values_mut().for_each(String::clear);
            report.unread.iter_mut().for_each(|unread| unread.why.clear());
            report.broken = report.broken.map(|_| String::new());
            report
        };
        assert_eq!(without_reasons(&live), without_reasons(&snapshot));
        live
    }
}
