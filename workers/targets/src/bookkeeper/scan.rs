//! One scan of a live cluster: all ledgers, then everything that names ledgers, then what is left over.

use futures::stream::{self, StreamExt};
use trimtab_events::{Evidence, OrphanCandidate, SurveyReport};

use super::ledgers::{self, Layout, handed_out, layout_of};
use super::referrers::{self, Others};
use super::survey::Survey;
use super::tree::{Tree, again};
use crate::error::{Class, Result, TargetError};

/// Ledgers taken from the survey at once.
const PAGE: usize = 1000;

/// A finished survey: everything was read, and what is left over can be looked at.
pub struct Surveyed {
    survey: Survey,
}

impl Surveyed {
    pub(crate) fn new(survey: Survey) -> Surveyed {
        Surveyed { survey }
    }

    /// Hands over every ledger that nothing names, in order of id, until no more is wanted. Earlier sightings are not filled in.
    ///
    /// # Errors
    /// When what was spilled to disk cannot be read.
    pub fn candidates(mut self, each: &mut dyn FnMut(OrphanCandidate) -> bool) -> Result<SurveyReport> {
        self.survey.candidates(each)?;
        Ok(self.survey.into_report())
    }
}

/// Surveys a live cluster. `root` is BookKeeper's, `now_ms` our clock.
///
/// # Errors
/// When BookKeeper's ledgers cannot be listed at all, or the survey cannot be spilled. What else cannot be read leaves what it
/// concerns unknown.
pub async fn survey(tree: &dyn Tree, root: &str, others: &Others, now_ms: i64) -> Result<Surveyed> {
    let mut survey = Survey::new(root, now_ms)?;
    again(|| tree.sync()).await?;
    survey.set_handed_out(ids_handed_out(tree, root).await);
    let before = layout(tree, root).await?;
    survey.set_layout(before.0);
    ledgers::list(tree, root, before.0, &mut survey).await?;
    if layout(tree, root).await? != before {
        survey.set_broken(format!("{root}/LAYOUT changed while ledgers were listed"));
    }
    // Ledgers first, what names them afterwards: in between ledgers can only be created, and those are not in the list.
    again(|| tree.sync()).await?;
    referrers::read(tree, others, &mut survey).await?;
    let joined = tokio::task::spawn_blocking(move || survey.difference().map(|()| survey)).await;
    let mut survey = joined.map_err(|e| TargetError::new(Class::Bug, "sorting what was read of BookKeeper", e))??;
    lonely(tree, &mut survey).await?;
    missing(tree, &mut survey).await?;
    Ok(Surveyed { survey })
}

/// How BookKeeper lays out its ledgers, and the value that says so.
pub(super) async fn layout(tree: &dyn Tree, root: &str) -> Result<(Layout, Option<Vec<u8>>)> {
    let path = format!("{root}/LAYOUT");
    let value = again(|| tree.get(&path)).await?.map(|(value, _)| value);
    let known =
        layout_of(value.as_deref()).map_err(|why| TargetError::new(Class::Invalid, format!("reading {path}"), why))?;
    Ok((known, value))
}

/// How many ids were handed out, as far as that can be told.
pub(super) async fn ids_handed_out(tree: &dyn Tree, root: &str) -> Evidence<i64> {
    let path = format!("{root}/idgen");
    match again(|| tree.stat(&path)).await {
        Ok(Some(stat)) => Evidence::Present(handed_out(stat.children_version, stat.children)),
        Ok(None) => Evidence::Unknown(format!("{path} does not exist")),
        Err(e) => Evidence::Unknown(e.to_string()),
    }
}

/// Reads each ledger that nothing names.
async fn lonely(tree: &dyn Tree, survey: &mut Survey) -> Result<()> {
    let mut after = -1;
    loop {
        let page = survey.lonely(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = *last;
        let read = |id: i64| {
            let path = survey.path_of(id);
            async move { (id, again(|| tree.get(&path)).await) }
        };
        let reads: Vec<_> = page.into_iter().map(read).collect();
        let mut reads = stream::iter(reads).buffered(tree.window());
        while let Some((id, got)) = reads.next().await {
            match got {
                Ok(Some((value, stat))) => survey.detail(id, Ok((&value, stat)))?,
                // Deleted since it was listed.
                Ok(None) => {}
                Err(e) => survey.detail(id, Err(e.to_string()))?,
            }
        }
    }
}

/// Looks once more for ledgers that something names and no listing had.
async fn missing(tree: &dyn Tree, survey: &mut Survey) -> Result<()> {
    let mut after = -1;
    loop {
        let page = survey.missing(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = *last;
        let look = |id: i64| {
            let path = survey.path_of(id);
            async move { (id, again(|| tree.stat(&path)).await) }
        };
        let looks: Vec<_> = page.into_iter().map(look).collect();
        let mut looks = stream::iter(looks).buffered(tree.window());
        while let Some((id, looked)) = looks.next().await {
            match looked {
                Ok(None) => {}
                Ok(Some(_)) => survey.not_missing(id, &format!("ledger {id} was not listed, and is there"))?,
                Err(e) => survey.not_missing(id, &e.to_string())?,
            }
        }
    }
}
