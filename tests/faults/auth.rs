//! A ZooKeeper that asks who one is before it shows anything: by digest, by SASL, over TLS.

use std::collections::BTreeMap;

use serde_json::Value;
use tempfile::TempDir;
use trimtab_tests::trimtab::{Ended, run};
use trimtab_tests::zookeeper::{SASL_USER, ZooKeeperRig};

use crate::zookeeper::essence;

/// Long after anything that the rig makes.
const NOW: &str = "2100-01-01T00:00:00Z";
type Essence = (BTreeMap<String, Value>, Value);

const DIGEST_USER: &str = "reader:digest-secret";

/// Sixteen topics, which only the two known users may read.
struct Guarded {
    rig: ZooKeeperRig,
    folder: TempDir,
    /// What a plan held while everybody could read.
    open: Essence,
}

impl Guarded {
    fn new(client_certificates: bool) -> Guarded {
        let rig = ZooKeeperRig::start(client_certificates).unwrap();
        let mut client = rig.client().unwrap();
        client.run("fill faults 16 4").unwrap();
        let mut guarded = Guarded { rig, folder: tempfile::tempdir().unwrap(), open: Essence::default() };
        guarded.open = found(&guarded.plan(&guarded.rig.plain(), ""));
        assert!(guarded.open.0.len() >= 10, "{:?}", guarded.open);
        for top in ["/admin", "/managed-ledgers"] {
            client.run(&format!("restrict {top} digest:{DIGEST_USER} sasl:{}", SASL_USER.0)).unwrap();
        }
        guarded
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn plan(&self, address: &str, pulsar: &str) -> Ended {
        let config = self.file("config.toml", &format!("[pulsar]\n{pulsar}\n"));
        let from = format!("zk://{address}");
        run(self.folder.path(), &["plan", "--output", "json", "--now", NOW, "--from", &from, "--config", &config])
    }
}

fn found(ended: &Ended) -> Essence {
    essence(&serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended:?}")))
}

#[test]
#[ignore = "needs ZooKeeper"]
fn users_are_known_by_digest_and_by_sasl_and_strangers_see_nothing() {
    let guarded = Guarded::new(false);
    let plain = guarded.rig.plain();
    let secret = guarded.file("digest", &format!("{DIGEST_USER}\n"));
    let digest = guarded.plan(&plain, &format!("zk_digest_file = {secret:?}")).exits(0);
    let secret = guarded.file("sasl", &format!("{}:{}\n", SASL_USER.0, SASL_USER.1));
    let sasl = guarded.plan(&plain, &format!("zk_sasl_file = {secret:?}")).exits(0);
    assert_eq!(found(&digest), guarded.open);
    assert_eq!(found(&sasl), guarded.open);

    // Who may see nothing is told so, and nothing is taken for gone.
    let strangers = [
        ("no credentials", String::new()),
        ("a wrong digest", format!("zk_digest_file = {:?}", guarded.file("bad", "reader:guess"))),
    ];
    for (what, pulsar) in strangers {
        let ended = guarded.plan(&plain, &pulsar);
        assert!(ended.code == 1 && ended.err.contains("not authorized"), "{what}: {ended:?}");
        assert!(ended.err.contains("/admin") || ended.err.contains("/managed-ledgers"), "{what}: {ended:?}");
    }
    let wrong = guarded.file("wrong", &format!("{}:guess", SASL_USER.0));
    let ended = guarded.plan(&plain, &format!("zk_sasl_file = {wrong:?}")).exits(1);
    assert!(ended.err.contains(&plain) && ended.err.contains("auth"), "{ended:?}");
    let bad = guarded.file("no-colon", "nothing");
    for key in ["zk_sasl_file", "zk_digest_file"] {
        let ended = guarded.plan(&plain, &format!("{key} = {bad:?}")).exits(2);
        assert!(ended.err.contains("user:password") && !ended.err.contains("nothing\n"), "{ended:?}");
    }
}

#[cfg(feature = "zk-tls")]
mod tls {
    use super::{DIGEST_USER, Guarded, found};

    #[test]
    #[ignore = "needs ZooKeeper"]
    fn zookeeper_over_tls() {
        let guarded = Guarded::new(true);
        let (secure, ca, (cert, key)) = (guarded.rig.secure(), guarded.rig.ca(), guarded.rig.certificate());
        let secret = guarded.file("digest", DIGEST_USER);
        let known = format!("zk_digest_file = {secret:?}\n");
        let own = format!("zk_cert_file = {cert:?}\nzk_key_file = {key:?}\n");
        let ended = guarded.plan(&secure, &format!("{known}{own}zk_ca_file = {ca:?}")).exits(0);
        assert_eq!(found(&ended), guarded.open);
        // A server that somebody else vouches for is not talked to, nor is one that does not know us.
        let other = guarded.rig.other_ca();
        let ended = guarded.plan(&secure, &format!("{known}{own}zk_ca_file = {other:?}")).exits(1);
        assert!(ended.err.contains(&secure) && ended.err.contains("zk_ca_file"), "{ended:?}");
        let ended = guarded.plan(&secure, &format!("{known}zk_ca_file = {ca:?}")).exits(1);
        assert!(ended.err.contains(&secure) && ended.err.contains("zk_cert_file"), "{ended:?}");
        let ended = guarded.plan(&secure, &format!("{known}{own}")).exits(2);
        assert!(ended.err.contains("zk_ca_file"), "{ended:?}");
    }
}

#[cfg(not(feature = "zk-tls"))]
#[test]
fn a_build_without_tls_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, format!("[pulsar]\nzk_ca_file = {config:?}\n")).unwrap();
    let config = config.display().to_string();
    let ended = run(folder.path(), &["plan", "--from", "zk://127.0.0.1:1", "--config", &config]).exits(1);
    assert!(ended.err.contains("zk-tls"), "{ended:?}");
}
