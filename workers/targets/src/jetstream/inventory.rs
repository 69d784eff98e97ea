//! Streams and their consumers. A shard is one stream: a scan goes on behind the last one that it finished.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use trimtab_events::{Candidate, JetStreamStream, Log, Scope, SubscriberCandidate, split_subscriber};

use super::account::{Account, Listed};
use super::names::StreamName;
use super::scope::ScopeFilter;
use crate::error::{Class, Result, TargetError};
use crate::finding::Finding;
use crate::pace::Pace;
use crate::{Inventory, Item, ReadsOf, Shard};

/// Says of a stream, by its canonical name, at which age its messages may go, seconds; none where no rule says so.
pub type AgesOut = Arc<dyn Fn(&str) -> Option<i64> + Send + Sync>;

/// The streams of some accounts.
pub struct JetStreamInventory {
    accounts: Vec<Account>,
    pace: Arc<Pace>,
    ages_out: AgesOut,
}

impl JetStreamInventory {
    /// Of these accounts, at this pace: each request counts as one operation.
    ///
    /// # Errors
    /// When there is none, or two have the same name.
    pub fn new(mut accounts: Vec<Account>, pace: Arc<Pace>) -> Result<JetStreamInventory> {
        accounts.sort_by(|one, other| one.name().cmp(other.name()));
        let invalid = |why: String| Err(TargetError::new(Class::Invalid, "reading the list of accounts", why));
        if accounts.is_empty() {
            return invalid("there is none".to_owned());
        }
        match accounts.windows(2).find(|two| two[0].name() == two[1].name()) {
            Some(two) => invalid(format!("two are called {:?}; give them names", two[0].name())),
            None => Ok(JetStreamInventory { accounts, pace, ages_out: Arc::new(|_| None) }),
        }
    }

    /// The same, where it is asked of each stream where its old messages end. That reads one message of it.
    pub fn with_ages(self, ages_out: AgesOut) -> JetStreamInventory {
        JetStreamInventory { ages_out, ..self }
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// The account of this name.
    pub(super) fn account(&self, name: &str) -> Result<&Account> {
        self.accounts.iter().find(|account| account.name() == name).ok_or_else(|| {
            TargetError::new(Class::Invalid, format!("reaching the account {name:?}"), "it is not in the configuration")
        })
    }

    async fn read(&self, name: &StreamName) -> Result<Option<SubscriberCandidate>> {
        let age_s = (self.ages_out)(&name.subject());
        let read = self.account(&name.account)?.stream(&self.pace, &name.stream, age_s).await?;
        Ok(read.map(|(stream, consumers)| candidate(name, stream, consumers)))
    }
}

/// A stream as two answers of its servers describe it, without asking them: of `STREAM.INFO`, and of `CONSUMER.LIST` with all consumers on
/// one page. For tests of what may come.
///
/// # Errors
/// When one of them cannot be read, or is something else.
pub fn stream_of_answers(name: &StreamName, stream: &[u8], consumers: &[u8]) -> Result<SubscriberCandidate> {
    let (stream, consumers) = super::account::answers(stream, consumers)?;
    Ok(candidate(name, stream, consumers))
}

/// A stream with its consumers, as the rules judge it.
pub(super) fn candidate(name: &StreamName, mut stream: JetStreamStream, consumers: Vec<Listed>) -> SubscriberCandidate {
    let (subscribers, states) = consumers.into_iter().unzip();
    stream.consumers = states;
    SubscriberCandidate { subject: name.subject(), log: Log::JetStream(stream), subscribers }
}

impl Inventory for JetStreamInventory {
    fn identity(&self) -> BoxFuture<'_, Result<String>> {
        let names: Vec<&str> = self.accounts.iter().map(Account::name).collect();
        let cluster = self.accounts.first().map(Account::cluster).unwrap_or_default();
        let identity = format!("jetstream {cluster}, {}", names.join(", "));
        futures::future::ready(Ok(identity)).boxed()
    }

    fn shards<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<Vec<Shard>>> {
        async move {
            let filter = ScopeFilter::new(scope)?;
            let mut shards = Vec::new();
            for account in self.accounts.iter().filter(|account| filter.account(account.name())) {
                for stream in account.streams(&self.pace).await? {
                    let name = StreamName::new(account.name(), stream);
                    if filter.stream(&name) {
                        shards.push(name.plain());
                    }
                }
            }
            // In the order in which a scan is resumed: account by account.
            shards.sort_by(|one: &Shard, other| one.split('/').cmp(other.split('/')));
            Ok(shards)
        }
        .boxed()
    }

    fn scan<'a>(&'a self, shard: &'a str, _scope: &'a Scope, _reads: ReadsOf<'a>) -> BoxStream<'a, Result<Item>> {
        let read = async move {
            let invalid = || TargetError::new(Class::Invalid, format!("reading {shard:?}"), "it is no account/stream");
            let name = StreamName::of_plain(shard).ok_or_else(invalid)?;
            self.read(&name).await
        };
        let item = |read: Result<Option<SubscriberCandidate>>| {
            let log = read.transpose()?;
            Some(log.map(|log| Item::Candidate(Candidate::Subscriber(Box::new(log)))))
        };
        stream::once(read).filter_map(move |read| futures::future::ready(item(read))).boxed()
    }

    fn observe<'a>(&'a self, subject: &'a str) -> BoxFuture<'a, Result<Option<Candidate>>> {
        async move {
            let log = split_subscriber(subject).map_or(subject, |(log, _)| log);
            let invalid =
                || TargetError::new(Class::Invalid, format!("observing {subject:?}"), "it is not a stream's name");
            let name = StreamName::of_subject(log).ok_or_else(invalid)?;
            Ok(self.read(&name).await?.map(|log| Candidate::Subscriber(Box::new(log))))
        }
        .boxed()
    }

    fn operations(&self) -> u64 {
        self.pace.made()
    }

    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        async move {
            let mut found = Vec::new();
            for account in &self.accounts {
                let name = format!("account {}", account.name());
                let rights = "let trimtab's user publish to $JS.API.> in this account and subscribe to its inboxes; docs/jetstream.md has the \
                              least that it needs";
                found.push(match account.streams(&self.pace).await {
                    Ok(streams) => Finding::good(name, format!("{} streams, in {}", streams.len(), account.cluster())),
                    Err(e) => Finding::failed(name, &e, rights),
                });
            }
            found
        }
        .boxed()
    }

    fn reachable(&self) -> BoxFuture<'_, Result<()>> {
        let lost = self.accounts.iter().find(|account| !account.connected());
        let found = match lost {
            None => Ok(()),
            Some(account) => {
                let what = format!("reaching account {} of the NATS servers", account.name());
                Err(TargetError::new(Class::Transient, what, "the connection is lost; it is being opened anew"))
            }
        };
        futures::future::ready(found).boxed()
    }
}
