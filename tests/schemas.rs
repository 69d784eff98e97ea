//! The documents in `schemas/` say what the types say, and everything that was ever released still fits them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use trimtab_events::{Body, Event, Plan, schema};

fn schemas() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `TRIMTAB_UPDATE_SCHEMAS=1` writes them instead.
#[test]
fn the_documents_are_those_of_the_types() {
    let update = std::env::var_os("TRIMTAB_UPDATE_SCHEMAS").is_some();
    let mut expected: Vec<String> = Vec::new();
    let console = ("console.openapi.json".to_owned(), trimtab::console::openapi());
    for (name, document) in schema::all().into_iter().chain([console]) {
        let path = schemas().join(&name);
        let text = format!("{}\n", serde_json::to_string_pretty(&document).unwrap());
        if update {
            std::fs::create_dir_all(schemas()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            kept == text,
            "schemas/{name} is not what the types say; TRIMTAB_UPDATE_SCHEMAS=1 cargo test --test schemas writes it"
        );
        expected.push(name);
    }
    let files = std::fs::read_dir(schemas()).unwrap().map(|entry| entry.unwrap());
    let mut kept: Vec<String> =
        files.filter(|f| f.path().is_file()).map(|f| f.file_name().into_string().unwrap()).collect();
    expected.sort();
    kept.sort();
    assert_eq!(kept, expected, "a document in schemas/ that nothing generates");
}

fn validator(name: &str) -> jsonschema::Validator {
    jsonschema::draft202012::new(&json(&schemas().join(name))).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn errors(validator: &jsonschema::Validator, value: &Value) -> Vec<String> {
    validator.iter_errors(value).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

/// Whether the types take it, and why not.
fn parse(document: &Value) -> Result<(), String> {
    if document.get("format_version").is_some() {
        return serde_json::from_value::<Plan>(document.clone()).map(|_| ()).map_err(|e| e.to_string());
    }
    let event = Event::from_bytes(document.to_string().as_bytes()).map_err(|e| e.to_string())?;
    event.body().map(|_| ()).map_err(|e| e.to_string())
}

/// Whether the schemas take it: the envelope's and that of its data, or the plan's.
fn validate(document: &Value) -> Vec<String> {
    if document.get("format_version").is_some() {
        return errors(&validator("plan.v1.json"), document);
    }
    let kind = document["type"].as_str().unwrap();
    let Some((_, file)) = Body::KINDS.iter().find(|(known, _)| *known == kind) else {
        return vec![format!("type {kind}")];
    };
    [errors(&validator("event.v1.json"), document), errors(&validator(file), &document["data"])].concat()
}

/// Every kept example: path and document.
fn examples() -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for version in std::fs::read_dir(schemas().join("examples")).unwrap() {
        for file in std::fs::read_dir(version.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            found.push((path.clone(), json(&path)));
        }
    }
    found
}

#[test]
fn every_example_of_every_version_parses_and_fits_its_schema() {
    let examples = examples();
    for (path, document) in &examples {
        assert_eq!(parse(document), Ok(()), "{}", path.display());
        assert_eq!(validate(document), Vec::<String>::new(), "{}", path.display());
    }
    for (kind, _) in Body::KINDS {
        assert!(examples.iter().any(|(_, document)| document["type"] == *kind), "no example of {kind}");
    }
    assert!(examples.iter().any(|(_, document)| document.get("format_version").is_some()), "no example of a plan");
}

#[test]
fn every_event_belongs_to_a_queue() {
    for (path, document) in examples() {
        if document.get("format_version").is_none() {
            let event = Event::from_bytes(document.to_string().as_bytes()).unwrap();
            assert!(trimtab_bus::Role::of(&event).is_some(), "{}", path.display());
        }
    }
}

/// Paths of all objects in a document that are not maps from free names to values.
fn objects(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let free = ["inputs", "verdicts", "failed_shards", "references", "incomplete", "named", "kept"]
                .iter()
                .any(|name| at.ends_with(&format!("/{name}")));
            if !free {
                out.push(at.to_owned());
            }
            fields.iter().for_each(|(name, value)| objects(value, &format!("{at}/{name}"), out));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| objects(value, &format!("{at}/{i}"), out))
        }
        _ => {}
    }
}

#[test]
fn an_unknown_field_anywhere_is_refused_by_types_and_schemas() {
    for (path, document) in examples() {
        let mut all = Vec::new();
        objects(&document, "", &mut all);
        for at in all {
            let mut extra = document.clone();
            extra.pointer_mut(&at).unwrap()["surprise"] = json!(1);
            assert!(parse(&extra).is_err(), "{}: the types take an unknown field at {at:?}", path.display());
            assert!(!validate(&extra).is_empty(), "{}: the schema takes an unknown field at {at:?}", path.display());
        }
    }
}

/// Every `$ref` of the AsyncAPI document, in the document itself or in a file beside it.
#[test]
fn every_reference_of_the_asyncapi_document_resolves() {
    fn refs(value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                out.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| refs(value, out));
            }
            Value::Array(items) => items.iter().for_each(|value| refs(value, out)),
            _ => {}
        }
    }
    let document = json(&schemas().join("asyncapi.json"));
    let mut all = Vec::new();
    refs(&document, &mut all);
    for reference in &all {
        let found = match reference.strip_prefix('#') {
            Some(pointer) => document.pointer(pointer).is_some(),
            None => schemas().join(reference).is_file(),
        };
        assert!(found, "{reference}");
    }
    for (_, file) in Body::KINDS {
        assert!(all.contains(&format!("./{file}")), "no channel carries {file}");
    }
}
