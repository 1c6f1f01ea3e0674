//! Arrow streams: one message after the other, each with its length before it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use arrow_ipc::{MessageHeader, root_as_message};

use crate::{Result, Unsound, guarded};

/// What begins a message (Arrow columnar format, IPC streaming format).
const CONTINUATION: [u8; 4] = [0xff; 4];
const MAX_METADATA: u64 = 64 << 20;

/// Where the messages of an Arrow stream lie, in bytes of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The schema.
    pub schema: Range<u64>,
    /// The dictionaries, in the order of the file.
    pub dictionaries: Vec<Range<u64>>,
    /// The record batches, in the order of the file.
    pub batches: Vec<Range<u64>>,
}

/// Whether the messages of an Arrow IPC stream lie within the file, and where. Each is as long as it
/// says, and a batch has no more rows than its bytes have bits.
///
/// # Errors
/// It is no such stream, or is cut off.
pub fn check_stream(file: &File) -> Result<Stream> {
    let length = file.metadata().map_err(Unsound::io("measure"))?.len();
    let mut stream = Stream::default();
    let mut at = 0;
    let mut metadata = Vec::new();
    while at < length {
        let bad = |what: &str| Unsound::Damaged(format!("byte {at}: {what}"));
        let word = |at: u64| {
            let mut word = [0; 4];
            match at.checked_add(4).filter(|end| *end <= length) {
                None => Err(bad("a message is cut off")),
                Some(_) => {
                    file.read_exact_at(&mut word, at).map_err(Unsound::io("read"))?;
                    Ok(word)
                }
            }
        };
        // Before version 0.15 of the format, the length came first.
        let (size, from) = match word(at)? {
            CONTINUATION => (word(at + 4)?, at + 8),
            size => (size, at + 4),
        };
        let size = u64::from(u32::from_le_bytes(size));
        if size == 0 {
            // The end of the stream.
            return match from == length {
                true if at > 0 => Ok(stream),
                true => Err(bad("it is empty")),
                false => Err(bad(&format!("{} bytes follow its end", length - from))),
            };
        }
        if size > MAX_METADATA || size > length - from {
            return Err(bad(&format!(
                "a message says that its head has {size} bytes, of {length}"
            )));
        }
        metadata.resize(size as usize, 0);
        file.read_exact_at(&mut metadata, from).map_err(Unsound::io("read"))?;
        let (kind, body, rows) = guarded(|| {
            let message = root_as_message(&metadata).map_err(|e| e.to_string())?;
            let rows = message.header_as_record_batch().map_or(0, |batch| batch.length());
            Ok((message.header_type(), message.bodyLength(), rows))
        })
        .and_then(|inner| inner)
        .map_err(|what: String| bad(&what))?;
        let end = u64::try_from(body).ok().and_then(|body| (from + size).checked_add(body));
        let Some(end) = end.filter(|end| *end <= length) else {
            return Err(bad(&format!("a message says that it has {body} bytes, of {length}")));
        };
        if rows < 0 || rows > body.saturating_mul(8) {
            return Err(bad(&format!("{rows} rows in {body} bytes are absurd")));
        }
        match kind {
            MessageHeader::Schema if at == 0 => stream.schema = at..end,
            MessageHeader::DictionaryBatch if at > 0 => stream.dictionaries.push(at..end),
            MessageHeader::RecordBatch if at > 0 => stream.batches.push(at..end),
            other => return Err(bad(&format!("a message of kind {other:?} has no place here"))),
        }
        at = end;
    }
    if at == 0 {
        return Err(Unsound::Damaged("it is empty".into()));
    }
    // A stream may end without saying so.
    Ok(stream)
}
