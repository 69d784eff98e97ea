//! Tells systemd how this process is, where that started it with `Type=notify`: it runs, it is alive (`WatchdogSec=`), it is ending.
//! Elsewhere, nothing. Source: sd_notify(3).

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::warn;

fn say(state: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[state]) {
        warn!(error = %e, "systemd was not told how this process is");
    }
}

/// Says that this process runs, and that it is alive until `ended`; from `stop` on, that it is ending. What it says of being alive is that its
/// tasks still take turns: whether it can work, `/readyz` tells, and a restart would not mend it.
pub(crate) async fn tell(stop: CancellationToken, ended: CancellationToken) {
    say(NotifyState::Ready);
    let alive = async {
        let Some(within) = sd_notify::watchdog_enabled() else { return futures::future::pending().await };
        let mut ticks = tokio::time::interval(within / 2);
        loop {
            ticks.tick().await;
            say(NotifyState::Watchdog);
        }
    };
    let ending = async {
        stop.cancelled().await;
        say(NotifyState::Stopping);
        ended.cancelled().await;
    };
    tokio::select! { () = alive => {}, () = ending => {} }
}
