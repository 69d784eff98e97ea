//! Which namespaces and topics a scope covers.

use std::collections::HashSet;

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
    /// In order of their namespaces; empty is all.
    topics: Vec<TopicName>,
    names: HashSet<String>,
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
        if scope.topics.len() > Scope::MOST_TOPICS {
            let (most, named) = (Scope::MOST_TOPICS, scope.topics.len());
            return Err(invalid(format!("it names {named} topics, more than {most}; ask for several scans")));
        }
        let mut topics = Vec::with_capacity(scope.topics.len());
        for topic in &scope.topics {
            topics.push(TopicName::of_subject(topic).ok_or_else(|| {
                invalid(format!("{topic:?} is not a topic's name; expected persistent://tenant/namespace/topic"))
            })?);
        }
        topics.sort_by(|a, b| a.namespace.split('/').cmp(b.namespace.split('/')).then_with(|| a.local.cmp(&b.local)));
        topics.dedup();
        if let Some(namespace) = scope.namespace.as_deref().filter(|ns| ns.split('/').count() != 2) {
            return Err(invalid(format!("{namespace:?} is not a namespace; expected tenant/namespace")));
        }
        let include = globs(&scope.include).map_err(invalid)?;
        Ok(ScopeFilter {
            tenant: scope.tenant.clone(),
            namespace: scope.namespace.clone(),
            topic: topic.transpose()?,
            names: topics.iter().map(TopicName::subject).collect(),
            topics,
            include: (!scope.include.is_empty()).then_some(include),
            exclude: globs(&scope.exclude).map_err(invalid)?,
        })
    }

    /// The topics that it names, if it does, each once: those of a namespace together, in the order of namespaces.
    pub(crate) fn only_topics(&self) -> Option<&[TopicName]> {
        (!self.topics.is_empty()).then_some(&self.topics)
    }

    pub(crate) fn only_tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    pub(crate) fn only_namespace(&self) -> Option<&str> {
        self.topic.as_ref().map(|topic| topic.namespace.as_str()).or(self.namespace.as_deref())
    }

    /// Whether it takes namespaces whole or not at all.
    pub(crate) fn whole_namespaces(&self) -> bool {
        self.topic.is_none() && self.topics.is_empty() && self.include.is_none() && self.exclude.is_empty()
    }

    /// Whether it takes partitioned topics whole or not at all.
    pub(crate) fn whole_topics(&self) -> bool {
        self.topics.is_empty()
            && self.topic.as_ref().is_none_or(|topic| topic.partition.is_none())
            && self.include.is_none()
            && self.exclude.is_empty()
    }

    pub(crate) fn shard(&self, shard: &str) -> bool {
        self.only_namespace().is_none_or(|only| only == shard)
            && self.tenant.as_deref().is_none_or(|tenant| shard.split('/').next() == Some(tenant))
    }

    pub(crate) fn topic(&self, name: &TopicName) -> bool {
        let wanted =
            self.topic.as_ref().is_none_or(|topic| {
                topic.local == name.local || (topic.partition.is_none() && topic.local == name.base())
            }) && (self.names.is_empty() || self.names.contains(&name.subject()));
        if self.include.is_none() && self.exclude.is_empty() {
            return wanted;
        }
        let plain = name.plain();
        wanted && self.include.as_ref().is_none_or(|set| set.is_match(&plain)) && !self.exclude.is_match(&plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_by_their_exact_names() {
        let named = ["t/b/x", "t/a/p-partition-1", "persistent://t/b/x", "t-1/z/a"];
        let scope = Scope { topics: named.map(str::to_owned).to_vec(), ..Scope::default() };
        let filter = ScopeFilter::new(&scope).unwrap();
        let plain: Vec<_> = filter.only_topics().unwrap().iter().map(TopicName::plain).collect();
        // As tenants and namespaces are listed, not as their names with a slash would be sorted.
        assert_eq!(plain, ["t/a/p-partition-1", "t/b/x", "t-1/z/a"]);
        let covers = |name: &str| filter.topic(&TopicName::of_subject(name).unwrap());
        assert!(covers("t/b/x") && covers("t/a/p-partition-1"));
        assert!(!covers("t/a/p") && !covers("t/a/p-partition-2") && !covers("t/a/x"));
        assert!(!filter.whole_namespaces() && !filter.whole_topics() && !scope.is_all() && !scope.whole_namespaces());
        let many = Scope { topics: vec!["t/a/x".to_owned(); Scope::MOST_TOPICS + 1], ..Scope::default() };
        let odd = Scope { topics: vec!["x".to_owned()], ..Scope::default() };
        assert!(ScopeFilter::new(&many).is_err() && ScopeFilter::new(&odd).is_err());
    }
}
