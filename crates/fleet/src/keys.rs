//! Files with keys, and the secret of a fleet.
//!
//! A secret is 32 random bytes. From each, HKDF makes two Ed25519 keys: the correlator's and the nodes'. TLS
//! then runs with raw public keys (RFC 7250), and each side accepts exactly the other's key. Whoever has the
//! file can be the correlator or any node; sites that need more use certificates.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use ring::hkdf;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::pki_types::PrivatePkcs8KeyDer;

use crate::error::{Error, Result};

/// What a line of a secret begins with.
const WORD: &str = "gpuwhy-fleet-key-1";
/// The first lines of the file.
const HEADER: &str = "\
# The secret of a fleet of gpuwhy: whoever has it can be the correlator or any node.
# The first key is used, the others are accepted too, so that a key can be replaced without a gap:
# add the new one below on every host, then move it to the top on every host, then remove the old one.
";
/// The largest file with keys that is read.
const MOST: u64 = 256 << 10;
/// Keys in one file.
const KEYS: usize = 8;

/// Reads a file that holds a key, and that nobody but its owner may read.
///
/// # Errors
/// It cannot be read, others may read it, or it belongs to somebody else.
pub(crate) fn read_private(path: &Path) -> Result<Vec<u8>> {
    let cannot = |source| Error::File { action: "read", path: path.into(), source };
    // A pipe that nobody writes must not stop us.
    let file = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path).map_err(cannot)?;
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(Error::Content { path: path.into(), problem: "is not a file".into() });
    }
    if meta.mode() & 0o077 != 0 {
        return Err(Error::Readable { path: path.into(), mode: meta.mode() & 0o777 });
    }
    let us = rustix::process::geteuid().as_raw();
    if us != meta.uid() && meta.uid() != 0 {
        return Err(Error::Owner { path: path.into(), owner: meta.uid() });
    }
    read_bounded(file, path)
}

const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// Reads a file of reasonable size.
///
/// # Errors
/// It cannot be read, or is too large.
pub(crate) fn read_public(path: &Path) -> Result<Vec<u8>> {
    let cannot = |source| Error::File { action: "read", path: path.into(), source };
    read_bounded(File::open(path).map_err(cannot)?, path)
}

fn read_bounded(file: File, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(|source| Error::File {
        action: "read",
        path: path.into(),
        source,
    })?;
    if bytes.len() as u64 > MOST {
        return Err(Error::Content { path: path.into(), problem: "is too large for keys".into() });
    }
    Ok(bytes)
}

/// Writes a new file that only its owner can read (`private`) or everybody.
///
/// # Errors
/// There is one already, or it cannot be written.
pub(crate) fn write_new(path: &Path, text: &str, private: bool) -> Result<()> {
    let cannot = |source| Error::File { action: "make", path: path.into(), source };
    let mode = if private { 0o600 } else { 0o644 };
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(cannot)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(cannot)
}

/// Bytes that nobody can guess.
///
/// # Errors
/// The operating system gives none.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn new_key() -> Result<String> {
    let secret: [u8; 32] = random()?;
    Ok(format!("{WORD} {}\n", BASE64.encode(secret)))
}

/// Makes the secret of a new fleet.
///
/// # Errors
/// There is a file already, or it cannot be written.
pub fn make_secret(path: &Path) -> Result<()> {
    write_new(path, &format!("{HEADER}{}", new_key()?), true)
}

/// Adds a new key at the end of a secret, where it is accepted and not used yet.
///
/// # Errors
/// The file is no secret, holds too many keys, or cannot be written.
pub fn add_secret(path: &Path) -> Result<()> {
    let keys = secrets(path)?.len();
    if keys >= KEYS {
        let problem = format!("holds {keys} keys; remove the oldest");
        return Err(Error::Content { path: path.into(), problem });
    }
    let cannot = |source| Error::File { action: "write", path: path.into(), source };
    let mut file = OpenOptions::new().append(true).open(path).map_err(cannot)?;
    file.write_all(new_key()?.as_bytes()).map_err(cannot)
}

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Correlator,
    Node,
}

/// One key of a secret.
pub(crate) struct Secret(hkdf::Prk);

impl Secret {
    fn new(bytes: &[u8]) -> Secret {
        Secret(hkdf::Salt::new(hkdf::HKDF_SHA256, b"gpuwhy fleet 1").extract(bytes))
    }

    /// The Ed25519 key of one end, as PKCS #8.
    pub fn key_of(&self, end: End) -> PrivatePkcs8KeyDer<'static> {
        let role: &[u8] = match end {
            End::Correlator => b"correlator",
            End::Node => b"node",
        };
        let mut seed = [0; 32];
        // Fails only if more were asked for than the hash can give.
        let filled = self.0.expand(&[role], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut seed));
        assert!(filled.is_ok(), "32 bytes of HKDF-SHA256");
        // RFC 8410, section 7: version 0, id-Ed25519, and the seed.
        let mut pkcs8 =
            Vec::from(*b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20");
        pkcs8.extend_from_slice(&seed);
        pkcs8.into()
    }
}

/// The keys in a file, the one to be used first.
pub(crate) fn secrets(path: &Path) -> Result<Vec<Secret>> {
    let content = |problem: String| Error::Content { path: path.into(), problem };
    let text = String::from_utf8(read_private(path)?)
        .map_err(|_| content("is no secret of a fleet".into()))?;
    let mut secrets = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bytes = line
            .strip_prefix(WORD)
            .and_then(|rest| BASE64.decode(rest.trim()).ok())
            .filter(|bytes| bytes.len() == 32)
            .ok_or_else(|| content(format!("has no key of a fleet in line {}", n + 1)))?;
        secrets.push(Secret::new(&bytes));
    }
    if secrets.is_empty() || secrets.len() > KEYS {
        return Err(content(format!("holds {} keys; 1 to {KEYS} are possible", secrets.len())));
    }
    Ok(secrets)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_for_its_owner_only_and_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.key");
        make_secret(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(secrets(&path).unwrap().len(), 1);
        assert!(make_secret(&path).is_err(), "a second one would replace the first");
        add_secret(&path).unwrap();
        let keys = secrets(&path).unwrap();
        let of = |n: usize, end| keys[n].key_of(end).secret_pkcs8_der().to_vec();
        assert_eq!(of(0, End::Node), of(0, End::Node));
        assert_ne!(of(0, End::Node), of(0, End::Correlator));
        assert_ne!(of(0, End::Node), of(1, End::Node));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fleet.key");
        make_secret(&path).unwrap();
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = secrets(&path).err().expect("refused").to_string();
            assert!(error.contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_secret_is_refused_with_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for (text, problem) in [
            ("", "0 keys"),
            ("# nothing\n", "0 keys"),
            ("# c\n\ngpuwhy-fleet-key-1 AAAA\n", "line 3"),
            ("-----BEGIN PRIVATE KEY-----\n", "line 1"),
        ] {
            let _ = std::fs::remove_file(&path);
            write_new(&path, text, true).unwrap();
            let error = secrets(&path).err().expect("refused").to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
