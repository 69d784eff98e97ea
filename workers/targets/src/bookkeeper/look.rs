//! One ledger again, a moment before it is deleted: by the paths that its own marks give and not by any listing, so that what deceived the
//! scan does not deceive this look as well.

use trimtab_events::{Evidence, OrphanCandidate, OwnedKind};

use super::marks::Owned;
use super::referrers::{migration, namespace_state, topic};
use super::scan::{ids_handed_out, layout};
use super::survey::{Survey, owned_by, shard_of};
use super::tree::{Tree, again};
use crate::error::Result;
use crate::pulsar::TopicName;
use crate::pulsar::names::encode;

/// Reads a ledger and everything of its would-be owner. `None` when there is no such ledger. What only a scan of everything can tell
/// (the highest id that is named, missing ledgers, sightings) is not known.
///
/// # Errors
/// When the ledger cannot be read. What else cannot be read leaves what it concerns unknown.
pub async fn look(tree: &dyn Tree, root: &str, id: i64, now_ms: i64) -> Result<Option<OrphanCandidate>> {
    let mut survey = Survey::new(root, now_ms)?;
    again(|| tree.sync()).await?;
    let generation = tree.generation();
    survey.set_layout(layout(tree, root).await?.0);
    survey.set_handed_out(ids_handed_out(tree, root).await);
    let path = survey.path_of(id);
    let Some((value, stat)) = again(|| tree.get(&path)).await? else { return Ok(None) };
    survey.ledgers(&[id])?;
    migration(tree, &mut survey).await;
    if let Some(owned) = owned_by(&value) {
        owner(tree, &owned, &mut survey).await?;
    }
    if tree.generation() != generation {
        // What was read through a new session may be older than what was read before it.
        survey.set_broken("a session was lost while the ledger and its owner were read");
    }
    survey.difference()?;
    survey.detail(id, Ok((&value, stat)))?;
    let named = survey.names_of(id)?;
    let mut found = None;
    survey.candidates(&mut |candidate| {
        found = Some(candidate);
        true
    })?;
    Ok(found.map(|mut candidate| {
        if !named.is_empty() {
            candidate.references = Evidence::Present(named);
        }
        candidate.missing = Evidence::not_read();
        candidate.ceiling.highest_named = Evidence::not_read();
        candidate
    }))
}

/// The topic with all its cursors, its schema, and its namespace.
async fn owner(tree: &dyn Tree, owned: &Owned, survey: &mut Survey) -> Result<()> {
    let shard = shard_of(&owned.managed_ledger);
    let path = format!("/managed-ledgers/{}", owned.managed_ledger);
    match topic(tree, &path).await {
        Ok(Some(topic)) => {
            let (value, stat) = &topic.node;
            survey.topic(&shard, &path, value, stat)?;
            for (name, (value, stat)) in &topic.cursors {
                survey.cursor(&shard, &format!("{path}/{name}"), value, stat)?;
            }
        }
        Ok(None) => absent(tree, &shard, &path, survey).await,
        Err(why) => survey.incomplete(&shard, why),
    }
    let schema = match owned.owner.kind {
        OwnedKind::Schema => owned.nodes.first().map(|(_, path)| path.clone()),
        _ => TopicName::of_managed_ledger(&owned.managed_ledger)
            .map(|name| format!("/schemas/{}/{}", name.namespace, encode(name.base()))),
    };
    if let Some(path) = schema {
        match again(|| tree.get(&path)).await {
            Ok(Some((value, stat))) => survey.schema(&shard, &path, &value, &stat)?,
            Ok(None) => absent(tree, &shard, &path, survey).await,
            Err(e) => survey.incomplete(&shard, e.to_string()),
        }
    }
    namespace(tree, &owned.owner.namespace, survey).await;
    Ok(())
}

/// That a node is not there takes two looks, of two kinds.
async fn absent(tree: &dyn Tree, shard: &str, path: &str, survey: &mut Survey) {
    match again(|| tree.stat(path)).await {
        Ok(None) => {}
        Ok(Some(_)) => survey.incomplete(shard, format!("{path} was not there when it was read, and is there")),
        Err(e) => survey.incomplete(shard, e.to_string()),
    }
}

async fn namespace(tree: &dyn Tree, name: &str, survey: &mut Survey) {
    let root = "/admin/policies";
    let path = format!("{root}/{name}");
    match again(|| tree.get(&path)).await {
        Ok(Some((value, _))) => survey.namespace(name, namespace_state(&value)),
        Ok(None) => match again(|| tree.stat(root)).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                survey.policies_unknown(format!("{root} does not exist here: policies may live in another store"));
            }
            Err(e) => survey.policies_unknown(e.to_string()),
        },
        Err(e) => survey.policies_unknown(e.to_string()),
    }
}
