//! A store that can be read and not written, and of files only those below some directories.
//!
//! Executors and schedulers run whatever plan reaches them: what the client refuses in SQL does not bind who sends
//! a plan of its own. So the processes themselves open nothing but traces.

use std::fmt;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// A store in front of which nothing is written, and nothing read beyond `roots`, where there are any.
#[derive(Debug)]
pub struct Confined {
    /// The store behind it.
    pub inner: Arc<dyn ObjectStore>,
    /// The directories that may be read; everything if `None`.
    pub roots: Option<Vec<Path>>,
}

impl Confined {
    fn refuse(location: &Path, why: &str) -> Error {
        let (path, source) = (location.to_string(), why.into());
        Error::PermissionDenied { path, source }
    }

    fn may_read(&self, location: &Path) -> Result<()> {
        let below = |root: &Path| location.prefix_match(root).is_some();
        match &self.roots {
            Some(roots) if !roots.iter().any(below) => Err(Confined::refuse(
                location,
                "it is not below a directory of --traces, beyond which this process reads no files",
            )),
            _ => Ok(()),
        }
    }

    fn may_list(&self, prefix: Option<&Path>) -> Result<()> {
        self.may_read(prefix.unwrap_or(&Path::default()))
    }
}

const WRITES: &str = "processes of a cluster write no files but their intermediate results";

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "read-only {}", self.inner)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Confined {
    async fn put_opts(&self, location: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(Confined::refuse(location, WRITES))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Confined::refuse(location, WRITES))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.may_read(location)?;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        locations.map(|location| Err(Confined::refuse(&location?, WRITES))).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.may_list(prefix) {
            Ok(()) => self.inner.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.may_list(prefix)?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Result<()> {
        Err(Confined::refuse(to, WRITES))
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt as _;
    use object_store::local::LocalFileSystem;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn an_executor_reads_traces_only_and_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["traces/a", "traces-of-others/a"] {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "rows").unwrap();
        }
        let at = |name: &str| Path::from_absolute_path(dir.path().join(name)).unwrap();
        let inner = Arc::new(LocalFileSystem::new());
        let store = Confined { inner, roots: Some(vec![at("traces")]) };
        assert_eq!(
            block_on(block_on(store.get(&at("traces/a"))).unwrap().bytes()).unwrap(),
            "rows"
        );
        for other in [at("traces-of-others/a"), Path::from("etc/passwd"), Path::default()] {
            let refused = block_on(store.get(&other)).unwrap_err().to_string();
            assert!(refused.contains("--traces"), "{refused}");
            assert!(block_on(store.list(Some(&other)).next()).unwrap().is_err(), "{other}");
            assert!(block_on(store.list_with_delimiter(Some(&other))).is_err(), "{other}");
        }
        assert!(block_on(store.list(None).next()).unwrap().is_err());
        let inside = at("traces/a");
        assert_eq!(
            Path::from_absolute_path("/").unwrap(),
            Path::default(),
            "--traces / allows all"
        );
        assert!(block_on(store.put(&inside, "x".into())).is_err());
        assert!(block_on(store.put_multipart(&at("traces/new"))).is_err());
        assert!(block_on(store.delete(&inside)).is_err());
        assert!(block_on(store.copy(&inside, &at("traces/b"))).is_err());
        assert!(block_on(store.rename(&inside, &at("traces/b"))).is_err());
        assert_eq!(std::fs::read_dir(dir.path().join("traces")).unwrap().count(), 1);
    }
}
