//! Acts as they happen, for browsers that watch.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt};
use tokio::sync::broadcast::error::RecvError;

use super::{Console, Refusal, pages};

/// Each event `act` holds a row for the table of acts; `missed` says that some were left out for who was too slow.
pub(super) async fn live(
    State(console): State<Arc<Console>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let Ok(place) = console.watchers.clone().try_acquire_owned() else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many watch already; load the page again to see more",
        ));
    };
    let (acts, stop) = (console.records.watch(), console.parts.stop.clone());
    let events = futures::stream::unfold((acts, console, place), |(mut acts, console, place)| async move {
        let event = match acts.recv().await {
            Ok(act) => {
                let act = console.act_view((*act).clone());
                // An act's row is replaced by its next one.
                Event::default().event("act").id(pages::row_id(&act)).data(pages::act_row(&act).into_string())
            }
            Err(RecvError::Lagged(missed)) => Event::default().event("missed").data(missed.to_string()),
            Err(RecvError::Closed) => return None,
        };
        Some((Ok(event), (acts, console, place)))
    });
    // Whoever watches does not keep the process from ending.
    let events = events.take_until(async move { stop.cancelled().await }).boxed();
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}
