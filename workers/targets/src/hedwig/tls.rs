//! TLS to hubs. Hubs present certificates that name nothing and have often expired, so a certificate is trusted because it is in a
//! given file, or because an authority in that file signed it for that host; or everything is trusted, as Hedwig's own clients do.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::{Class, Result, TargetError};

/// Which hubs are believed to be hubs.
#[derive(Clone, PartialEq, Eq)]
pub enum Trust {
    /// Those that present a certificate of this PEM text, whatever it says of names and dates, or one that an authority of it signed
    /// for their host.
    Certificates(Vec<u8>),
    /// Whoever answers. Keeps listeners out, not impostors.
    Anything,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Trust::Certificates(_) => "Certificates",
            Trust::Anything => "Anything",
        })
    }
}

/// The side of TLS that connects to hubs.
pub(super) fn config(trust: &Trust) -> Result<ClientConfig> {
    let what = || "preparing TLS to hubs";
    let invalid = |why: String| TargetError::new(Class::Invalid, what(), why);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = match trust {
        Trust::Anything => Verifier { provider: provider.clone(), pinned: None, authorities: None },
        Trust::Certificates(pem) => {
            let pinned: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pem)
                .collect::<std::result::Result<_, _>>()
                .map_err(|e| invalid(format!("the certificates are not PEM: {e}")))?;
            if pinned.is_empty() {
                return Err(invalid("the file of trusted certificates has none; it must hold PEM".to_owned()));
            }
            let mut roots = RootCertStore::empty();
            // One that cannot be an authority can still be the hub's own.
            roots.add_parsable_certificates(pinned.iter().cloned());
            let authorities = match roots.is_empty() {
                true => None,
                false => Some(
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                        .build()
                        .map_err(|e| invalid(format!("the certificates are of no use: {e}")))?,
                ),
            };
            Verifier { provider: provider.clone(), pinned: Some(pinned), authorities }
        }
    };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| TargetError::new(Class::Bug, what(), e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None trusts everything.
    pinned: Option<Vec<CertificateDer<'static>>>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        match (&self.pinned, &self.authorities) {
            (None, _) => Ok(ServerCertVerified::assertion()),
            (Some(pinned), _) if pinned.contains(certificate) => Ok(ServerCertVerified::assertion()),
            (_, Some(authorities)) => authorities.verify_server_cert(certificate, intermediates, name, ocsp, now),
            _ => Err(Error::General("the hub's certificate is none of those that are trusted".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        if self.pinned.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        // With everything trusted a signature proves nothing, and the certificate in Hedwig's own jar is too old to check one with.
        if self.pinned.is_none() {
            return Ok(HandshakeSignatureValid::assertion());
        }
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_certificates_are_refused() {
        for pem in ["", "nonsense", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
            assert!(config(&Trust::Certificates(pem.into())).is_err(), "{pem:?}");
        }
        assert!(config(&Trust::Anything).is_ok());
    }
}
