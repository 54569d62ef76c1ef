//! A checkpoint in a bucket: keys below a prefix, in an object store.
//!
//! Object stores have no directories and no renaming, and need neither: a file of `.saving-ID` is written directly to its final
//! key in `data-ID`, which no reader uses until the manifest names it. Creating, syncing and renaming that directory do
//! nothing. `manifest.json.saving` is copied to `manifest.json`, which is atomic in every object store and commits the
//! checkpoint.
//!
//! [`Storage`] is called from any thread and blocks; object stores are asynchronous. `driver` connects the two, `upload` and
//! `download` transfer a file, `connect` has the differences between clouds, and `explain` writes error messages.

mod connect;
mod download;
mod driver;
mod explain;
mod upload;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use openfleet_table::checkpoint::{Bytes, Sink, Storage, StorageError};

pub use object_store;

use self::download::Download;
use self::driver::Driver;
use self::explain::BucketAddress;
use self::upload::Upload;
use super::addresses::Cloud;
use crate::error::{Error, Result};

/// The keys below a prefix.
pub struct Objects {
    bucket: Bucket,
    prefix: Path,
}

/// What the upload or download of a file needs.
#[derive(Clone)]
struct Bucket {
    store: Arc<dyn ObjectStore>,
    driver: Driver,
    place: Arc<BucketAddress>,
}

impl Objects {
    /// The keys below `prefix` in an existing store; `name` is used in messages.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str, name: &str) -> Result<Self> {
        Objects::of(store, prefix, BucketAddress::new(name, None))
    }

    /// The store at an address, with settings from the environment. Makes no request yet.
    pub(super) fn open(cloud: Cloud, address: &str) -> Result<Self> {
        let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let place = BucketAddress::new(address, Some(cloud));
        let store = connect::connect(cloud, address, &format!("{scheme}://{bucket}"), &place)?;
        Objects::of(store, prefix, place)
    }

    fn of(store: Arc<dyn ObjectStore>, prefix: &str, place: BucketAddress) -> Result<Self> {
        let failed = |error: &dyn std::error::Error, hint: &str| Error::StorageSetup {
            address: place.name.as_str().into(),
            source: Box::new(StorageError {
                kind: io::ErrorKind::InvalidInput,
                message: error.to_string(),
                hint: Some(hint.into()),
            }),
        };
        let prefix = Path::parse(prefix.trim_end_matches('/'))
            .map_err(|error| failed(&error, "a prefix is a list of non-empty names with `/` between them"))?;
        let driver = Driver::new()
            .map_err(|error| failed(&error, "a thread could not be started: check the limits of this process"))?;
        Ok(Objects { bucket: Bucket { store, driver, place: Arc::new(place) }, prefix })
    }

    fn key(&self, path: &str) -> io::Result<Path> {
        let path = match path.strip_prefix(".saving-") {
            Some(rest) => format!("data-{rest}"),
            None => path.to_owned(),
        };
        let whole = if path.is_empty() { self.prefix.to_string() } else { format!("{}/{path}", self.prefix) };
        Path::parse(whole).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    fn download(&self, path: &str, from: u64) -> io::Result<Download> {
        let key = self.key(path)?;
        let size = self.bucket.wait(&key, |store, key| async move { store.head(&key).await })?.size;
        Ok(Download::new(self.bucket.clone(), key, size, from))
    }
}

impl Bucket {
    /// Runs an operation on a key, and waits for it.
    fn wait<T, F>(&self, key: &Path, act: impl FnOnce(Arc<dyn ObjectStore>, Path) -> F) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.take(key, self.driver.start(act(self.store.clone(), key.clone())))
    }

    /// Waits for an operation that was started.
    fn take<T>(&self, key: &Path, begun: driver::Task<object_store::Result<T>>) -> io::Result<T> {
        begun.wait()?.map_err(|error| self.place.explain(error, key))
    }
}

impl Storage for Objects {
    fn make_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(Upload::new(self.bucket.clone(), self.key(path)?)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        self.open_at(path, 0)
    }

    fn open_at(&self, path: &str, from: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.download(path, from)?))
    }

    fn map(&self, path: &str) -> io::Result<Bytes> {
        let mut download = self.download(path, 0)?;
        let mut bytes = Vec::with_capacity(download.size() as usize);
        download.read_to_end(&mut bytes)?;
        Ok(Box::new(bytes))
    }

    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        let key = self.key(path)?;
        let head = self.bucket.wait(&key, |store, key| async move {
            match store.head(&key).await {
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                head => head.map(|found| Some(found.size)),
            }
        })?;
        if head.is_none() {
            // The response to a HEAD request has no body, so it does not tell whether the bucket exists. Listing does.
            self.list("")?;
        }
        Ok(head)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let key = self.key(path)?;
        let listed = self.bucket.wait(&key, |store, key| async move { store.list_with_delimiter(Some(&key)).await })?;
        let files = listed.objects.iter().map(|object| &object.location);
        let names = listed.common_prefixes.iter().chain(files).filter_map(|path| path.filename());
        Ok(names.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.key(from)?, self.key(to)?);
        if from == to {
            return Ok(());
        }
        self.bucket.wait(&from, |store, from| async move {
            store.copy(&from, &to).await?;
            // The object has its new name; an old copy that is left behind does no harm.
            let _ = store.delete(&from).await;
            Ok(())
        })
    }

    fn sync_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.bucket.wait(&self.key(path)?, |store, key| async move {
            let inside = store.list(Some(&key)).map_ok(|object| object.location);
            let removed =
                store.delete_stream(Box::pin(inside)).map_ok(drop).try_for_each(|()| std::future::ready(Ok(()))).await;
            match removed.and(store.delete(&key).await) {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                removed => removed,
            }
        })
    }

    fn name(&self) -> String {
        self.bucket.place.name.clone()
    }
}
