//! The certificate authority of one cluster.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, Error,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate and its private key, both PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Signs the API server's certificate and those of its clients.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("stowage test authority", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        CertifiedIssuer::self_signed(params, KeyPair::generate()?).map(Self)
    }

    /// Its own certificate, PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// For a server on this machine.
    pub(crate) fn server(&self) -> Result<Identity, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("kube-apiserver", None);
        params.subject_alt_names = vec![
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            SanType::DnsName("localhost".try_into()?),
            SanType::DnsName("kubernetes.default.svc".try_into()?),
        ];
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client: Kubernetes takes the common name as user, the organization as group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(user, group);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Identity, Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        Ok(Identity { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

fn name(common: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}
