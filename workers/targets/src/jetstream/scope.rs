//! Which accounts and streams a scope covers: a tenant is an account, a namespace or a topic a stream.

use globset::GlobSet;
use trimtab_events::Scope;

use super::names::StreamName;
use crate::error::{Class, Result, TargetError};
use crate::globs::globs;

/// Says what is wrong with a scope, before anybody scans it.
///
/// # Errors
/// When it names what is no stream, or a glob is not valid.
pub fn check_scope(scope: &Scope) -> Result<()> {
    ScopeFilter::new(scope).map(|_| ())
}

/// A scope that was found to be valid.
pub(super) struct ScopeFilter {
    account: Option<String>,
    stream: Option<StreamName>,
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl ScopeFilter {
    pub(super) fn new(scope: &Scope) -> Result<ScopeFilter> {
        let invalid = |why: String| TargetError::new(Class::Invalid, "reading the scope", why);
        if !scope.topics.is_empty() {
            return Err(invalid(
                "several topics by name are looked at in Pulsar only; name one, or give globs".to_owned(),
            ));
        }
        let topic = scope.topic.as_deref().map(|topic| {
            StreamName::of_subject(topic).ok_or_else(|| {
                invalid(format!("{topic:?} is not a stream's name; expected jetstream://account/stream"))
            })
        });
        let namespace = scope.namespace.as_deref().map(|plain| {
            StreamName::of_plain(plain)
                .ok_or_else(|| invalid(format!("{plain:?} is not a stream's name; expected account/stream")))
        });
        let include = globs(&scope.include).map_err(invalid)?;
        Ok(ScopeFilter {
            account: scope.tenant.clone(),
            stream: topic.or(namespace).transpose()?,
            include: (!scope.include.is_empty()).then_some(include),
            exclude: globs(&scope.exclude).map_err(invalid)?,
        })
    }

    pub(super) fn account(&self, name: &str) -> bool {
        self.account.as_deref().is_none_or(|only| only == name)
            && self.stream.as_ref().is_none_or(|only| only.account == name)
    }

    pub(super) fn stream(&self, name: &StreamName) -> bool {
        let plain = name.plain();
        self.stream.as_ref().is_none_or(|only| only == name)
            && self.include.as_ref().is_none_or(|set| set.is_match(&plain))
            && !self.exclude.is_match(&plain)
    }
}
