//! TLS to brokers, trusting what the admin API's client trusts: the system's authorities and those that are configured.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls_platform_verifier::Verifier;

/// PEM texts for TLS to brokers.
#[derive(Clone, Default)]
pub struct TlsOptions {
    /// Certificate authorities besides the system's.
    pub ca_pem: Option<Vec<u8>>,
    /// Client certificate and key.
    pub identity_pem: Option<Vec<u8>>,
}

impl std::fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsOptions")
            .field("ca", &self.ca_pem.is_some())
            .field("identity", &self.identity_pem.is_some())
            .finish()
    }
}

impl TlsOptions {
    /// The configuration of a client.
    ///
    /// # Errors
    /// Which of the texts is not valid, and why.
    pub fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = certificates(self.ca_pem.as_deref(), "the certificate authorities of the brokers")?;
        let verifier = Verifier::new_with_extra_roots(authorities, provider.clone())
            .map_err(|e| format!("the certificate authorities of the brokers: {e}"))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match &self.identity_pem {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let what = "the client certificate for brokers";
                let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| format!("{what}: its key: {e}"))?;
                builder
                    .with_client_auth_cert(certificates(Some(pem), what)?, key)
                    .map_err(|e| format!("{what}: {e}"))?
            }
        };
        Ok(Arc::new(config))
    }
}

fn certificates(pem: Option<&[u8]>, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(pem) = pem else { return Ok(Vec::new()) };
    let all: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| format!("{what}: {e}"))?;
    match all.is_empty() {
        true => Err(format!("{what}: no certificate in PEM format is in it")),
        false => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_not_certificates_are_said_to_be_so() {
        assert!(TlsOptions::default().client().is_ok());
        for ca in [&b""[..], b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            let options = TlsOptions { ca_pem: Some(ca.to_vec()), identity_pem: None };
            assert!(options.client().unwrap_err().contains("authorities"));
        }
        let options = TlsOptions { ca_pem: None, identity_pem: Some(b"-----BEGIN".to_vec()) };
        assert!(options.client().unwrap_err().contains("client certificate"));
    }
}
