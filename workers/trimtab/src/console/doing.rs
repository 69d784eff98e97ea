//! What changes something, each in the record with who did it before it is done, and each going the way that the command line goes.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Form, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use trimtab_bus::Published;
use trimtab_events::Protection;
use uuid::Uuid;

use super::access::Who;
use super::{Console, Refusal, pages};
use crate::journal::{Entry, RecordKind};
use crate::wishes::Wishes;
use crate::worker::Failure;

type Done = Result<Redirect, Refusal>;

/// To a page, by GET.
pub(super) fn goto(page: &str) -> Redirect {
    Redirect::to(page)
}

/// The fields of a form that is one of ours.
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Checks that the form came from a page that this person was given.
    pub(super) fn own(console: &Console, who: &Who, fields: Vec<(String, String)>) -> Result<Fields, Refusal> {
        let fields = Fields(fields);
        match console.parts.access.own_form(who, fields.some("form").unwrap_or_default()) {
            true => Ok(fields),
            false => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "the form is not one of this session; load the page again"))
            }
        }
    }

    pub(super) fn some(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn one(&self, name: &str) -> Result<&str, Refusal> {
        self.some(name).ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, format!("the form lacks {name}")))
    }

    fn numbers(&self, name: &str) -> Vec<i64> {
        self.0.iter().filter(|(field, _)| field == name).filter_map(|(_, value)| value.parse().ok()).collect()
    }

    fn id(&self) -> Result<Uuid, Refusal> {
        self.one("id")?.parse().map_err(|_| Refusal::new(StatusCode::BAD_REQUEST, "the form's id is none"))
    }

    /// Where to go afterwards: a page of ours.
    fn back<'a>(&'a self, or: &'a str) -> &'a str {
        self.some("back")
            .filter(|back| back.starts_with('/') && !back.starts_with("//") && !back.contains('\\'))
            .unwrap_or(or)
    }
}

async fn note(console: &Console, kind: RecordKind, id: String, body: serde_json::Value) -> Result<(), Failure> {
    let entry = Entry { kind, id, subject: String::new(), trace_id: String::new(), body };
    console.parts.journal.write(entry).await?;
    Ok(())
}

type Pairs = Form<Vec<(String, String)>>;

/// Asks for a new plan. Changes nothing but what is shown, so it is not in the record.
pub(super) async fn look(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    Fields::own(&console, &who, fields)?;
    if !console.looker.can_look() {
        return Err(Refusal::new(StatusCode::CONFLICT, "this console makes no plans"));
    }
    console.looker.ask();
    Ok(goto("/?done=looking"))
}

/// Leaves items of one page out of the plan, or takes them in again.
pub(super) async fn choose(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let plan = fields.one("plan")?;
    let Some(index) = console.looker.present().filter(|index| index.scan.id.to_string() == plan) else {
        return Err(Refusal::new(
            StatusCode::CONFLICT,
            "there is a newer plan than the one that was shown; look at that one",
        ));
    };
    let (shown, ticked, name) = (fields.numbers("shown"), fields.numbers("ticked"), who.name.clone());
    console.blocking(move || index.choose(&shown, &ticked, &name)).await?;
    Ok(goto(fields.back("/plan")))
}

/// Opens the gate of a scan that a limit or a person stopped.
pub(super) async fn confirm(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let scan = fields.id()?;
    let gate = console.parts.scans.gate(scan).await?.ok_or_else(|| Refusal::absent("such scan"))?;
    // What was read before the button was pressed is what is confirmed; a second press changes nothing.
    if gate.closed().is_none() {
        return Ok(goto("/limits?done=confirmed"));
    }
    if gate.stopped.as_deref() != fields.some("why") {
        return Err(Refusal::new(StatusCode::CONFLICT, "it is stopped for another reason by now; look again"));
    }
    let body = serde_json::json!({ "scan": scan, "by": who.name, "why": gate.stopped });
    note(&console, RecordKind::Confirm, scan.to_string(), body).await?;
    console.parts.scans.confirm(scan, &who.name).await?;
    Ok(goto("/limits?done=confirmed"))
}

/// Closes the gate of a scan or an approved plan.
pub(super) async fn stop(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let scan = fields.id()?;
    let gate = console.parts.scans.gate(scan).await?.ok_or_else(|| Refusal::absent("such scan"))?;
    if gate.closed().is_none() {
        note(&console, RecordKind::Stop, scan.to_string(), serde_json::json!({ "scan": scan, "by": who.name })).await?;
        console.parts.scans.stop(scan, &format!("{} stopped it", who.name)).await?;
    }
    Ok(goto("/limits?done=stopped"))
}

/// Notes a wish to be left alone, or takes one back.
pub(super) async fn protect(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let remove = fields.some("remove") == Some("yes");
    let bad = |says: String| Refusal::new(StatusCode::BAD_REQUEST, says);
    let until_ms = match fields.some("until").map(str::trim).filter(|until| !until.is_empty()) {
        Some(until) => {
            let day: jiff::civil::Date =
                until.parse().map_err(|e| bad(format!("until is a day such as 2027-01-31: {e}")))?;
            let begins = jiff::tz::TimeZone::UTC.to_timestamp(day.at(0, 0, 0, 0)).map_err(|e| bad(e.to_string()))?;
            Some(begins.as_millisecond())
        }
        None => None,
    };
    if until_ms.is_some_and(|until| until <= console.parts.clock.now_ms()) {
        return Err(bad("that day has begun already; a wish ends at the beginning of its day, UTC".to_owned()));
    }
    let subject = fields.one("subject")?.trim().to_owned();
    let noted = console.parts.activity.protections().await?.iter().any(|wish| wish.subject == subject);
    let wish = Protection { subject, by: who.name.clone(), until_ms };
    // Taken back twice is taken back.
    if !remove || noted {
        Wishes::new(console.parts.activity.clone(), console.parts.journal.clone()).note(&wish, remove).await?;
    }
    let done = if remove { "unprotected" } else { "protected" };
    Ok(goto(&format!("/marks?done={done}")))
}

/// Puts an event that was given up back into its queue.
pub(super) async fn retry(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let id = fields.one("id")?;
    note(&console, RecordKind::Letter, id.to_owned(), serde_json::json!({ "by": who.name, "what": "put back" }))
        .await?;
    match console.parts.bus.retry(id).await.map_err(Failure::from)? {
        Some(Published::Outstanding) => {
            Err(Refusal::new(StatusCode::CONFLICT, "another decision about it is outstanding; the letter stays"))
        }
        // Somebody else has put it back, or this was pressed twice.
        Some(_) | None => Ok(goto("/dead?done=retried")),
    }
}

/// Takes an event that was given up away for good.
pub(super) async fn forget(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Done {
    let fields = Fields::own(&console, &who, fields)?;
    let id = fields.one("id")?;
    note(&console, RecordKind::Letter, id.to_owned(), serde_json::json!({ "by": who.name, "what": "took away" }))
        .await?;
    console.parts.bus.forget(id).await.map_err(Failure::from)?;
    Ok(goto("/dead?done=dropped"))
}

/// Begins a session.
pub(super) async fn log_in(State(console): State<Arc<Console>>, Form(fields): Pairs) -> Result<Response, Refusal> {
    let token = Fields(fields);
    let failed = |why: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why);
    match console.parts.access.log_in(token.one("token")?).map_err(failed)? {
        Some(cookie) => with_cookie(&cookie, "/"),
        None => {
            // Nobody guesses one of these; nor should anybody try fast.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            Ok((StatusCode::UNAUTHORIZED, pages::log_in(&console, true)).into_response())
        }
    }
}

/// Ends a session.
pub(super) async fn log_out(
    State(console): State<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Pairs,
) -> Result<Response, Refusal> {
    Fields::own(&console, &who, fields)?;
    with_cookie(&console.parts.access.log_out(&who), "/login")
}

fn with_cookie(cookie: &str, page: &str) -> Result<Response, Refusal> {
    let value =
        HeaderValue::from_str(cookie).map_err(|e| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(([(header::SET_COOKIE, value)], goto(page)).into_response())
}
