//! Which namespaces and topics a scope covers.

use globset::GlobSet;
use trimtab_events::Scope;

use super::names::TopicName;
use crate::error::{Class, Result, TargetError};
use crate::globs::globs;

/// Says what is wrong with a scope, before anybody scans it.
///
/// # Errors
/// When it names what is no topic or namespace, or a glob is not valid.
pub fn check_scope(scope: &Scope) -> Result<()> {
    ScopeFilter::new(scope).map(|_| ())
}

/// A scope that was found to be valid.
#[derive(Debug)]
pub(crate) struct ScopeFilter {
    tenant: Option<String>,
    namespace: Option<String>,
    topic: Option<TopicName>,
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl ScopeFilter {
    pub(crate) fn new(scope: &Scope) -> Result<ScopeFilter> {
        let invalid = |why: String| TargetError::new(Class::Invalid, "reading the scope", why);
        let topic = scope.topic.as_deref().map(|topic| {
            TopicName::of_subject(topic).ok_or_else(|| {
                invalid(format!("{topic:?} is not a topic's name; expected persistent://tenant/namespace/topic"))
            })
        });
        if let Some(namespace) = scope.namespace.as_deref().filter(|ns| ns.split('/').count() != 2) {
            return Err(invalid(format!("{namespace:?} is not a namespace; expected tenant/namespace")));
        }
        let include = globs(&scope.include).map_err(invalid)?;
        Ok(ScopeFilter {
            tenant: scope.tenant.clone(),
            namespace: scope.namespace.clone(),
            topic: topic.transpose()?,
            include: (!scope.include.is_empty()).then_some(include),
            exclude: globs(&scope.exclude).map_err(invalid)?,
        })
    }

    pub(crate) fn only_tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    pub(crate) fn only_namespace(&self) -> Option<&str> {
        self.topic.as_ref().map(|topic| topic.namespace.as_str()).or(self.namespace.as_deref())
    }

    /// Whether it takes namespaces whole or not at all.
    pub(crate) fn whole_namespaces(&self) -> bool {
        self.topic.is_none() && self.include.is_none() && self.exclude.is_empty()
    }

    /// Whether it takes partitioned topics whole or not at all.
    pub(crate) fn whole_topics(&self) -> bool {
        self.topic.as_ref().is_none_or(|topic| topic.partition.is_none())
            && self.include.is_none()
            && self.exclude.is_empty()
    }

    pub(crate) fn shard(&self, shard: &str) -> bool {
        self.only_namespace().is_none_or(|only| only == shard)
            && self.tenant.as_deref().is_none_or(|tenant| shard.split('/').next() == Some(tenant))
    }

    pub(crate) fn topic(&self, name: &TopicName) -> bool {
        let wanted = self
            .topic
            .as_ref()
            .is_none_or(|topic| topic.local == name.local || (topic.partition.is_none() && topic.local == name.base()));
        if self.include.is_none() && self.exclude.is_empty() {
            return wanted;
        }
        let plain = name.plain();
        wanted && self.include.as_ref().is_none_or(|set| set.is_match(&plain)) && !self.exclude.is_match(&plain)
    }
}
