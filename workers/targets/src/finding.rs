//! What can be said about a target before anything in it is scanned, for whoever sets trimtab up. Only reads.

use std::time::SystemTime;

use serde::Serialize;

use crate::error::{Class, TargetError};

/// How good something is; the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// As it must be.
    Good,
    /// It may be meant so. Somebody should look.
    Doubtful,
    /// Something will not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub what: String,
    /// How good it is.
    pub grade: Grade,
    /// What was found, for a person.
    pub says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

/// What to do where ZooKeeper says no.
pub(crate) const ZK_RIGHTS: &str =
    "give an identity that may read everything: zk_digest_file or zk_sasl_file in the configuration";

impl Finding {
    /// It is as it must be.
    pub fn good(what: impl Into<String>, says: impl Into<String>) -> Finding {
        Finding { what: what.into(), grade: Grade::Good, says: says.into(), advice: None }
    }

    /// Somebody should look.
    pub fn doubtful(what: impl Into<String>, says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what: what.into(), grade: Grade::Doubtful, says: says.into(), advice: Some(advice.into()) }
    }

    /// Something will not work.
    pub fn bad(what: impl Into<String>, says: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what: what.into(), grade: Grade::Bad, says: says.into(), advice: Some(advice.into()) }
    }

    /// What an error comes to. `refused` is what to do where the target said no.
    pub fn failed(what: impl Into<String>, e: &TargetError, refused: &str) -> Finding {
        let advice = match e.class {
            Class::Refused => refused,
            Class::Transient => "see whether the servers are up and can be reached from this host, then try again",
            Class::Gone | Class::Invalid => "check the address and the names in the configuration",
            Class::Bug => "please report this",
        };
        Finding::bad(what, e.to_string(), advice)
    }
}

/// What a clock that says `there` at this moment comes to. Decisions compare the target's times with ours.
pub fn clock(what: impl Into<String>, there: SystemTime) -> Finding {
    let (apart, how) = match there.duration_since(SystemTime::now()) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let says = format!("{:.1} s {how} this host's", apart.as_secs_f64());
    let advice = "have both keep time by NTP: how old something is is the difference between the two clocks";
    match apart.as_secs() {
        0..5 => Finding::good(what, says),
        5..60 => Finding::doubtful(what, says, advice),
        _ => Finding::bad(what, says, advice),
    }
}
