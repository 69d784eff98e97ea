//! Which topics a scope covers.

use globset::GlobSet;
use trimtab_events::Scope;

use super::topic::Settings;
use crate::error::{Class, Result, TargetError};
use crate::globs::globs;

/// A scope that was found to be valid.
#[derive(Debug, Clone)]
pub(super) struct TopicFilter {
    region: String,
    topic: Option<String>,
    include: Option<GlobSet>,
    exclude: Option<GlobSet>,
}

impl TopicFilter {
    /// # Errors
    /// When it names what Hedwig does not have, or a glob is not valid.
    pub(super) fn new(scope: &Scope, settings: &Settings) -> Result<TopicFilter> {
        let invalid = |why: String| TargetError::new(Class::Invalid, "reading the scope", why);
        if scope.tenant.is_some() || scope.namespace.is_some() {
            return Err(invalid("Hedwig has no tenants and namespaces; name a topic or give globs".to_owned()));
        }
        if !scope.topics.is_empty() {
            return Err(invalid(
                "several topics by name are looked at in Pulsar only; name one, or give globs".to_owned(),
            ));
        }
        let topic = scope.topic.as_deref().map(|subject| {
            settings.topic_of(subject).map(str::to_owned).ok_or_else(|| {
                invalid(format!(
                    "{subject:?} is not a topic of this region; expected hedwig://{}/topic",
                    settings.region
                ))
            })
        });
        let set = |texts: &[String]| {
            let set = globs(texts).map_err(invalid)?;
            Ok::<_, TargetError>((!texts.is_empty()).then_some(set))
        };
        Ok(TopicFilter {
            region: settings.region.clone(),
            topic: topic.transpose()?,
            include: set(&scope.include)?,
            exclude: set(&scope.exclude)?,
        })
    }

    /// The one topic that it covers, if it names one.
    pub(super) fn only(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// Whether it covers a topic. Globs are matched against `region/topic`, as those of rules are.
    pub(super) fn topic(&self, name: &str) -> bool {
        if self.topic.as_deref().is_some_and(|only| only != name) {
            return false;
        }
        if self.include.is_none() && self.exclude.is_none() {
            return true;
        }
        let full = format!("{}/{name}", self.region);
        self.include.as_ref().is_none_or(|set| set.is_match(&full))
            && !self.exclude.as_ref().is_some_and(|set| set.is_match(&full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes() {
        let settings = Settings { region: "r".to_owned(), ..Settings::default() };
        let covers = |scope: &Scope, name: &str| TopicFilter::new(scope, &settings).unwrap().topic(name);
        assert!(covers(&Scope::default(), "ns/t"));
        let one = Scope { topic: Some("hedwig://r/ns/t".to_owned()), ..Scope::default() };
        assert!(covers(&one, "ns/t") && !covers(&one, "ns/t2") && !covers(&one, "ns"));
        let globs =
            Scope { include: vec!["r/ns/*".to_owned()], exclude: vec!["r/ns/x*".to_owned()], ..Scope::default() };
        assert!(covers(&globs, "ns/t") && !covers(&globs, "ns/x1") && !covers(&globs, "t"));
        for odd in [
            Scope { tenant: Some("t".to_owned()), ..Scope::default() },
            Scope { topic: Some("t".to_owned()), ..Scope::default() },
            Scope { topic: Some("hedwig://other/t".to_owned()), ..Scope::default() },
            Scope { include: vec!["[".to_owned()], ..Scope::default() },
            Scope { topics: vec!["hedwig://r/ns/t".to_owned()], ..Scope::default() },
        ] {
            assert!(TopicFilter::new(&odd, &settings).is_err(), "{odd:?}");
        }
    }
}
