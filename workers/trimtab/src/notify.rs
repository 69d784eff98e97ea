//! Tells owners: each notice goes to a webhook as a small JSON object, the same that `schemas/notice.v1.json` describes.

use std::time::Duration;

use trimtab_events::Notice;
use trimtab_targets::Class;

use crate::worker::Failure;

/// How long the other side may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A webhook.
pub struct Notify {
    client: reqwest::Client,
    url: reqwest::Url,
    token: Option<String>,
}

impl Notify {
    /// Sends to this address, with this bearer token if there is one.
    ///
    /// # Errors
    /// When the address is not one.
    pub fn new(url: &str, token: Option<String>) -> Result<Notify, String> {
        let url = reqwest::Url::parse(url).map_err(|e| format!("notify.webhook {url:?} is not an address: {e}"))?;
        // A redirect would send the token elsewhere.
        let client = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).build();
        Ok(Notify { client: client.map_err(|e| format!("notify.webhook: {e}"))?, url, token })
    }

    /// Sends a notice. It is tried again by the queue it came from.
    ///
    /// # Errors
    /// When it was not taken.
    pub async fn send(&self, notice: &Notice) -> Result<(), Failure> {
        let mut request = self.client.post(self.url.clone()).json(notice);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let failed = |why: String| {
            Failure::new(Class::Transient, format!("telling {} about {}: {why}", self.url, notice.subject))
        };
        let answer = request.send().await.map_err(|e| failed(e.without_url().to_string()))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(failed(format!("it answered {status}"))),
        }
    }
}
