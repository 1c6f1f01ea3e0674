//! Certificates for a fleet whose site has no authority of its own.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::error::{Error, Result};
use crate::keys::{read_private, write_new};
use crate::protocol::is_name;

/// Years for which the authority is valid, and for which what it signs is.
const YEARS: (i32, i32) = (10, 3);

/// Makes a certificate and key for the correlator at each host name or address of `correlators`, and for each
/// node of `nodes`, signed by the authority in `dir`, which is made if there is none. Returns what was made.
///
/// # Errors
/// A name is none, a file exists already, or one cannot be written.
pub fn make_certificates(
    dir: &Path,
    correlators: &[String],
    nodes: &[String],
) -> Result<Vec<PathBuf>> {
    for name in correlators.iter().chain(nodes) {
        if !is_name(name) && name.parse::<std::net::IpAddr>().is_err() {
            return Err(Error::Name { name: name.clone() });
        }
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| Error::File { action: "make", path: dir.into(), source })?;
    let mut made = Vec::new();
    let issuer = authority(dir, &mut made)?;
    if !correlators.is_empty() {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        sign(dir, "correlator", correlators, usage, &issuer, &mut made)?;
    }
    for node in nodes {
        let usage = ExtendedKeyUsagePurpose::ClientAuth;
        sign(dir, node, std::slice::from_ref(node), usage, &issuer, &mut made)?;
    }
    Ok(made)
}

/// The authority in `dir`.
fn authority(dir: &Path, made: &mut Vec<PathBuf>) -> Result<Issuer<'static, KeyPair>> {
    let cannot = |source| Error::Certificate { name: "the authority".into(), source };
    let mut params = CertificateParams::default();
    params.distinguished_name = called("gpuwhy fleet authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, YEARS.0);
    let (cert, key) = (dir.join("ca.pem"), dir.join("ca-key.pem"));
    if key.exists() {
        let problem = |_| Error::Content { path: key.clone(), problem: "is no PEM file".into() };
        let pem = String::from_utf8(read_private(&key)?).map_err(problem)?;
        let pair = KeyPair::from_pem(&pem).map_err(cannot)?;
        // What it signs names it by its subject and its key, which are the same each time.
        return Ok(Issuer::new(params, pair));
    }
    let pair = KeyPair::generate().map_err(cannot)?;
    write_new(&key, &pair.serialize_pem(), true)?;
    write_new(&cert, &params.self_signed(&pair).map_err(cannot)?.pem(), false)?;
    made.extend([cert, key]);
    Ok(Issuer::new(params, pair))
}

fn sign(
    dir: &Path,
    name: &str,
    hosts: &[String],
    usage: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    let cannot = |source| Error::Certificate { name: name.into(), source };
    let mut params = CertificateParams::new(hosts).map_err(cannot)?;
    params.distinguished_name = called(name);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    set_validity(&mut params, YEARS.1);
    let pair = KeyPair::generate().map_err(cannot)?;
    let certificate = params.signed_by(&pair, issuer).map_err(cannot)?;
    let (cert, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}-key.pem")));
    write_new(&key, &pair.serialize_pem(), true)?;
    write_new(&cert, &certificate.pem(), false)?;
    made.extend([cert, key]);
    Ok(())
}

fn called(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// The year now, by the clock of this host.
fn year() -> i32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    1970 + (since.as_secs() / 31_556_952) as i32
}

/// Sets that a certificate is valid for so many years, from a year ago on: the clocks of hosts are wrong.
fn set_validity(params: &mut CertificateParams, years: i32) {
    params.not_before = rcgen::date_time_ymd(year() - 1, 1, 1);
    params.not_after = rcgen::date_time_ymd(year() + years, 1, 1);
}
