//! Common Trace Format 1.8 and 2: traces of LTTng (kernel and user space), barectf, `perf data convert --to-ctf` and
//! whatever else writes the format.
//!
//! # What it sees
//! Every event of every stream with all its fields. Events of the kernel's scheduler, interrupts, block and network
//! layers and system calls become the rows that the recorder writes of the same things ([`crate::kernel::rows`]);
//! the others are marks with their fields as attributes.
//!
//! # How
//! A trace is a directory with a file `metadata` and one or more stream files. The metadata are text that
//! begins with `/* CTF 1.8`, or packets of such text (CTF 1.8.3, section 7.1), or in CTF 2 a JSON text
//! sequence, whose records begin with the byte 1e (RFC 7464): [`tsdl`] and [`json`] read them into the same
//! [`ast`], [`build`] resolves what refers to what, and [`decode`] goes by the result. [`stream`] reads packets
//! through a window, without the index that LTTng writes, and [`trace`] merges the streams of all directories that
//! are given by their clocks.
//!
//! # What fools it
//! A session of LTTng has several traces in directories of their own (`kernel`, `ust/uid/1000/64-bit`),
//! and no metadata at the top: all of them are read as one trace. Streams of CTF 2, and of CTF 1.8
//! without packet headers, have no magic number: only their directory is recognised. Hosts are told apart by the
//! `hostname` of the metadata, and times of several hosts are as close as their clocks were.

mod ast;
mod build;
mod decode;
mod import;
mod json;
mod lexer;
mod metadata;
mod stream;
mod trace;
mod tsdl;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod pretty;

use std::path::PathBuf;

use crate::importer::{Candidate, Import, Importer, Options};
use crate::{Error, Result};

/// The importer.
pub(crate) struct Ctf;

/// How metadata begin that are plain text.
const TEXT: &[u8] = b"/* CTF 1.8";
/// How metadata of CTF 2 begin: a record separator and an object.
const CTF2: &[u8] = b"\x1e{";

impl Importer for Ctf {
    fn name(&self) -> &'static str {
        "CTF (LTTng)"
    }

    fn describes(&self) -> &'static str {
        "directories with a file `metadata`, or with such directories below"
    }

    fn recognise(&self, candidate: &Candidate) -> bool {
        if candidate.is_dir {
            let found = trace::find(&candidate.path).unwrap_or_default();
            return found.first().is_some_and(|trace| {
                let metadata = Candidate::read(&trace.join("metadata"));
                metadata.is_ok_and(|metadata| is_metadata(&metadata.head))
            });
        }
        is_metadata(&candidate.head) || begins_with(&candidate.head, stream::PACKET as u32)
    }

    fn open(&self, paths: &[PathBuf], _options: &Options) -> Result<Box<dyn Import>> {
        if let Some(file) = paths.iter().find(|path| path.is_file()) {
            let dir = file.parent().filter(|dir| dir.join("metadata").is_file());
            let what = dir.map_or("its directory".to_owned(), |dir| format!("`{}`", dir.display()));
            let why = format!("it is one file of a CTF trace; give {what}");
            return Err(Error::Unreadable { path: file.clone(), why });
        }
        Ok(Box::new(import::CtfImport::open(paths)?))
    }
}

fn is_metadata(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    text.starts_with(TEXT) || text.starts_with(CTF2) || begins_with(head, metadata::PACKET)
}

/// Whether bytes begin with a magic number, in either byte order.
fn begins_with(head: &[u8], magic: u32) -> bool {
    head.starts_with(&magic.to_le_bytes()) || head.starts_with(&magic.to_be_bytes())
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
    fn a_file_of_a_trace_is_refused_with_the_directory_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("metadata");
        std::fs::write(&file, "/* CTF 1.8 */").unwrap();
        let importer = importers::find(std::slice::from_ref(&file)).unwrap();
        let error = importer.open(&[file], &Options { threads: 1 }).err().unwrap().to_string();
        assert!(error.ends_with(&format!("give `{}`", dir.path().display())), "{error}");
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
