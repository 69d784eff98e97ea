//! Who may look, who may act, and from where.

use std::io::Write;

use trimtab::config::{Caps, ConsoleConfig};
use trimtab::console::{Grade, Hands, new_token};

use super::ground::Ground;

const SUBJECT: &str = "persistent://a/b/c";
const SAME: (&str, &str) = ("sec-fetch-site", "same-origin");

/// Everything that changes something, with fields that would do it.
const ACTIONS: [(&str, &[(&str, &str)]); 8] = [
    ("/protect", &[("subject", SUBJECT)]),
    ("/look", &[]),
    ("/scans/confirm", &[("id", "01890000-0000-7000-8000-000000000001")]),
    ("/scans/stop", &[("id", "01890000-0000-7000-8000-000000000001")]),
    ("/dead/retry", &[("id", "1")]),
    ("/dead/drop", &[("id", "1")]),
    ("/plan/choose", &[("plan", "x")]),
    ("/plan/approve", &[("plan", "x"), ("digest", "x")]),
];

async fn with_tokens() -> (Ground, String, String) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let (alice, first) = new_token("alice", Grade::Operator).unwrap();
    let (bob, second) = new_token("bob", Grade::Viewer).unwrap();
    writeln!(file, "{first}\n{second}").unwrap();
    let config = ConsoleConfig { tokens_file: Some(file.path().to_owned()), ..ConsoleConfig::default() };
    let ground = Ground::with(config, Caps::default(), |_| Hands::None("it only looks".to_owned())).await;
    (ground, alice, bob)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_is_not_ours_does_nothing() {
    let ground = Ground::start().await;
    ground.plan().await;
    let form = ground.get("/marks").await.field("form");
    for (path, fields) in ACTIONS {
        let with = |token: &str| {
            [&[("form", token)], fields]
                .concat()
                .iter()
                .map(|(a, b)| (a.to_string(), b.to_string()))
                .collect::<Vec<_>>()
        };
        for (token, headers) in [
            ("", vec![SAME]),
            ("0000", vec![SAME]),
            (form.as_str(), vec![("sec-fetch-site", "cross-site")]),
            (form.as_str(), vec![("sec-fetch-site", "same-site")]),
            (form.as_str(), vec![("origin", "https://evil.example")]),
            (form.as_str(), vec![("origin", "null")]),
        ] {
            let fields = with(token);
            let fields: Vec<(&str, &str)> = fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let answer = ground.post_with(path, &fields, &headers).await;
            assert_eq!(answer.status, 403, "{path} {token} {headers:?}: {}", answer.body);
        }
        assert_eq!(ground.get(path).await.status == 405, path != "/plan/approve", "{path} by GET");
    }
    assert_eq!(ground.kinds(), []);
    assert!(ground.activity.protections().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_looks_changes_nothing() {
    let (ground, alice, bob) = with_tokens().await;
    for path in ["/", "/plan", "/live", "/story?about=x"] {
        let answer = ground.get(path).await;
        assert_eq!((answer.status, answer.header("location")), (303, "/login"), "{path}");
    }
    assert_eq!(ground.get("/api/v1/overview").await.status, 401);
    assert_eq!(ground.get("/login").await.status, 200);
    let log_in = async |token: &str| ground.post_with("/login", &[("token", token)], &[SAME]).await;
    assert_eq!(log_in("wrong").await.status, 401);
    let cookie = async |token: &str| {
        let answer = log_in(token).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        answer.header("set-cookie").split(';').next().unwrap().to_owned()
    };
    let (looks, acts) = (cookie(&bob).await, cookie(&alice).await);
    let page = ground.get_with("/marks", &[("cookie", &looks)]).await;
    assert!(page.status == 200 && page.body.contains("bob, viewer") && !page.body.contains("/protect"), "{page:?}");
    assert!(!page.body.contains(&bob), "a token is on a page");
    let form = page.field("form");
    for (path, fields) in ACTIONS {
        let fields = [&[("form", form.as_str())], fields].concat();
        let answer = ground.post_with(path, &fields, &[("cookie", &looks), SAME]).await;
        assert_eq!(answer.status, 403, "{path}");
    }
    // Nor with the form of somebody else's session.
    let theirs = ground.get_with("/marks", &[("cookie", &acts)]).await.field("form");
    let crossed = [("form", form.as_str()), ("subject", SUBJECT)];
    assert_eq!(ground.post_with("/protect", &crossed, &[("cookie", &acts), SAME]).await.status, 403);
    assert_eq!(ground.kinds(), []);
    let own = [("form", theirs.as_str()), ("subject", SUBJECT)];
    assert_eq!(ground.post_with("/protect", &own, &[("cookie", &acts), SAME]).await.status, 303);
    assert_eq!(ground.recorded()[0].body["by"], "alice");
    let bearer = format!("Bearer {bob}");
    assert_eq!(ground.get_with("/api/v1/overview", &[("authorization", &bearer)]).await.status, 200);
    let out = [("form", theirs.as_str())];
    assert_eq!(ground.post_with("/logout", &out, &[("cookie", &acts), SAME]).await.status, 303);
    assert_eq!(ground.get_with("/marks", &[("cookie", &acts)]).await.status, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn by_another_name_it_is_not_there() {
    let ground = Ground::start().await;
    for (host, status) in [("evil.example", 421), ("localhost:1", 200), ("127.0.0.1", 200)] {
        assert_eq!(ground.get_with("/", &[("host", host)]).await.status, status, "{host}");
        assert_eq!(ground.get_with("/api/v1/overview", &[("host", host)]).await.status, status, "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wish_is_noted_once_and_taken_back_by_name() {
    let ground = Ground::start().await;
    let wish = [("subject", SUBJECT), ("until", "2099-01-31")];
    for _ in 0..2 {
        assert_eq!(ground.post("/protect", &wish).await.status, 303);
    }
    let wishes = ground.activity.protections().await.unwrap();
    assert_eq!(wishes.len(), 1);
    assert!(wishes[0].until_ms.is_some_and(|until| until > super::ground::NOW_MS));
    assert!(ground.get("/marks").await.body.contains(SUBJECT));
    for bad in [("until", "2001-01-01"), ("until", "soon")] {
        assert_eq!(ground.post("/protect", &[("subject", SUBJECT), bad]).await.status, 400);
    }
    assert_eq!(ground.post("/protect", &[("subject", "no name")]).await.status, 400);
    for _ in 0..2 {
        assert_eq!(ground.post("/protect", &[("subject", SUBJECT), ("remove", "yes")]).await.status, 303);
    }
    assert!(ground.activity.protections().await.unwrap().is_empty());
    assert_eq!(ground.kinds().len(), 3, "each in the record, but what was taken back already");
}
