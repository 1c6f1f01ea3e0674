//! Where the files of a trace lie: on this machine, or in a store with the protocol of S3.

use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use url::Url;

/// Object stores by the scheme and host of their URL. Those of S3 are created at their first use, from the
/// environment of this process: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP` and others. Keys are never sent to other processes.
#[derive(Debug, Default)]
pub struct Stores(DefaultObjectStoreRegistry);

impl ObjectStoreRegistry for Stores {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.0.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> datafusion::error::Result<Arc<dyn ObjectStore>> {
        if let Ok(known) = self.0.get_store(url) {
            return Ok(known);
        }
        if url.scheme() != "s3" {
            return Err(DataFusionError::Execution(format!(
                "cannot read `{url}`: traces are read from local paths and s3://"
            )));
        }
        let bucket = url.host_str().unwrap_or_default();
        let store = AmazonS3Builder::from_env().with_bucket_name(bucket).build()?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        self.0.register_store(url, store.clone());
        Ok(store)
    }
}

/// The environment of an engine: its stores, and the memory that its operators share before they spill.
///
/// # Errors
/// The engine refuses it.
pub fn runtime(
    stores: Arc<dyn ObjectStoreRegistry>,
    memory: Option<usize>,
) -> datafusion::error::Result<Arc<RuntimeEnv>> {
    let mut builder = RuntimeEnvBuilder::new().with_object_store_registry(stores);
    if let Some(bytes) = memory {
        // When memory runs out, the error lists the largest consumers.
        let pool =
            TrackConsumersPool::new(FairSpillPool::new(bytes), const { NonZero::new(5).unwrap() });
        builder = builder.with_memory_pool(Arc::new(pool));
    }
    builder.build_arc()
}

/// The place of a trace, as the user named it.
#[derive(Clone, Debug)]
pub struct Location {
    /// Its directory, with a slash at the end.
    pub url: Url,
    /// As the user named it.
    pub named: String,
}

impl Location {
    /// The place at a path or an `s3://` URL.
    ///
    /// # Errors
    /// It is neither of them, or the path does not exist.
    pub fn of(named: &str) -> Result<Location> {
        let url = match Url::parse(named) {
            Ok(url) if url.scheme() == "s3" => {
                if url.host_str().is_none_or(str::is_empty) {
                    bail!("`{named}` names no bucket; give s3://BUCKET/PATH/run.trace");
                }
                Url::parse(&format!("{}/", named.trim_end_matches('/')))?
            }
            Ok(url) if named.contains("://") && url.scheme() != "file" => {
                bail!("`{named}`: traces are read from local paths and s3://");
            }
            _ => {
                let path = Path::new(named.strip_prefix("file://").unwrap_or(named));
                let path = std::fs::canonicalize(path)
                    .with_context(|| format!("cannot open `{}`", path.display()))?;
                Url::from_directory_path(&path)
                    .map_err(|()| anyhow::anyhow!("`{}` is not an absolute path", path.display()))?
            }
        };
        Ok(Location { url, named: named.into() })
    }

    /// Its path, if it is on this machine.
    pub fn path(&self) -> Option<std::path::PathBuf> {
        self.url.to_file_path().ok()
    }

    /// A file in it.
    ///
    /// # Errors
    /// `inside` is not a path, or leads out of the trace.
    pub fn file(&self, inside: &str) -> Result<Url> {
        let url =
            self.url.join(inside).with_context(|| format!("`{inside}` is not a valid path"))?;
        if !url.path().starts_with(self.url.path()) {
            bail!("`{inside}` leads out of `{}`", self.named);
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_named_by_path_or_by_bucket() {
        let s3 = Location::of("s3://bucket/runs/a.trace/").unwrap();
        assert_eq!(
            s3.file("span/00000.parquet").unwrap().as_str(),
            "s3://bucket/runs/a.trace/span/00000.parquet"
        );
        assert!(s3.path().is_none());
        assert!(
            s3.file("../b.trace/span/0.parquet").unwrap_err().to_string().contains("leads out")
        );
        for (bad, why) in [
            ("s3:///a.trace", "names no bucket"),
            ("gs://bucket/a.trace", "local paths and s3"),
            ("/there/is/nothing", "cannot open"),
        ] {
            let error = format!("{:#}", Location::of(bad).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("a b%20[c].trace");
        std::fs::create_dir(&odd).unwrap();
        let here = Location::of(odd.to_str().unwrap()).unwrap();
        assert_eq!(here.path().unwrap(), odd.canonicalize().unwrap());
    }
}
