//! Common Trace Format traces of LTTng, barectf and `perf data convert`, as babeltrace2 reads them:
//! recognised, but not imported yet.
//!
//! # What it sees
//! Nothing so far: [`Importer::open`] refuses a trace with what to do instead.
//!
//! # How
//! A trace is a directory with a file `metadata` and one or more stream files. The metadata are text that
//! begins with `/* CTF 1.8`, or packets of such text (CTF 1.8.3, section 7.1), or in CTF 2 a JSON text
//! sequence, whose records begin with the byte 1e (RFC 7464). A stream consists of packets that begin with
//! a magic number, in the byte order of the machine that recorded them (CTF 1.8.3, section 5.1).
//!
//! # What fools it
//! A session of LTTng has several traces in directories of their own (`kernel`, `ust/uid/1000/64-bit`),
//! and no metadata at the top: each of these directories is a trace. Streams of CTF 2, and of CTF 1.8
//! without packet headers, have no magic number: only their directory is recognised.

mod ast;
mod build;
mod decode;
mod json;
mod lexer;
mod metadata;
#[cfg(test)]
mod pretty;
mod stream;
mod trace;
mod tsdl;

#[cfg(test)]
mod oracle_tests;

use std::path::PathBuf;

use crate::importer::{Candidate, GpuWork, Import, Importer, Options};
use crate::{Error, Result};

/// The importer.
pub(crate) struct Ctf;

/// How metadata begin that are plain text.
const TEXT: &[u8] = b"/* CTF 1.8";
/// The magic number of packets of metadata.
const METADATA_PACKET: u32 = 0x75d1_1d57;
/// The magic number of packets of events.
const EVENT_PACKET: u32 = 0xc1fc_1fc1;
/// How metadata of CTF 2 begin: a record separator and an object.
const CTF2: &[u8] = b"\x1e{";

impl Importer for Ctf {
    fn name(&self) -> &'static str {
        "CTF (LTTng)"
    }

    fn describes(&self) -> &'static str {
        "directories with a file `metadata`; recognised, but not imported yet"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        if candidate.is_dir {
            let metadata = Candidate::read(&candidate.path.join("metadata"));
            return metadata.is_ok_and(|metadata| is_metadata(&metadata.head));
        }
        is_metadata(&candidate.head) || begins_with(&candidate.head, EVENT_PACKET)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        Err(not_yet(paths))
    }

    fn open_work(&self, paths: &[PathBuf]) -> Result<Option<Vec<Box<dyn GpuWork>>>> {
        Err(not_yet(paths))
    }
}

fn is_metadata(head: &[u8]) -> bool {
    head.starts_with(TEXT) || head.starts_with(CTF2) || begins_with(head, METADATA_PACKET)
}

/// Whether bytes begin with a magic number, in either byte order.
fn begins_with(head: &[u8], magic: u32) -> bool {
    head.starts_with(&magic.to_le_bytes()) || head.starts_with(&magic.to_be_bytes())
}

fn not_yet(paths: &[PathBuf]) -> Error {
    let Some(path) = paths.first() else { return Error::NoFiles };
    let why = format!(
        "CTF (LTTng) is recognised, but not imported yet; `babeltrace2 {}` prints its events, and \
         `gpuwhy record` records scheduling, interrupts and I/O of the next run itself",
        path.display()
    );
    Error::Unreadable { path: path.clone(), why }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::importers;

    /// The name of the importer that recognises a file or directory.
    fn importer(path: &Path) -> Option<&'static str> {
        importers::recognise(path).unwrap().map(Importer::name)
    }

    /// The importer of a directory with these metadata, and of the metadata alone.
    fn of_metadata(metadata: &[u8]) -> [Option<&'static str>; 2] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("metadata");
        std::fs::write(&file, metadata).unwrap();
        [importer(dir.path()), importer(&file)]
    }

    #[test]
    fn a_trace_is_recognised_by_its_metadata() {
        let ctf = [Some("CTF (LTTng)"); 2];
        assert_eq!(of_metadata(b"/* CTF 1.8 */\ntrace { major = 1; };"), ctf);
        // Packets of a little-endian and of a big-endian machine.
        assert_eq!(of_metadata(b"\x57\x1d\xd1\x75 and its UUID"), ctf);
        assert_eq!(of_metadata(b"\x75\xd1\x1d\x57 and its UUID"), ctf);
        assert_eq!(of_metadata(b"\x1e{\"type\": \"preamble\", \"version\": 2}"), ctf);
        // Other files may have this name, too.
        assert_eq!(of_metadata(b"name: x\n"), [None; 2]);
        assert_eq!(of_metadata(b""), [None; 2]);
    }

    #[test]
    fn a_stream_is_recognised_by_its_packets() {
        let dir = tempfile::tempdir().unwrap();
        let stream = dir.path().join("channel0_0");
        for (bytes, expected) in [
            (b"\xc1\x1f\xfc\xc1 and more", Some("CTF (LTTng)")),
            (b"\xc1\xfc\x1f\xc1 and more", Some("CTF (LTTng)")),
            (b"\xc1\xfc\xc1\x1f and more", None),
        ] {
            std::fs::write(&stream, bytes).unwrap();
            assert_eq!(importer(&stream), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn a_trace_is_refused_with_what_to_do_instead() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("metadata"), "/* CTF 1.8 */").unwrap();
        let paths = [dir.path().to_path_buf()];
        let importer = importers::find(&paths).unwrap();
        let error = importer.open(&paths, &Options { threads: 1 }).err().unwrap().to_string();
        assert!(error.contains("CTF (LTTng) is recognised, but not imported yet; "), "{error}");
        assert!(error.contains(&format!("`babeltrace2 {}`", dir.path().display())), "{error}");
        let of_work = importers::open_work(&paths).err().unwrap().to_string();
        assert_eq!(of_work, error);
    }

    #[test]
    fn real_traces_of_many_recorders_are_recognised() {
        let Some(data) = crate::shared_data() else { return };
        for trace in [
            "CTF2-7.0-smalltrace",
            "CTF2-vl-ints",
            "context-switches/context-switches-ust",
            "cyg-profile/glxgears-cyg-profile",
            "flipping-endianness",
            "funky_trace",
            "many-threads",
            "perf-taskset2",
            "synctraces/scp_dest",
        ] {
            let trace = data.join("kernel/ctf").join(trace);
            assert_eq!(importer(&trace), Some("CTF (LTTng)"), "{}", trace.display());
        }
        let stream = data.join("kernel/ctf/synctraces/scp_dest/channel0_0");
        assert_eq!(importer(&stream), Some("CTF (LTTng)"));
    }
}
