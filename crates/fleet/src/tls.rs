//! Who is at the other end: TLS 1.3 in which both sides show a key.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, ParsedCertificate,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible,
    RootCertStore, ServerConfig, SignatureScheme,
};

use crate::channel::Channel;
use crate::error::{Error, Result};
use crate::keys::{End, Secret, read_private, read_public, secrets};

/// How a correlator and its nodes know each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// By nothing: neither encrypted nor authenticated. `anywhere` allows addresses beyond loopback.
    None {
        /// Whether others may reach it.
        anywhere: bool,
    },
    /// By a secret that all hosts have: the file that [`crate::make_secret`] makes.
    Secret(PathBuf),
    /// By certificates, as PEM files. A node reports under a name of its certificate.
    Certificates {
        /// The authority that signed the other side's certificate.
        ca: PathBuf,
        /// Our certificate, with those between it and the authority.
        cert: PathBuf,
        /// The key of our certificate.
        key: PathBuf,
    },
}

/// Whether only this host reaches an address, given as HOST:PORT.
pub fn is_loopback(address: &str) -> bool {
    let host = host_of(address);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The host of HOST:PORT, without the brackets of an IPv6 address.
pub(crate) fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

/// The correlator's side.
pub(crate) struct ServerTls {
    /// `None`: no TLS.
    pub config: Option<Arc<ServerConfig>>,
    /// Whether nodes have certificates with their names.
    pub named: bool,
}

/// A node's side.
#[derive(Clone)]
pub struct ClientTls {
    /// `None`: no TLS.
    pub(crate) config: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Credentials {
    /// Fails if `address` can be reached by others and these credentials are none.
    ///
    /// # Errors
    /// They are none.
    pub fn check(&self, address: &str) -> Result<()> {
        match self {
            Credentials::None { anywhere: false } if !is_loopback(address) => {
                Err(Error::NoKey { address: address.into() })
            }
            _ => Ok(()),
        }
    }

    /// Whether nothing protects the connection.
    pub fn is_none(&self) -> bool {
        matches!(self, Credentials::None { .. })
    }

    /// The correlator's side.
    pub(crate) fn server(&self) -> Result<ServerTls> {
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3"))?;
        let (mut config, named) = match self {
            Credentials::None { .. } => return Ok(ServerTls { config: None, named: false }),
            Credentials::Secret(path) => {
                let secrets = secrets(path)?;
                let peers = PinnedKeys::of(&secrets, End::Node, &provider)?;
                let own = raw_key(&secrets[0], End::Correlator, &provider)?;
                let config = builder
                    .with_client_cert_verifier(Arc::new(peers))
                    .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
                (config, false)
            }
            Credentials::Certificates { ca, cert, key } => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .build()
                    .map_err(failed(ca.display()))?;
                let (chain, key) = chain_and_key(cert, key)?;
                let config = builder
                    .with_client_cert_verifier(verifier)
                    .with_single_cert(chain, key)
                    .map_err(failed(cert.display()))?;
                (config, true)
            }
        };
        // Connections last for days: nothing of a session is kept to be taken up again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerTls { config: Some(Arc::new(config)), named })
    }

    /// A node's side of a connection to `address`, given as HOST:PORT.
    ///
    /// # Errors
    /// A file cannot be read, or TLS does not take its keys.
    pub fn client(&self, address: &str) -> Result<ClientTls> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(failed("TLS 1.3"))?;
        let host = ServerName::try_from(host_of(address).to_owned());
        let (mut config, host) = match self {
            Credentials::None { .. } => return Ok(ClientTls { config: None }),
            Credentials::Secret(path) => {
                let secrets = secrets(path)?;
                let peers = PinnedKeys::of(&secrets, End::Correlator, &provider)?;
                let own = raw_key(&secrets[0], End::Node, &provider)?;
                let config = builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(peers))
                    .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                        own,
                    )));
                // Its key says who it is; its name does not matter.
                (config, host.unwrap_or_else(|_| IpAddr::from([127, 0, 0, 1]).into()))
            }
            Credentials::Certificates { ca, cert, key } => {
                let (chain, key) = chain_and_key(cert, key)?;
                let config = builder
                    .with_root_certificates(roots(ca)?)
                    .with_client_auth_cert(chain, key)
                    .map_err(failed(cert.display()))?;
                (config, host.map_err(failed(address))?)
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(ClientTls { config: Some((Arc::new(config), host)) })
    }
}

impl ClientTls {
    /// Begins to connect to `address`; [`Channel::register`] and [`Channel::ready`] go on from there.
    ///
    /// # Errors
    /// The operating system refuses, or TLS does.
    pub fn connect(&self, address: std::net::SocketAddr) -> std::io::Result<Channel> {
        let stream = mio::net::TcpStream::connect(address)?;
        Channel::connecting(stream, self.config.clone()).map_err(std::io::Error::other)
    }
}

/// Whether a node whose certificate this is may call itself `name`.
pub(crate) fn certifies(certificate: &CertificateDer<'_>, name: &str) -> bool {
    ParsedCertificate::try_from(certificate).is_ok_and(|parsed| {
        ServerName::try_from(name).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok())
    })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn failed<E: std::error::Error + Send + Sync + 'static>(
    what: impl std::fmt::Display,
) -> impl FnOnce(E) -> Error {
    let what = what.to_string();
    move |source| Error::Tls { what, source: Box::new(source) }
}

fn raw_key(secret: &Secret, end: End, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>> {
    let key = PrivateKeyDer::Pkcs8(secret.key_of(end));
    let key = provider.key_provider.load_private_key(key).map_err(failed("the secret's key"))?;
    let public = key.public_key().map(|spki| CertificateDer::from(spki.to_vec()));
    Ok(Arc::new(CertifiedKey::new(public.into_iter().collect(), key)))
}

fn roots(ca: &std::path::Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(failed(ca.display()))?;
    }
    Ok(roots)
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read_public(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(|| Error::Content {
        path: path.into(),
        problem: "holds no certificates in PEM".into(),
    })
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn chain_and_key(cert: &std::path::Path, key: &std::path::Path) -> Result<ChainAndKey> {
    let chain = certificates(cert)?;
    let key_der = PrivateKeyDer::from_pem_slice(&read_private(key)?).map_err(|_| {
        Error::Content { path: key.into(), problem: "holds no private key in PEM".into() }
    })?;
    Ok((chain, key_der))
}

/// Accepts the keys that the secrets of a fleet give the other end, and no others.
#[derive(Debug)]
struct PinnedKeys {
    keys: Vec<Vec<u8>>,
    provider: Arc<CryptoProvider>,
}

impl PinnedKeys {
    fn of(secrets: &[Secret], end: End, provider: &Arc<CryptoProvider>) -> Result<PinnedKeys> {
        let mut keys = Vec::new();
        for secret in secrets {
            keys.extend(raw_key(secret, end, provider)?.cert.iter().map(|der| der.to_vec()));
        }
        Ok(PinnedKeys { keys, provider: provider.clone() })
    }

    fn check(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        // Public keys are no secrets: comparing them may take as long as it takes.
        if self.keys.iter().any(|known| known[..] == key[..]) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }
}

/// What both ends ask of a signature; rustls has a trait for each end, with the same functions.
macro_rules! signatures_by_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for PinnedKeys {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signatures_by_raw_keys!();
}

impl ClientCertVerifier for PinnedKeys {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signatures_by_raw_keys!();
}
