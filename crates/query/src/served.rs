//! What the processes of a cluster read and write: traces that they were told to serve, and nothing.
//!
//! *Why it matters.* A client of a cluster sends a plan, not SQL, so what the client refuses (statements that
//! write, files that are no traces) says nothing about what arrives. Scans and sinks of a plan name any URL.
//! All of them go through the stores here, in the scheduler and in the executors.
//!
//! *What fools it.* Whoever may write below a served directory may replace a folder by a link between our
//! check and the opening of the file.

use std::fmt::{self, Display};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::execution::object_store::ObjectStoreRegistry;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use url::Url;

use crate::stores::Location;

type Stored<T> = object_store::Result<T>;

/// Which traces a process of a cluster serves.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Served {
    /// Serve the traces below this directory, or below this part of a bucket; may be given several times.
    /// Without it, buckets are served as far as the keys of this process reach, and no local files
    #[arg(long = "traces", value_name = "DIR|s3://BUCKET/PATH")]
    traces: Vec<String>,
}

impl Served {
    /// The same traces behind every store of `stores`, read-only.
    ///
    /// # Errors
    /// A directory does not exist, or a bucket is not named.
    pub fn only<R: ObjectStoreRegistry + 'static>(&self, stores: R) -> Result<ServedStores<R>> {
        let place = |named: &String| {
            Ok(Location::of(named).with_context(|| format!("--traces {named}"))?.url)
        };
        Ok(ServedStores { stores, roots: self.traces.iter().map(place).collect::<Result<_>>()? })
    }
}

/// Stores that serve some traces, read-only.
#[derive(Debug)]
pub struct ServedStores<R> {
    stores: R,
    /// Directories and parts of buckets, with a slash at the end.
    roots: Vec<Url>,
}

impl<R: ObjectStoreRegistry> ObjectStoreRegistry for ServedStores<R> {
    fn register_store(
        &self,
        url: &Url,
        store: Arc<dyn ObjectStore>,
    ) -> Option<Arc<dyn ObjectStore>> {
        self.stores.register_store(url, store)
    }

    fn get_store(&self, url: &Url) -> datafusion::error::Result<Arc<dyn ObjectStore>> {
        let local = url.scheme() == "file";
        let here = |root: &&Url| root.scheme() == url.scheme() && root.host() == url.host();
        let mut roots = Vec::new();
        for root in self.roots.iter().filter(here) {
            let path = Path::from_url_path(root.path());
            roots.push(path.map_err(|e| DataFusionError::External(Box::new(e)))?);
        }
        if roots.is_empty() && (local || !self.roots.is_empty()) {
            let message = format!("`{url}` is not served here; start this process with --traces");
            return Err(DataFusionError::Execution(message));
        }
        let store = self.stores.get_store(url)?;
        Ok(Arc::new(ServedStore { store, roots, local }))
    }
}

/// One store, of which only what lies below `roots` is served (all of it if there are none), and nothing is
/// ever written.
#[derive(Debug)]
struct ServedStore {
    store: Arc<dyn ObjectStore>,
    roots: Vec<Path>,
    local: bool,
}

impl ServedStore {
    fn check(&self, location: &Path) -> Stored<()> {
        let below = |location: &Path| {
            self.roots.is_empty() || self.roots.iter().any(|root| location.prefix_matches(root))
        };
        let served =
            below(location) && (!self.local || resolved(location).as_ref().is_none_or(below));
        if served { Ok(()) } else { Err(refused(location, "is not served here")) }
    }
}

/// Where a local file lies when links are followed; `None` if it does not exist.
fn resolved(location: &Path) -> Option<Path> {
    let real: PathBuf = std::fs::canonicalize(format!("/{location}")).ok()?;
    Path::from_absolute_path(real).ok()
}

fn refused(location: &Path, why: &str) -> Error {
    let source = format!("`{location}` {why}").into();
    Error::PermissionDenied { path: location.to_string(), source }
}

const READ_ONLY: &str = "is not written: the processes of a cluster only read";

impl Display for ServedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, read-only", self.store)
    }
}

#[async_trait]
impl ObjectStore for ServedStore {
    async fn put_opts(&self, location: &Path, _: PutPayload, _: PutOptions) -> Stored<PutResult> {
        Err(refused(location, READ_ONLY))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Stored<Box<dyn MultipartUpload>> {
        Err(refused(location, READ_ONLY))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Stored<GetResult> {
        self.check(location)?;
        self.store.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Stored<Vec<Bytes>> {
        self.check(location)?;
        self.store.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Stored<Path>>,
    ) -> BoxStream<'static, Stored<Path>> {
        locations.map(|location| Err(refused(&location?, READ_ONLY))).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Stored<ObjectMeta>> {
        match self.check(prefix.unwrap_or(&Path::ROOT)) {
            Ok(()) => self.store.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Stored<ListResult> {
        self.check(prefix.unwrap_or(&Path::ROOT))?;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> Stored<()> {
        Err(refused(to, READ_ONLY))
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::object_store::DefaultObjectStoreRegistry;
    use object_store::ObjectStoreExt as _;

    use super::*;

    struct House {
        _keep: tempfile::TempDir,
        traces: PathBuf,
        secret: PathBuf,
        stores: ServedStores<DefaultObjectStoreRegistry>,
    }

    fn house(serve: bool) -> House {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let (traces, secret) = (at.join("traces"), at.join("secret"));
        std::fs::create_dir(&traces).unwrap();
        std::fs::write(&secret, "key").unwrap();
        std::fs::write(traces.join("a"), "rows").unwrap();
        std::os::unix::fs::symlink(&secret, traces.join("link")).unwrap();
        let served = Served {
            traces: if serve { vec![traces.to_str().unwrap().to_owned()] } else { Vec::new() },
        };
        let stores = served.only(DefaultObjectStoreRegistry::new()).unwrap();
        House { _keep: dir, traces, secret, stores }
    }

    /// The contents of a file, or the first word of why it is refused.
    async fn read(house: &House, file: &std::path::Path) -> String {
        let url = Url::parse("file:///").unwrap();
        let store = match house.stores.get_store(&url) {
            Ok(store) => store,
            Err(error) => return error.to_string(),
        };
        match store.get(&Path::from_absolute_path(file).unwrap()).await {
            Ok(found) => String::from_utf8(found.bytes().await.unwrap().to_vec()).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn a_plan_reads_the_traces_that_are_served_and_no_other_file() {
        let house = house(true);
        assert_eq!(read(&house, &house.traces.join("a")).await, "rows");
        for outside in [house.secret.clone(), house.traces.join("link"), "/etc/passwd".into()] {
            let said = read(&house, &outside).await;
            assert!(said.contains("is not served here"), "{}: {said}", outside.display());
        }
    }

    #[tokio::test]
    async fn a_plan_writes_and_deletes_nothing() {
        let house = house(true);
        let store = house.stores.get_store(&Url::parse("file:///").unwrap()).unwrap();
        let at = |name: &str| Path::from_absolute_path(house.traces.join(name)).unwrap();
        assert!(store.put(&at("b"), "rows".into()).await.is_err());
        assert!(store.put_multipart(&at("b")).await.is_err());
        assert!(store.copy(&at("a"), &at("b")).await.is_err());
        assert!(store.rename(&at("a"), &at("b")).await.is_err());
        assert!(store.delete(&at("a")).await.is_err());
        assert!(house.traces.join("a").exists() && !house.traces.join("b").exists());
    }

    #[tokio::test]
    async fn without_traces_no_local_file_is_served() {
        let house = house(false);
        let said = read(&house, &house.traces.join("a")).await;
        assert!(said.contains("--traces"), "{said}");
    }

    /// Plans read parts of files, and list folders: each way of reading is checked.
    #[tokio::test]
    async fn parts_of_files_and_names_in_folders_are_served_as_whole_files_are() {
        let house = house(true);
        let store = house.stores.get_store(&Url::parse("file:///").unwrap()).unwrap();
        let others = house.traces.with_file_name("traces-of-others");
        std::fs::create_dir(&others).unwrap();
        std::fs::write(others.join("b"), "rows").unwrap();
        let path = |at: &std::path::Path| Path::from_absolute_path(at).unwrap();
        let refused = |what: Result<(), Error>, how: &str, at: &std::path::Path| {
            let said = what.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(said.contains("is not served here"), "{how} {}: {said}", at.display());
        };
        for at in [&house.secret, &house.traces.join("link"), &others.join("b")] {
            let location = path(at);
            refused(store.get_range(&location, 0..1).await.map(drop), "a range of", at);
            refused(store.get_ranges(&location, &[0..1, 1..2]).await.map(drop), "ranges of", at);
            refused(store.head(&location).await.map(drop), "the size of", at);
        }
        let above = house.traces.parent().unwrap();
        for at in [above, &others, std::path::Path::new("/")] {
            let prefix = path(at);
            let prefix = (at != std::path::Path::new("/")).then_some(&prefix);
            let listed: Vec<_> = store.list(prefix).collect().await;
            assert_eq!(listed.len(), 1, "{}", at.display());
            refused(listed.into_iter().next().unwrap().map(drop), "names in", at);
            refused(store.list_with_delimiter(prefix).await.map(drop), "names in", at);
        }
        let (file, folder) = (path(&house.traces.join("a")), path(&house.traces));
        assert_eq!(store.get_range(&file, 0..2).await.unwrap(), "ro");
        assert_eq!(store.get_ranges(&file, &[0..1, 1..2]).await.unwrap(), ["r", "o"]);
        let listed: Vec<_> = store.list(Some(&folder)).collect().await;
        assert!(listed.iter().flatten().any(|found| found.location == file), "{listed:?}");
        assert!(!store.list_with_delimiter(Some(&folder)).await.unwrap().objects.is_empty());
    }

    /// The contents of an object, or why it is refused.
    async fn object(traces: &[&str], url: &str) -> String {
        let stores = DefaultObjectStoreRegistry::new();
        for bucket in ["s3://ours/", "s3://theirs/", "gs://ours/"] {
            let store = object_store::memory::InMemory::new();
            for name in ["runs/a", "other/a"] {
                store.put(&Path::from(name), "rows".into()).await.unwrap();
            }
            stores.register_store(&Url::parse(bucket).unwrap(), Arc::new(store));
        }
        let served = Served { traces: traces.iter().map(|s| (*s).to_owned()).collect() };
        let url = Url::parse(url).unwrap();
        let store = match served.only(stores).unwrap().get_store(&url) {
            Ok(store) => store,
            Err(error) => return error.to_string(),
        };
        match store.get(&Path::from_url_path(url.path()).unwrap()).await {
            Ok(found) => String::from_utf8(found.bytes().await.unwrap().to_vec()).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn of_buckets_what_is_named_is_served_or_all_that_the_keys_reach() {
        let (named, all) = (["s3://ours/runs"], []);
        assert_eq!(object(&named, "s3://ours/runs/a").await, "rows");
        for other in
            ["s3://ours/other/a", "s3://theirs/runs/a", "gs://ours/runs/a", "file:///etc/passwd"]
        {
            let said = object(&named, other).await;
            assert!(said.contains("is not served here"), "{other}: {said}");
        }
        for other in ["s3://ours/other/a", "s3://theirs/runs/a"] {
            assert_eq!(object(&all, other).await, "rows");
        }
        assert!(object(&all, "file:///etc/passwd").await.contains("is not served here"));
        // Whoever serves a folder serves no bucket.
        let said = object(&["/tmp"], "s3://ours/runs/a").await;
        assert!(said.contains("is not served here"), "{said}");
    }
}
