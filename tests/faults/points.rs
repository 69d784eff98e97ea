//! Places at which a call can be made to fail: the n-th of each kind, before or after it took effect, or with the end of the
//! process. Around the bus, the store and the record's disk; the model of a cluster has its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use trimtab::journal::Disk;
use trimtab_bus::{Bus, BusError, DeadLetter, Delivery, Document, Expect, Lease, Published, Role, Settle, Store};
use trimtab_events::Event;

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It fails for a reason that may pass, and did nothing.
    Fail,
    /// It is refused.
    Refuse,
    /// It did what it was to do, and the answer was lost.
    TimeOut,
    /// The process ends right before it.
    CrashBefore,
    /// The process ends right after it.
    CrashAfter,
    /// It goes well, and from then on the clock of the process is ahead by so many milliseconds more.
    Step(i64),
}

impl Mode {
    pub(crate) const ALL: [Mode; 5] = [Mode::Fail, Mode::Refuse, Mode::TimeOut, Mode::CrashBefore, Mode::CrashAfter];

    pub(crate) fn crashes(self) -> bool {
        matches!(self, Mode::CrashBefore | Mode::CrashAfter)
    }
}

/// One call: the n-th of its kind, from 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) number: u32,
}

/// Counts the calls of one process, and has one of them go wrong.
#[derive(Clone, Default, Debug)]
pub(crate) struct Points(Arc<Inner>);

#[derive(Default, Debug)]
struct Inner {
    seen: Mutex<BTreeMap<String, u32>>,
    wrong: Option<(Point, Mode)>,
    /// How far the clock was put forward.
    stepped_ms: AtomicI64,
    /// The call was made.
    reached: CancellationToken,
    /// The process has ended.
    crashed: CancellationToken,
    /// Nothing of the process is left that could go on.
    gone: (Mutex<bool>, Condvar),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Points {
    pub(crate) fn with(point: Point, mode: Mode) -> Points {
        Points(Arc::new(Inner { wrong: Some((point, mode)), ..Inner::default() }))
    }

    /// How often each kind of call was made.
    pub(crate) fn seen(&self) -> BTreeMap<String, u32> {
        lock(&self.0.seen).clone()
    }

    pub(crate) fn reached(&self) -> bool {
        self.0.reached.is_cancelled()
    }

    /// Ends when the process is to end.
    pub(crate) async fn crashed(&self) {
        self.0.crashed.cancelled().await;
    }

    /// Whether the process is to end.
    pub(crate) fn crashes(&self) -> bool {
        self.0.crashed.is_cancelled()
    }

    /// Says that nothing of the process goes on any more: what blocks a thread may end.
    pub(crate) fn gone(&self) {
        *lock(&self.0.gone.0) = true;
        self.0.gone.1.notify_all();
    }

    /// How far the clock of the process was put forward while it ran.
    pub(crate) fn stepped_ms(&self) -> i64 {
        self.0.stepped_ms.load(Ordering::Relaxed)
    }

    fn step(&self, ms: i64) {
        self.0.stepped_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn hit(&self, label: &str) -> Option<Mode> {
        let mut seen = lock(&self.0.seen);
        let number = match seen.get_mut(label) {
            Some(count) => {
                *count += 1;
                *count - 1
            }
            None => {
                seen.insert(label.to_owned(), 1);
                0
            }
        };
        let (point, mode) = self.0.wrong.as_ref()?;
        if point.label != label || point.number != number {
            return None;
        }
        self.0.reached.cancel();
        Some(*mode)
    }

    /// Makes a call, which may go wrong.
    pub(crate) async fn call<T, E>(
        &self,
        label: &str,
        work: impl Future<Output = Result<T, E>>,
        error: impl Fn(Mode) -> E,
    ) -> Result<T, E> {
        if self.0.crashed.is_cancelled() {
            // The rest of the process has not noticed yet that it is over.
            return std::future::pending().await;
        }
        match self.hit(label) {
            None => work.await,
            Some(mode @ (Mode::Fail | Mode::Refuse)) => Err(error(mode)),
            Some(mode @ Mode::TimeOut) => {
                work.await?;
                Err(error(mode))
            }
            Some(Mode::Step(ms)) => {
                let result = work.await;
                self.step(ms);
                result
            }
            Some(Mode::CrashBefore) => self.crash().await,
            Some(Mode::CrashAfter) => {
                let _ = work.await;
                self.crash().await
            }
        }
    }

    async fn crash<T>(&self) -> T {
        self.0.crashed.cancel();
        std::future::pending().await
    }

    fn crash_blocking(&self) -> std::io::Error {
        self.0.crashed.cancel();
        let mut gone = lock(&self.0.gone.0);
        while !*gone {
            gone = self.0.gone.1.wait(gone).unwrap_or_else(PoisonError::into_inner);
        }
        std::io::Error::other("the process has ended")
    }
}

fn failed(label: &str, mode: Mode) -> BusError {
    let (what, why) = (label.to_owned(), "the test says so".to_owned());
    match mode {
        Mode::Refuse => BusError::Refused { what, why },
        _ => BusError::Unavailable { what, why },
    }
}

/// A bus whose calls may go wrong.
pub(crate) struct FaultyBus {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) points: Points,
}

impl FaultyBus {
    async fn call<T>(&self, label: String, work: impl Future<Output = Result<T, BusError>>) -> Result<T, BusError> {
        self.points.call(&label, work, |mode| failed(&label, mode)).await
    }
}

impl Bus for FaultyBus {
    fn publish<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<Published, BusError>> {
        let label = format!("bus.publish.{}", trimtab::worker::short(&event.kind));
        Box::pin(self.call(label, self.bus.publish(event)))
    }

    fn take(&self, role: Role) -> BoxFuture<'_, Result<Delivery, BusError>> {
        Box::pin(async move {
            let taken = self.call(format!("bus.take.{}", role.name()), self.bus.take(role)).await?;
            let settle = FaultySettle { settle: taken.settle, role, points: self.points.clone() };
            Ok(Delivery { settle: Box::new(settle), ..taken })
        })
    }

    fn take_lane<'a>(&'a self, role: Role, lane: &'a str) -> BoxFuture<'a, Result<Delivery, BusError>> {
        Box::pin(async move {
            let label = format!("bus.take_lane.{}", role.name());
            let taken = self.call(label, self.bus.take_lane(role, lane)).await?;
            let settle = FaultySettle { settle: taken.settle, role, points: self.points.clone() };
            Ok(Delivery { settle: Box::new(settle), ..taken })
        })
    }

    fn depth(&self, role: Role) -> BoxFuture<'_, Result<u64, BusError>> {
        Box::pin(self.call("bus.depth".to_owned(), self.bus.depth(role)))
    }

    fn dead(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>, BusError>> {
        Box::pin(self.call("bus.dead".to_owned(), self.bus.dead(limit)))
    }

    fn letter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<DeadLetter>, BusError>> {
        Box::pin(self.call("bus.letter".to_owned(), self.bus.letter(id)))
    }

    fn retry<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Published>, BusError>> {
        Box::pin(self.call("bus.retry".to_owned(), self.bus.retry(id)))
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, BusError>> {
        Box::pin(self.call("bus.forget".to_owned(), self.bus.forget(id)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.bus.close()
    }
}

struct FaultySettle {
    settle: Box<dyn Settle>,
    role: Role,
    points: Points,
}

impl FaultySettle {
    fn settled(
        self: Box<Self>,
        how: &'static str,
        settle: impl FnOnce(Box<dyn Settle>) -> BoxFuture<'static, Result<(), BusError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<(), BusError>> {
        Box::pin(async move {
            let FaultySettle { settle: inner, role, points } = *self;
            let label = format!("bus.{how}.{}", role.name());
            points.call(&label, settle(inner), |mode| failed(&label, mode)).await
        })
    }
}

impl Settle for FaultySettle {
    fn done(self: Box<Self>) -> BoxFuture<'static, Result<(), BusError>> {
        self.settled("done", |settle| settle.done())
    }

    fn again(self: Box<Self>, after: Duration) -> BoxFuture<'static, Result<(), BusError>> {
        self.settled("again", move |settle| settle.again(after))
    }

    fn dead(self: Box<Self>, why: String) -> BoxFuture<'static, Result<(), BusError>> {
        self.settled("dead-letter", move |settle| settle.dead(why))
    }

    fn working(&self) -> BoxFuture<'_, Result<(), BusError>> {
        self.settle.working()
    }
}

/// A store whose calls may go wrong.
pub(crate) struct FaultyStore {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) points: Points,
}

impl FaultyStore {
    async fn call<T>(
        &self,
        verb: &str,
        key: &str,
        work: impl Future<Output = Result<T, BusError>>,
    ) -> Result<T, BusError> {
        // `gate.<scan>` of every scan is one kind of call.
        let label = format!("store.{verb}.{}", key.split(['.', '/']).next().unwrap_or_default());
        self.points.call(&label, work, |mode| failed(&label, mode)).await
    }
}

impl Store for FaultyStore {
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>, BusError>> {
        Box::pin(self.call("get", key, self.store.get(bucket, key)))
    }

    fn put<'a>(
        &'a self,
        bucket: &'a str,
        key: &'a str,
        value: &'a [u8],
        expect: Expect,
    ) -> BoxFuture<'a, Result<u64, BusError>> {
        Box::pin(self.call("put", key, self.store.put(bucket, key, value, expect)))
    }

    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(self.call("delete", key, self.store.delete(bucket, key, expect)))
    }

    fn list<'a>(
        &'a self,
        bucket: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Document>, BusError>> {
        Box::pin(self.call("list", prefix, self.store.list(bucket, prefix, after, limit)))
    }

    fn acquire<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Option<Lease>, BusError>> {
        Box::pin(self.call("acquire", name, self.store.acquire(name, holder, ttl)))
    }

    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async move {
            let (name, mut renewed) = (lease.name.clone(), lease.clone());
            self.call("renew", &name, self.store.renew(&mut renewed, holder)).await?;
            // Who was not told the new revision has the old one.
            *lease = renewed;
            Ok(())
        })
    }

    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<(), BusError>> {
        Box::pin(async move {
            let name = lease.name.clone();
            self.call("release", &name, self.store.release(lease)).await
        })
    }
}

/// A disk whose calls may go wrong. Whatever goes wrong with an append leaves a part of it behind, as disks do.
pub(crate) struct FaultyDisk {
    pub(crate) file: File,
    pub(crate) points: Points,
}

impl FaultyDisk {
    fn call(
        &mut self,
        label: &str,
        part: impl Fn(&mut File),
        whole: impl Fn(&mut File) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        if self.points.0.crashed.is_cancelled() {
            return Err(self.points.crash_blocking());
        }
        match self.points.hit(label) {
            None => whole(&mut self.file),
            Some(Mode::Fail | Mode::Refuse) => {
                part(&mut self.file);
                Err(std::io::ErrorKind::StorageFull.into())
            }
            Some(Mode::TimeOut) => {
                whole(&mut self.file)?;
                Err(std::io::ErrorKind::TimedOut.into())
            }
            Some(Mode::Step(ms)) => {
                self.points.step(ms);
                whole(&mut self.file)
            }
            Some(Mode::CrashBefore) => {
                part(&mut self.file);
                Err(self.points.crash_blocking())
            }
            Some(Mode::CrashAfter) => {
                let _ = whole(&mut self.file);
                Err(self.points.crash_blocking())
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let half = |file: &mut File| {
            let _ = file.append(&bytes[..bytes.len() / 2]);
        };
        self.call("disk.append", half, |file| file.append(bytes))
    }

    fn sync(&mut self) -> std::io::Result<()> {
        // What a test kills is a process, not the machine.
        self.call("disk.sync", |_| (), |_| Ok(()))
    }

    fn cut(&mut self, length: u64) -> std::io::Result<()> {
        self.call("disk.cut", |_| (), |file| file.cut(length))
    }
}
