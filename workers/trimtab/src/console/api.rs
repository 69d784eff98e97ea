//! The read API: what the pages show, as JSON, and the document that describes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::index::{Filter, Mark, Part};
use super::views::{
    ActsView, CandidateView, CandidatesView, FileView, LetterView, LimitsView, MarksView, Overview, PAGE, PlanView,
    RecoveryView, StoryView,
};
use super::{Console, Refusal};

type Answer<T> = Result<Json<T>, Refusal>;

/// Why there is no answer.
#[derive(Serialize, JsonSchema)]
struct Problem {
    /// What was attempted, and why it failed.
    error: String,
}

pub(super) fn refused(refusal: &Refusal) -> Response {
    (refusal.status, Json(Problem { error: refusal.says.clone() })).into_response()
}

/// What is asked for in an address, of lists.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    pub(super) namespace: Option<String>,
    pub(super) verdict: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) text: Option<String>,
    pub(super) acts: Option<String>,
    pub(super) after: Option<String>,
    pub(super) before: Option<String>,
    pub(super) last: Option<String>,
    /// What was just done, for a page to say so.
    pub(super) done: Option<String>,
}

impl ListQuery {
    pub(super) fn filter(&self) -> Result<Filter, Refusal> {
        let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let acts = match self.acts.as_deref() {
            None | Some("") => None,
            Some("true") => Some(true),
            Some("false") => Some(false),
            Some(_) => return Err(Refusal::new(StatusCode::BAD_REQUEST, "acts is true or false")),
        };
        Ok(Filter {
            namespace: some(&self.namespace),
            verdict: some(&self.verdict),
            reason: some(&self.reason),
            text: some(&self.text),
            acts,
        })
    }

    pub(super) fn part(&self) -> Result<Part, Refusal> {
        let mark = |text: &str| {
            Mark::parse(text)
                .ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "after and before are as an answer had them"))
        };
        Ok(match (self.after.as_deref(), self.before.as_deref(), self.last.is_some()) {
            (Some(after), None, false) => Part::After(mark(after)?),
            (None, Some(before), false) => Part::Before(mark(before)?),
            (None, None, true) => Part::Last,
            (None, None, false) => Part::First,
            _ => return Err(Refusal::new(StatusCode::BAD_REQUEST, "give one of after, before and last")),
        })
    }
}

/// Which acts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ActsQuery {
    pub(super) before: Option<String>,
}

impl ActsQuery {
    pub(super) fn before(&self) -> Result<Option<(i64, i64)>, Refusal> {
        let parse = |text: &str| {
            let (at, id) = text.split_once('_')?;
            Some((at.parse().ok()?, id.parse().ok()?))
        };
        match self.before.as_deref() {
            None => Ok(None),
            Some(text) => match parse(text) {
                Some(before) => Ok(Some(before)),
                None => Err(Refusal::new(StatusCode::BAD_REQUEST, "before is as an answer had it in next")),
            },
        }
    }
}

/// Whose story.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoryQuery {
    pub(super) about: String,
    #[serde(default)]
    pub(super) done: Option<String>,
}

pub(super) fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/plan", get(plan))
        .route("/api/v1/plan/items", get(items))
        .route("/api/v1/plan/items/{id}", get(item))
        .route("/api/v1/acts", get(acts))
        .route("/api/v1/stories", get(story))
        .route("/api/v1/limits", get(limits))
        .route("/api/v1/marks", get(marks))
        .route("/api/v1/dead-letters", get(letters))
        .route("/api/v1/recoveries", get(recoveries))
        .route("/api/v1/record", get(record))
        .route("/api/v1/openapi.json", get(async || Json(openapi())))
        .route("/api/{*rest}", get(async || Refusal::absent("such path; /api/v1/openapi.json lists them")))
}

async fn overview(State(console): State<Arc<Console>>) -> Answer<Overview> {
    Ok(Json(console.overview().await?))
}

async fn plan(State(console): State<Arc<Console>>) -> Answer<PlanView> {
    let index = console.looker.present().ok_or_else(|| Refusal::absent("plan yet"))?;
    Ok(Json(console.plan_view(index).await?))
}

async fn items(State(console): State<Arc<Console>>, Query(query): Query<ListQuery>) -> Answer<CandidatesView> {
    let index = console.looker.present().ok_or_else(|| Refusal::absent("plan yet"))?;
    Ok(Json(console.candidates(index, query.filter()?, query.part()?).await?))
}

async fn item(State(console): State<Arc<Console>>, Path(id): Path<i64>) -> Answer<CandidateView> {
    let index = console.looker.present().ok_or_else(|| Refusal::absent("plan yet"))?;
    console.candidate(index, id).await?.map(Json).ok_or_else(|| Refusal::absent("such item in the newest plan"))
}

async fn acts(State(console): State<Arc<Console>>, Query(query): Query<ActsQuery>) -> Answer<ActsView> {
    Ok(Json(console.acts(query.before()?, PAGE).await?))
}

async fn story(State(console): State<Arc<Console>>, Query(query): Query<StoryQuery>) -> Answer<StoryView> {
    Ok(Json(console.story(&query.about).await?))
}

async fn limits(State(console): State<Arc<Console>>) -> Answer<LimitsView> {
    Ok(Json(console.limits().await?))
}

async fn marks(State(console): State<Arc<Console>>) -> Answer<MarksView> {
    Ok(Json(console.marks().await?))
}

async fn letters(State(console): State<Arc<Console>>) -> Answer<Vec<LetterView>> {
    Ok(Json(console.letters().await?))
}

async fn recoveries(State(console): State<Arc<Console>>) -> Answer<Vec<RecoveryView>> {
    Ok(Json(console.recoveries().await?))
}

async fn record(State(console): State<Arc<Console>>) -> Answer<Vec<FileView>> {
    Ok(Json(console.records.files().into_iter().map(FileView::from).collect()))
}

/// A path of the API: address, what it answers with, and its parameters: name, where, whether it must be there, and what it is.
struct Described {
    path: &'static str,
    says: &'static str,
    schema: fn(&mut SchemaGenerator) -> schemars::Schema,
    parameters: &'static [(&'static str, &'static str, bool, &'static str)],
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<T>()
}

const LIST: &[(&str, &str, bool, &str)] = &[
    ("namespace", "query", false, "Only this namespace"),
    ("verdict", "query", false, "Only this verdict"),
    ("reason", "query", false, "Only what this rule spoke first about"),
    ("text", "query", false, "Only names that contain this"),
    ("acts", "query", false, "`true`: only what would be carried out; `false`: only what would not"),
    ("after", "query", false, "The page after this place: `next` of an answer"),
    ("before", "query", false, "The page before this place: `previous` of an answer"),
    ("last", "query", false, "The last page"),
];

const PATHS: &[Described] = &[
    Described { path: "/api/v1/overview", says: "How things are", schema: of::<Overview>, parameters: &[] },
    Described { path: "/api/v1/plan", says: "The newest plan, summed up", schema: of::<PlanView>, parameters: &[] },
    Described {
        path: "/api/v1/plan/items",
        says: "Its items, the largest first, in pages of 100",
        schema: of::<CandidatesView>,
        parameters: LIST,
    },
    Described {
        path: "/api/v1/plan/items/{id}",
        says: "One item with its evidence",
        schema: of::<CandidateView>,
        parameters: &[("id", "path", true, "Its number in the plan")],
    },
    Described {
        path: "/api/v1/acts",
        says: "Acts, the newest first, in pages of 100",
        schema: of::<ActsView>,
        parameters: &[("before", "query", false, "The next page: `next` of an answer")],
    },
    Described {
        path: "/api/v1/stories",
        says: "Everything recorded about a subject, a decision, a scan or a trace",
        schema: of::<StoryView>,
        parameters: &[("about", "query", true, "Its name or id")],
    },
    Described {
        path: "/api/v1/limits",
        says: "Limits, and the scans held against them",
        schema: of::<LimitsView>,
        parameters: &[],
    },
    Described {
        path: "/api/v1/marks",
        says: "Subscribers in their grace period, and wishes to be left alone",
        schema: of::<MarksView>,
        parameters: &[],
    },
    Described {
        path: "/api/v1/dead-letters",
        says: "Events that were given up, the newest first",
        schema: of::<Vec<LetterView>>,
        parameters: &[],
    },
    Described {
        path: "/api/v1/recoveries",
        says: "The last recovery of each log dir",
        schema: of::<Vec<RecoveryView>>,
        parameters: &[],
    },
    Described {
        path: "/api/v1/record",
        says: "The journals, and whether they are whole",
        schema: of::<Vec<FileView>>,
        parameters: &[],
    },
];

/// The document that describes the read API, OpenAPI 3.1, made from its types.
pub fn openapi() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    let mut generator = SchemaGenerator::new(settings);
    let mut paths = BTreeMap::new();
    let problem = generator.subschema_for::<Problem>();
    for Described { path, says, schema, parameters } in PATHS {
        let schema = schema(&mut generator);
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|(name, place, required, says)| {
                let kind = if *place == "path" { "integer" } else { "string" };
                json!({"name": name, "in": place, "required": required, "description": says, "schema": {"type": kind}})
            })
            .collect();
        let mut described = json!({"get": {
            "summary": says,
            "responses": {
                "200": {"description": says, "content": {"application/json": {"schema": schema}}},
                "default": {"description": "Why not", "content": {"application/json": {"schema": problem}}},
            },
        }});
        if !parameters.is_empty() {
            described["get"]["parameters"] = json!(parameters);
        }
        paths.insert(*path, described);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "trimtab console",
            "version": "1",
            "description": "What the console shows, to be read by programs. Nothing here changes anything.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}
