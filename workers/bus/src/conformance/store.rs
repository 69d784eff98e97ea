//! What every store must do.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{StoreCheck, StoreRig};
use crate::{BusError, Expect, MAX_VALUE_BYTES, Result};

macro_rules! checks {
    ($($name:ident,)+) => {
        /// Every check, in the order in which they are run.
        pub const STORE_CHECKS: &[StoreCheck] = &[$((stringify!($name), |rig| Box::pin($name(rig))),)+];
    };
}

checks! {
    writes_expect_what_they_find,
    deleted_is_absent,
    lists_go_in_pages,
    keys_do_not_run_together,
    counting_together_is_exact,
    values_have_a_limit,
    bad_names_are_refused,
    a_lease_is_held_by_one,
    a_lease_ends_by_itself,
    a_released_lease_is_free_at_once,
    a_renewed_lease_goes_on,
}

/// The shortest that every store can do.
const TTL: Duration = Duration::from_secs(2);

fn conflict<T>(result: Result<T>) -> bool {
    matches!(result, Err(BusError::Conflict { .. }))
}

fn refused<T>(result: Result<T>) -> bool {
    matches!(result, Err(BusError::Refused { .. }))
}

async fn writes_expect_what_they_find(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    assert_eq!(store.get("b", "k").await.expect("works"), None);
    assert!(conflict(store.put("b", "k", b"0", Expect::Revision(1)).await));
    let first = store.put("b", "k", b"1", Expect::Absent).await.expect("absent");
    assert!(conflict(store.put("b", "k", b"x", Expect::Absent).await));
    let second = store.put("b", "k", b"2", Expect::Revision(first)).await.expect("as read");
    assert!(second > first);
    assert!(conflict(store.put("b", "k", b"x", Expect::Revision(first)).await));
    let third = store.put("b", "k", b"", Expect::Anything).await.expect("anything");
    let found = store.get("b", "k").await.expect("works").expect("there");
    assert_eq!((found.key.as_str(), &*found.value, found.revision), ("k", &b""[..], third));
    let other = store.put("b", "other", b"1", Expect::Anything).await.expect("anything");
    assert!(other > third, "revisions grow over the whole bucket");
    assert_eq!(store.get("elsewhere", "k").await.expect("works"), None);
}

async fn deleted_is_absent(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let first = store.put("b", "k", b"1", Expect::Absent).await.expect("absent");
    assert!(conflict(store.delete("b", "k", Expect::Absent).await));
    assert!(conflict(store.delete("b", "k", Expect::Revision(first + 1)).await));
    store.delete("b", "k", Expect::Revision(first)).await.expect("as read");
    assert_eq!(store.get("b", "k").await.expect("works"), None);
    assert_eq!(store.list("b", "", None, 10).await.expect("works"), []);
    store.delete("b", "k", Expect::Anything).await.expect("nothing to do");
    store.delete("b", "k", Expect::Absent).await.expect("nothing to do");
    assert!(conflict(store.delete("b", "k", Expect::Revision(first)).await));
    assert!(conflict(store.put("b", "k", b"x", Expect::Revision(first)).await), "it is no longer at this revision");
    let second = store.put("b", "k", b"2", Expect::Absent).await.expect("absent");
    assert!(second > first, "a revision never comes twice");
    store.delete("b", "k", Expect::Anything).await.expect("works");
    store.put("b", "k", b"3", Expect::Anything).await.expect("works");
    assert_eq!(store.get("b", "k").await.expect("works").expect("there").value, b"3");
}

async fn lists_go_in_pages(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let mut keys: Vec<String> = (0..30).map(|n| format!("s/{:02}/x", n * 7 % 30)).collect();
    for key in keys.iter().map(String::as_str).chain(["s", "sa/b", "t/00", "S/00", "s.a/b"]) {
        store.put("b", key, key.as_bytes(), Expect::Absent).await.expect("absent");
    }
    keys.sort();
    let mut found = Vec::new();
    loop {
        let after = found.last().cloned();
        let page = store.list("b", "s/", after.as_deref(), 7).await.expect("works");
        assert!(page.len() <= 7);
        assert!(page.iter().all(|document| document.value == document.key.as_bytes()));
        found.extend(page.iter().map(|document| document.key.clone()));
        if page.is_empty() {
            break;
        }
    }
    assert_eq!(found, keys);
    let whole: Vec<String> = store.list("b", "", None, 100).await.expect("works").into_iter().map(|d| d.key).collect();
    assert_eq!(whole.len(), 35);
    assert!(whole.is_sorted());
    let part: Vec<String> = store.list("b", "s/0", None, 3).await.expect("works").into_iter().map(|d| d.key).collect();
    assert_eq!(part, keys[..3], "a prefix may end inside a part");
    // Deleted ones do not use up the limit.
    for key in &keys[..9] {
        store.delete("b", key, Expect::Anything).await.expect("works");
    }
    let rest: Vec<String> = store.list("b", "s/", None, 2).await.expect("works").into_iter().map(|d| d.key).collect();
    assert_eq!(rest, keys[9..11]);
    assert_eq!(store.list("b", "s/", None, 0).await.expect("works"), []);
    assert_eq!(store.list("b", "zz", None, 5).await.expect("works"), []);
    assert_eq!(store.list("nothing", "", None, 5).await.expect("works"), []);
}

async fn keys_do_not_run_together(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let keys = ["a/b", "a.b", "a-b", "a_b", "ab", "A/b", "a/b/c", "a.b/c", "a/b.c"];
    for key in keys {
        store.put("b", key, key.as_bytes(), Expect::Absent).await.expect("absent");
    }
    for key in keys {
        assert_eq!(store.get("b", key).await.expect("works").expect("there").value, key.as_bytes());
    }
    store.put("B", "a/b", b"", Expect::Absent).await.expect("buckets differ by case, too");
}

async fn counting_together_is_exact(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let counters: Vec<_> = (0..6)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    loop {
                        let found = store.get("b", "count").await.expect("works");
                        let (count, expect) = found.map_or((0, Expect::Absent), |document| {
                            let text = String::from_utf8(document.value).expect("a number");
                            (text.parse::<u64>().expect("a number"), Expect::Revision(document.revision))
                        });
                        match store.put("b", "count", (count + 1).to_string().as_bytes(), expect).await {
                            Ok(_) => break,
                            Err(BusError::Conflict { .. }) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            })
        })
        .collect();
    for counter in counters {
        counter.await.expect("no panic");
    }
    assert_eq!(store.get("b", "count").await.expect("works").expect("there").value, b"120");
}

async fn values_have_a_limit(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let mut large: Vec<u8> = (0..MAX_VALUE_BYTES).map(|n| (n % 251) as u8).collect();
    store.put("b", "k", &large, Expect::Absent).await.expect("fits");
    assert_eq!(store.get("b", "k").await.expect("works").expect("there").value, large);
    large.push(0);
    assert!(refused(store.put("b", "k", &large, Expect::Anything).await));
}

async fn bad_names_are_refused(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    for bad in ["", "a b", "a//b", "/a", "a/", "a..b", "*", ">", "a.>", "\u{e9}", "a\0b", "a\r\nb", "a=b", "$a"] {
        assert!(refused(store.get("b", bad).await), "{bad:?}");
        assert!(refused(store.put("b", bad, b"", Expect::Anything).await), "{bad:?}");
        assert!(refused(store.delete("b", bad, Expect::Anything).await), "{bad:?}");
        assert!(refused(store.acquire(bad, "me", TTL).await), "{bad:?}");
        assert!(refused(store.get(bad, "k").await), "{bad:?}");
    }
    assert!(refused(store.list("b", "*", None, 1).await));
    assert!(refused(store.acquire("a", "", TTL).await));
}

async fn a_lease_is_held_by_one(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let takers: Vec<_> = (0..8)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.acquire("scan/x", &format!("holder-{n}"), TTL * 5).await.expect("works") })
        })
        .collect();
    let mut held = Vec::new();
    for taker in takers {
        held.extend(taker.await.expect("no panic"));
    }
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!(store.acquire("scan/x", "again", TTL).await.expect("works"), None);
    assert!(store.acquire("scan/y", "other", TTL).await.expect("works").is_some());
}

async fn a_lease_ends_by_itself(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let started = Instant::now();
    let mut first = store.acquire("scan/x", "a", TTL).await.expect("works").expect("free");
    let second = loop {
        if let Some(lease) = store.acquire("scan/x", "b", TTL * 5).await.expect("works") {
            break lease;
        }
        assert!(started.elapsed() < TTL * 4, "it does not end");
        sleep(Duration::from_millis(50)).await;
    };
    assert!(started.elapsed() >= TTL * 9 / 10, "ended after {:?}", started.elapsed());
    assert!(second.fence > first.fence);
    assert!(conflict(store.renew(&mut first, "a").await), "it was taken over");
    store.release(first).await.expect("nothing happens");
    assert_eq!(store.acquire("scan/x", "a", TTL).await.expect("works"), None, "b still has it");
}

async fn a_released_lease_is_free_at_once(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let mut fence = 0;
    for n in 0..5 {
        let mut lease = store.acquire("scan/x", "a", TTL * 5).await.expect("works").expect("free at once");
        assert!(lease.fence > fence, "{lease:?} after {fence}");
        fence = lease.fence;
        if n % 2 == 0 {
            store.renew(&mut lease, "a").await.expect("mine");
        }
        store.release(lease.clone()).await.expect("given up");
        assert!(conflict(store.renew(&mut lease, "a").await), "it was given up");
    }
}

async fn a_renewed_lease_goes_on(rig: &dyn StoreRig) {
    let store = rig.fresh().await;
    let mut lease = store.acquire("scan/x", "a", TTL).await.expect("works").expect("free");
    let (fence, stale) = (lease.fence, lease.clone());
    for _ in 0..9 {
        sleep(TTL / 3).await;
        let before = lease.revision;
        store.renew(&mut lease, "a").await.expect("mine");
        assert!(lease.revision > before && lease.fence == fence);
        assert_eq!(store.acquire("scan/x", "b", TTL).await.expect("works"), None);
    }
    let mut stale = stale;
    assert!(conflict(store.renew(&mut stale, "a").await), "only the last renewal can be renewed");
    store.renew(&mut lease, "a").await.expect("and it did no harm");
}
