//! What tests import.

use std::path::Path;

use gpuwhy_schema::Rows;

use crate::importer::{Options, Summary};
use crate::{Result, importers};

/// All rows of a file, by the importer that recognises it.
pub(crate) fn import(path: &Path) -> Result<(Rows, Summary)> {
    let paths = [path.to_path_buf()];
    let mut import = importers::find(&paths)?.open(&paths, &Options { threads: 1 })?;
    let mut all = Rows::default();
    while let Some(batch) = import.next()? {
        all.append(&mut batch.into_rows());
    }
    Ok((all, import.summary()))
}

/// The same of these bytes, as a file of this name.
pub(crate) fn imported(name: &str, bytes: &[u8]) -> Result<(Rows, Summary)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    import(&path)
}
