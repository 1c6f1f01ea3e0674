//! Compressed parts of a file.

use std::io::Read as _;

/// How a file of version 7 is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Zlib,
    Zstd,
}

impl Packing {
    /// The bytes that were packed, which are `size`.
    ///
    /// # Errors
    /// They are damaged, or more or fewer.
    pub fn unpack(self, packed: &[u8], size: usize) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        // One more, to see that there are no more.
        let most = size as u64 + 1;
        let read = match self {
            Packing::None => packed.take(most).read_to_end(&mut bytes),
            Packing::Zlib => {
                flate2::bufread::ZlibDecoder::new(packed).take(most).read_to_end(&mut bytes)
            }
            Packing::Zstd => zstd::stream::read::Decoder::with_buffer(packed)
                .and_then(|decoder| decoder.take(most).read_to_end(&mut bytes)),
        };
        read.map_err(|e| format!("{} bytes that cannot be decompressed: {e}", packed.len()))?;
        if bytes.len() != size {
            return Err(format!("a part that should decompress to {size} bytes does not"));
        }
        Ok(bytes)
    }
}
