//! Arrow files: the footer names blocks, and the reader reserves what it says of them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use arrow_ipc::{Block, root_as_footer};

use crate::{Result, Unsound, guarded};

const MAGIC: &[u8; 6] = b"ARROW1";
const MAX_FOOTER: u64 = 64 << 20;

/// Whether each block that an Arrow IPC file names lies within the file.
///
/// # Errors
/// It is no such file, or one does not.
pub fn check_blocks(file: &File) -> Result<()> {
    let damaged = |what: String| Err(Unsound::Damaged(what));
    let length = file.metadata().map_err(Unsound::io("measure"))?.len();
    let Some(end) = length.checked_sub(10).filter(|end| *end >= 8) else {
        return damaged(format!("its footer: {length} bytes are no Arrow file"));
    };
    let mut tail = [0; 10];
    file.read_exact_at(&mut tail, end).map_err(Unsound::io("read the footer of"))?;
    let [a, b, c, d, magic @ ..] = tail;
    if &magic != MAGIC {
        return damaged("its footer: it does not end as Arrow files do".into());
    }
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if footer > end || footer > MAX_FOOTER {
        return damaged(format!("its footer says that it has {footer} bytes, of {length}"));
    }
    let mut bytes = vec![0; footer as usize];
    file.read_exact_at(&mut bytes, end - footer).map_err(Unsound::io("read the footer of"))?;
    let blocks = guarded(|| {
        let footer = root_as_footer(&bytes).map_err(|e| e.to_string())?;
        let mut all: Vec<Block> = Vec::new();
        // Two vectors of the same type, which has no name here.
        for blocks in [footer.dictionaries(), footer.recordBatches()].into_iter().flatten() {
            all.extend(blocks.iter().copied());
        }
        Ok::<_, String>(all)
    });
    let blocks = match blocks {
        Ok(Ok(blocks)) => blocks,
        Ok(Err(what)) | Err(what) => return damaged(format!("its footer: {what}")),
    };
    for (number, block) in blocks.iter().enumerate() {
        let inside = || {
            let from = u64::try_from(block.offset()).ok()?;
            let metadata = u64::try_from(block.metaDataLength()).ok()?;
            let body = u64::try_from(block.bodyLength()).ok()?;
            from.checked_add(metadata)?.checked_add(body).filter(|to| *to <= length)
        };
        if inside().is_none() {
            return damaged(format!("block {number}: it lies behind the file"));
        }
    }
    Ok(())
}
