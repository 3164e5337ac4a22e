//! An authority for one plan, and a certificate of it for every identity.
//!
//! Keys are ECDSA on P-256, made anew for every plan. The authority's own key is dropped when the
//! certificates are signed: nobody can add to them. They are for test networks: the dates are fixed,
//! so that no machine's clock is in the way, and nothing is ever revoked.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use thiserror::Error;

/// The first and the last year of all certificates; from 2050 on dates have another form (RFC 5280
/// §4.1.2.5).
const YEARS: (i32, i32) = (2020, 2049);

/// The library refused. What it is given is the plan's, so this is not the user's doing.
#[derive(Debug, Error)]
#[error("making the certificate of {identity}: {source}")]
pub struct CertificateError {
    /// Whose.
    pub identity: String,
    /// Why.
    pub source: rcgen::Error,
}

/// An authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub certificate: String,
}

/// What proves an identity.
pub struct Proof {
    /// The certificate, as PEM.
    pub certificate: String,
    /// Its key, as PEM (PKCS #8). Secret.
    pub key: String,
}

impl Authority {
    /// A new one.
    pub fn new() -> Result<Authority, CertificateError> {
        const NAME: &str = "peregrine lab";
        let failed = |source| CertificateError { identity: NAME.to_owned(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(NAME, Vec::new()).map_err(failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate })
    }

    /// A key and a certificate for an identity, which strongSwan looks for among the alternative
    /// names.
    pub fn prove(&self, identity: &str) -> Result<Proof, CertificateError> {
        let failed = |source| CertificateError { identity: identity.to_owned(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = params(identity, vec![identity.to_owned()]).map_err(failed)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        Ok(Proof { certificate, key: key.serialize_pem() })
    }
}

fn params(name: &str, alternatives: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(alternatives)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(YEARS.0, 1, 1);
    params.not_after = date_time_ymd(YEARS.1, 12, 31);
    Ok(params)
}
