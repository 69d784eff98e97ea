//! The documents in `schemas/`: one JSON Schema (2020-12) per event type and per document, and one AsyncAPI document.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::{Body, Event, Plan};

/// File name and content of every generated document, in a fixed order.
pub fn all() -> Vec<(String, Value)> {
    let settings = SchemaSettings::draft2020_12();
    let mut files: Vec<(String, Value)> =
        Body::schemas(&settings).into_iter().map(|(name, schema)| (name.to_owned(), schema.to_value())).collect();
    let root = |schema: schemars::Schema| schema.to_value();
    files.push(("event.v1.json".into(), root(settings.clone().into_generator().into_root_schema_for::<Event>())));
    files.push(("plan.v1.json".into(), root(settings.into_generator().into_root_schema_for::<Plan>())));
    files.push(("asyncapi.json".into(), asyncapi()));
    files
}

/// One queue: name, address, who sends, who receives, schemas of the data.
const CHANNELS: &[(&str, &str, &str, &str, &[&str])] = &[
    (
        "candidates",
        "trimtab.cand.{target}.{kind}.{shard}",
        "scanner",
        "decider",
        &["candidate.ledger.v1.json", "candidate.subscriber.v1.json", "candidate.orphan.v1.json"],
    ),
    ("decisions", "trimtab.dec.{target}.{action}.{shard}.{key}", "decider", "executor", &["decision.v1.json"]),
    (
        "outcomes",
        "trimtab.res.{target}.{outcome}",
        "executor",
        "audit",
        &["outcome.v1.json", "notice.v1.json", "scan.report.v1.json"],
    ),
    ("requests", "trimtab.req.{target}", "trigger", "scanner", &["scan.request.v1.json", "scan.shard.v1.json"]),
    ("segments", "trimtab.job.{lane}.{shard}.{key}", "planner", "recovery", &["recovery.segment.v1.json"]),
    ("reports", "trimtab.rep.{lane}.{state}", "recovery", "finisher", &["recovery.report.v1.json"]),
    ("recoveries", "trimtab.res.{lane}.{state}", "finisher", "audit", &["recovery.outcome.v1.json"]),
];

fn asyncapi() -> Value {
    let mut channels = serde_json::Map::new();
    let mut operations = serde_json::Map::new();
    let mut messages = serde_json::Map::new();
    for (name, address, sender, receiver, schemas) in CHANNELS {
        let parameters: serde_json::Map<String, Value> = address
            .split('.')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|parameter| (parameter.to_owned(), json!({})))
            .collect();
        let mut in_channel = serde_json::Map::new();
        for schema in *schemas {
            let message = schema.trim_end_matches(".v1.json");
            in_channel.insert(message.to_owned(), json!({"$ref": format!("#/components/messages/{message}")}));
            let mut described = json!({
                "contentType": "application/cloudevents+json",
                "payload": {"allOf": [
                    {"$ref": "./event.v1.json"},
                    {"type": "object", "properties": {"data": {"$ref": format!("./{schema}")}}},
                ]},
            });
            if message.starts_with("candidate.") {
                let says = "How the payload is encoded: as one block of that format. Without it the payload is the JSON itself.";
                let encoding = json!({"type": "string", "const": "snappy", "description": says});
                described["headers"] = json!({"type": "object", "properties": {"Content-Encoding": encoding}});
            }
            messages.insert(message.to_owned(), described);
        }
        channels
            .insert((*name).to_owned(), json!({"address": address, "parameters": parameters, "messages": in_channel}));
        for (action, role) in [("send", sender), ("receive", receiver)] {
            operations.insert(
                format!("{role}-{action}-{name}"),
                json!({"action": action, "channel": {"$ref": format!("#/channels/{name}")}}),
            );
        }
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "trimtab",
            "version": "1",
            "description": "Events between the workers of trimtab, over NATS JetStream or in one process.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/cloudevents+json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    })
}
