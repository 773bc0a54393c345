//! Certificates, keys and kubeconfigs of the cluster, all made on the fly and kept in its state folder.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde_json::json;

use crate::layout::{self, Layout};

/// The certificate authority of one cluster.
pub struct Authority {
    layout: Layout,
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, on disk and in memory.
pub struct Identity {
    /// PEM file of the certificate.
    pub certificate_file: PathBuf,
    /// PEM file of the key.
    pub key_file: PathBuf,
    certificate: String,
    key: String,
}

impl Authority {
    /// The authority of a cluster that runs.
    pub fn open(layout: Layout) -> Result<Self> {
        let read = |name: &str| {
            let file = layout.pki().join(name);
            fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
        };
        let key = KeyPair::from_pem(&read("ca.key")?)?;
        Ok(Self { layout, certificate: read("ca.crt")?, issuer: Issuer::new(Self::params(), key) })
    }

    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("fairlead-cluster", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
        params
    }

    /// Makes the authority of a new cluster.
    pub fn new(layout: Layout) -> Result<Self> {
        let (folder, params) = (layout.pki(), Self::params());
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        write_private(&folder.join("ca.crt"), &certificate)?;
        write_private(&folder.join("ca.key"), &key.serialize_pem())?;
        Ok(Self { layout, certificate, issuer: Issuer::new(params, key) })
    }

    /// PEM file of the authority's certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.layout.pki().join("ca.crt")
    }

    /// PEM file of the authority's key.
    pub fn key_file(&self) -> PathBuf {
        self.layout.pki().join("ca.key")
    }

    /// A certificate for a server that is reached by these names and addresses.
    pub fn server(&self, file: &str, names: &[&str]) -> Result<Identity> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = subject(file, None);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(file, params)
    }

    /// A certificate for a client; `group` is what RBAC sees as its group.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(user, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(file, params)
    }

    fn issue(&self, file: &str, mut params: CertificateParams) -> Result<Identity> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a certificate")?.pem();
        let identity = Identity {
            certificate_file: self.layout.pki().join(format!("{file}.crt")),
            key_file: self.layout.pki().join(format!("{file}.key")),
            certificate,
            key: key.serialize_pem(),
        };
        write_private(&identity.certificate_file, &identity.certificate)?;
        write_private(&identity.key_file, &identity.key)?;
        Ok(identity)
    }

    /// A key pair that signs service account tokens: the files of the private and the public part.
    pub fn service_account_key(&self) -> Result<(PathBuf, PathBuf)> {
        let key = KeyPair::generate()?;
        let (private, public) = (self.layout.pki().join("sa.key"), self.layout.pki().join("sa.pub"));
        write_private(&private, &key.serialize_pem())?;
        write_private(&public, &key.public_key_pem())?;
        Ok((private, public))
    }

    /// Writes a kubeconfig that needs no other file.
    pub fn kubeconfig(&self, file: &Path, identity: &Identity) -> Result<()> {
        let server = format!("https://{}:{}", self.layout.api_address(), layout::API_PORT);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "fairlead", "cluster": {
                "server": server,
                "certificate-authority-data": base64(self.certificate.as_bytes()),
            }}],
            "users": [{ "name": "user", "user": {
                "client-certificate-data": base64(identity.certificate.as_bytes()),
                "client-key-data": base64(identity.key.as_bytes()),
            }}],
            "contexts": [{ "name": "fairlead", "context": { "cluster": "fairlead", "user": "user" }}],
            "current-context": "fairlead",
        });
        write_private(file, &serde_json::to_string_pretty(&config)?)
    }
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject
}

/// Writes a file that only root can read.
pub fn write_private(file: &Path, text: &str) -> Result<()> {
    let written = (|| {
        let mut out =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(file)?;
        out.write_all(text.as_bytes())
    })();
    written.with_context(|| format!("writing {}", file.display()))
}

/// RFC 4648 section 4, the only place that needs it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| (group << 8) | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for position in 0..4 {
            let index = (group >> (18 - 6 * position)) & 63;
            let filled = position <= chunk.len();
            text.push(if filled { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
