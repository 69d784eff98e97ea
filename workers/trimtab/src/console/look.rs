//! Plans that the console makes itself, as `trimtab plan` does: at the start, every so often, and when somebody asks.

use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use trimtab_events::{ScanRef, Scope};
use trimtab_targets::Class;
use uuid::Uuid;

use super::index::Index;
use crate::clock::Clock;
use crate::plan::{Planner, Spool};
use crate::worker::Failure;

/// Plan files that are kept, the newest.
const KEPT: usize = 5;

/// How looking goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Looking {
    /// Since when somebody looks, milliseconds since 1970.
    pub(super) since_ms: Option<i64>,
    /// What was found so far.
    pub(super) items: u64,
    /// Why the last look failed, if it did.
    pub(super) failed: Option<String>,
}

/// Makes plans.
pub(super) struct Looker {
    planner: Option<Planner>,
    scope: Scope,
    /// The moment that ages count from, where it is not the present: that of a snapshot.
    now_ms: Option<i64>,
    folder: PathBuf,
    clock: Clock,
    present: RwLock<Option<Arc<Index>>>,
    state: Mutex<Looking>,
    items: AtomicU64,
    asked: Notify,
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |e| Failure::new(Class::Transient, format!("{}: {e}", path.display()))
}

impl Looker {
    /// Plans go into `folder`. Without a planner there are none.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(super) fn new(
        planner: Option<Planner>,
        scope: Scope,
        now_ms: Option<i64>,
        folder: PathBuf,
        clock: Clock,
    ) -> Result<Looker, Failure> {
        std::fs::create_dir_all(&folder).map_err(io(&folder))?;
        let state = Mutex::default();
        let (present, items, asked) = (RwLock::default(), AtomicU64::new(0), Notify::new());
        let looker = Looker { planner, scope, now_ms, folder, clock, present, state, items, asked };
        // Of a process that was killed.
        looker.files("index").iter().for_each(|index| Index::remove(index));
        Ok(looker)
    }

    /// The newest plan.
    pub(super) fn present(&self) -> Option<Arc<Index>> {
        self.present.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How looking goes.
    pub(super) fn state(&self) -> Looking {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Looking { items: self.items.load(Ordering::Relaxed), ..state }
    }

    /// Whether it can look at all.
    pub(super) fn can_look(&self) -> bool {
        self.planner.is_some()
    }

    /// Identity of the cluster that plans are about, read now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) async fn identity(&self) -> Result<Option<String>, Failure> {
        match &self.planner {
            Some(planner) => Ok(Some(planner.inventory.identity().await?)),
            None => Ok(None),
        }
    }

    /// Asks for another look. Nothing happens while one is under way: whoever asks twice looks once.
    pub(super) fn ask(&self) -> bool {
        let idle = self.state().since_ms.is_none();
        if idle && self.planner.is_some() {
            self.asked.notify_one();
        }
        idle
    }

    /// Looks at the start, every so often and when asked, until `stop`.
    pub(super) async fn run(self: Arc<Self>, every: Option<Duration>, stop: CancellationToken) {
        if self.planner.is_none() {
            return;
        }
        loop {
            let looker = self.clone();
            let handle = tokio::runtime::Handle::current();
            self.change(|state| state.since_ms = Some(looker.clock.now_ms()));
            // A thread of its own: planning writes to disk as it goes.
            let look = {
                let (looker, stop) = (self.clone(), stop.clone());
                tokio::task::spawn_blocking(move || {
                    handle.block_on(async {
                        tokio::select! { biased; () = stop.cancelled() => Ok(()), looked = looker.look() => looked }
                    })
                })
            };
            let looked = look.await.unwrap_or_else(|e| Err(Failure::new(Class::Bug, e)));
            if let Err(e) = &looked {
                warn!(error = %e, "the console could not make a plan");
            }
            self.change(|state| *state = Looking { failed: looked.err().map(|e| e.to_string()), ..Looking::default() });
            let next = async {
                match every {
                    Some(every) => tokio::time::sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! { biased; () = stop.cancelled() => return, () = self.asked.notified() => {}, () = next => {} }
        }
    }

    fn change(&self, by: impl FnOnce(&mut Looking)) {
        by(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Makes one plan.
    ///
    /// # Errors
    /// When the target cannot be read or the plan not be written.
    pub(super) async fn look(&self) -> Result<(), Failure> {
        let Some(planner) = &self.planner else { return Ok(()) };
        let scan = ScanRef { id: Uuid::now_v7(), fence: 0 };
        let now_ms = self.now_ms.unwrap_or_else(|| self.clock.now_ms());
        let identity = planner.inventory.identity().await?;
        let mut spool = Spool::new().map_err(io(&self.folder))?;
        self.items.store(0, Ordering::Relaxed);
        let mut each = |item| {
            spool.push(&item);
            self.items.fetch_add(1, Ordering::Relaxed);
        };
        let planned = planner.plan(scan, &self.scope, now_ms, false, &mut each).await?;
        let head = planner.head(identity, self.scope.clone(), now_ms, &planned);
        let file = self.folder.join(format!("plan-{}.json", scan.id));
        // Under its name only when it is whole.
        let half = self.folder.join("plan.new");
        let out = std::fs::File::create(&half).map_err(io(&half))?;
        spool.write(&head, &mut BufWriter::new(&out)).map_err(io(&half))?;
        out.sync_all().and_then(|()| std::fs::rename(&half, &file)).map_err(io(&file))?;
        let index = {
            let lines = spool.lines().map_err(io(&file))?;
            Index::build(&file.with_extension("index"), file.clone(), head, scan, lines)?
        };
        info!(plan = %scan.id, items = self.items.load(Ordering::Relaxed), "the console has a plan");
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(index));
        self.tidy();
        Ok(())
    }

    /// Removes old plans; their indexes go by themselves, once nobody reads them any more.
    fn tidy(&self) {
        let mut plans = self.files("json");
        // Version 7: in order of time.
        plans.sort();
        let gone = plans.len().saturating_sub(KEPT);
        for plan in &plans[..gone] {
            let _ = std::fs::remove_file(plan);
        }
    }

    fn files(&self, end: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let is = |path: &PathBuf| {
            path.extension().is_some_and(|e| e == end)
                && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("plan-"))
        };
        entries.flatten().map(|entry| entry.path()).filter(is).collect()
    }
}
