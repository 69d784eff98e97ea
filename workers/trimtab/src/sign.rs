//! Signatures on decisions and outcomes (Ed25519 nkeys). Permissions on subjects do not stop a forged decision: a server stores
//! what a reply subject names. So a decision is obeyed only when a trusted decider signed it.

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nkeys::KeyPair;
use trimtab_events::Event;

/// Why a key cannot be used, or an event is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// A seed or public key is not one.
    #[error("{0} is not a usable key: {1}; make one with `trimtab keys new`")]
    Key(String, String),
    /// The event has no signature, or a wrong one, or one of somebody unknown.
    #[error("event {id} is not believed: {why}")]
    Unbelieved {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
}

/// Signs with one's own key.
pub struct Signer(KeyPair);

impl Signer {
    /// A key that lives as long as this process: for roles that run in one process.
    pub fn ephemeral() -> Signer {
        Signer(KeyPair::new_user())
    }

    /// A key from a file with its seed.
    ///
    /// # Errors
    /// When the file cannot be read or holds no seed.
    pub fn from_file(path: &Path) -> Result<Signer, SignError> {
        let bad = |why: String| SignError::Key(path.display().to_string(), why);
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        KeyPair::from_seed(text.trim()).map(Signer).map_err(|e| bad(e.to_string()))
    }

    /// The public key, for [`Trusted`].
    pub fn public_key(&self) -> String {
        self.0.public_key()
    }

    /// The seed, to be kept secret.
    ///
    /// # Errors
    /// Never for keys made here.
    pub fn seed(&self) -> Result<String, SignError> {
        self.0.seed().map_err(|e| SignError::Key("the key".to_owned(), e.to_string()))
    }

    /// Signs an event.
    ///
    /// # Errors
    /// Never for keys made here.
    pub fn sign(&self, event: &mut Event) -> Result<(), SignError> {
        event.signer = Some(self.public_key());
        let signature = self.0.sign(&event.signed_bytes());
        let signature = signature.map_err(|e| SignError::Key("the key".to_owned(), e.to_string()))?;
        event.signature = Some(BASE64.encode(signature));
        Ok(())
    }
}

/// Whose signatures are believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trusted(BTreeSet<String>);

impl Trusted {
    /// These public keys.
    ///
    /// # Errors
    /// When one is not a public key.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Result<Trusted, SignError> {
        let keys: BTreeSet<String> = keys.into_iter().collect();
        for key in &keys {
            KeyPair::from_public_key(key).map_err(|e| SignError::Key(format!("{key:?}"), e.to_string()))?;
        }
        Ok(Trusted(keys))
    }

    /// Checks that somebody trusted signed exactly this event.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn check(&self, event: &Event) -> Result<(), SignError> {
        let unbelieved = |why: String| SignError::Unbelieved { id: event.id.clone(), why };
        let (Some(signer), Some(signature)) = (&event.signer, &event.signature) else {
            return Err(unbelieved("it is not signed".to_owned()));
        };
        if !self.0.contains(signer) {
            return Err(unbelieved(format!("its signer {signer} is not trusted here")));
        }
        let signature =
            BASE64.decode(signature).map_err(|e| unbelieved(format!("its signature is not base64: {e}")))?;
        let key = KeyPair::from_public_key(signer).map_err(|e| unbelieved(e.to_string()))?;
        key.verify(&event.signed_bytes(), &signature).map_err(|_| unbelieved("its signature does not fit".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trimtab_events::{ScanRequest, Scope, Trace, Trigger};

    fn event() -> Event {
        let body =
            ScanRequest { id: uuid::Uuid::nil(), target: "p".into(), scope: Scope::default(), trigger: Trigger::Cli };
        Event::new("1", "/trimtab/test", "p", jiff::Timestamp::UNIX_EPOCH, Trace::default(), body).unwrap()
    }

    #[test]
    fn only_what_a_trusted_key_signed_is_believed() {
        let signer = Signer::ephemeral();
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        assert!(trusted.check(&event()).is_err());
        let mut signed = event();
        signer.sign(&mut signed).unwrap();
        assert_eq!(trusted.check(&signed), Ok(()));
        let back = Event::from_bytes(&signed.to_bytes().unwrap()).unwrap();
        assert_eq!(trusted.check(&back), Ok(()));
        for change in [
            |e: &mut Event| e.action = "x".into(),
            |e: &mut Event| e.subject = "x".into(),
            |e: &mut Event| e.id = "x".into(),
            |e: &mut Event| e.data = serde_json::value::to_raw_value(&1).unwrap().into(),
        ] {
            let mut forged = signed.clone();
            change(&mut forged);
            assert!(trusted.check(&forged).is_err());
        }
        let mut other = event();
        Signer::ephemeral().sign(&mut other).unwrap();
        assert!(trusted.check(&other).is_err());
    }
}
