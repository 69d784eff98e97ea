//! Each process as a NATS micro service: `nats micro ls`, `info` and `stats` show it, and one endpoint says how it is.
//!
//! It only tells. Pausing is left to the servers, where it is recorded and holds for every process of a role, also for those that start
//! later: `nats consumer pause TT_DEC executor 1h`.

use std::collections::HashMap;

use async_nats::service::ServiceExt;
use futures::StreamExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::http::{Check, judge};

/// What is told.
pub struct Status {
    /// The role.
    pub role: &'static str,
    /// The process's name in records.
    pub instance: String,
    /// The target.
    pub target: String,
    /// Checks of readiness.
    pub checks: Vec<Check>,
}

/// Subject that all processes of a role answer, each for itself.
pub fn subject(role: &str) -> String {
    format!("trimtab.status.{role}")
}

/// Answers until `ended`. A process that cannot be asked works all the same.
pub async fn serve(client: async_nats::Client, status: Status, ended: CancellationToken) {
    let answering = ended.run_until_cancelled(answer(client, &status)).await;
    if let Some(Err(e)) = answering {
        warn!(role = status.role, error = %e, "this process is not shown as a NATS micro service");
    }
}

async fn answer(client: async_nats::Client, status: &Status) -> Result<(), async_nats::Error> {
    let metadata = [("role", status.role), ("instance", &status.instance), ("target", &status.target)];
    let metadata: HashMap<String, String> =
        metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let service = client
        .service_builder()
        .description(format!("trimtab {}", status.role))
        .metadata(metadata)
        // One of its own for each process, so that each answers: who asks wants to know of all.
        .queue_group(uuid::Uuid::now_v7().simple())
        .start(format!("trimtab-{}", status.role), env!("CARGO_PKG_VERSION"))
        .await?;
    let mut endpoint = service.endpoint_builder().name("status").add(subject(status.role)).await?;
    while let Some(request) = endpoint.next().await {
        let checks = judge(&status.checks).await;
        let ready = checks.iter().all(|(_, found)| found.is_ok());
        let checks: serde_json::Map<_, _> = checks
            .into_iter()
            .map(|(name, found)| (name.to_owned(), found.err().map_or_else(|| json!("ok"), |why| json!(why))))
            .collect();
        let told = json!({
            "role": status.role, "instance": status.instance, "target": status.target, "version": env!("CARGO_PKG_VERSION"),
            "ready": ready, "checks": checks,
        });
        request.respond(Ok(told.to_string().into())).await?;
    }
    Ok(())
}
