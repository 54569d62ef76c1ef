//! The meaning of an address, by its scheme.
//!
//! The only place that knows schemes. Settings of a bucket other than its name come from the environment, see
//! `docs/guide/saving.md`.

use std::sync::Arc;

use openfleet_table::checkpoint::Storage;

use super::{Directory, Stores};
use crate::error::{Error, Result};

/// Directories on this machine, by path or `file://`, and buckets, by `s3://`, `gs://` or `az://`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Addresses;

impl Stores for Addresses {
    fn open(&self, address: &str) -> Result<Arc<dyn Storage>> {
        let path = address.strip_prefix("file://").unwrap_or(address);
        let cloud = address.split_once("://").and_then(|(scheme, _)| Cloud::of(scheme));
        // Path libraries turn an address into `s3:/bucket`, which is certainly not meant as a directory.
        let is_address =
            path.contains("://") || path.split_once(":/").is_some_and(|(scheme, _)| Cloud::of(scheme).is_some());
        match cloud {
            Some(cloud) => open_bucket(cloud, address),
            None if is_address || path.is_empty() => Err(Error::NoSuchStorage { address: address.to_owned() }),
            None => Ok(Arc::new(Directory::new(path))),
        }
    }
}

/// The provider of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cloud {
    /// Amazon S3 and compatible stores.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
}

impl Cloud {
    fn of(scheme: &str) -> Option<Self> {
        match scheme {
            "s3" | "s3a" => Some(Cloud::S3),
            "gs" => Some(Cloud::Gcs),
            "az" | "abfs" | "abfss" => Some(Cloud::Azure),
            _ => None,
        }
    }

    /// The feature of this crate that supports it.
    pub(super) fn feature(self) -> &'static str {
        match self {
            Cloud::S3 => "s3",
            Cloud::Gcs => "gcs",
            Cloud::Azure => "azure",
        }
    }
}

#[cfg(feature = "objects")]
fn open_bucket(cloud: Cloud, address: &str) -> Result<Arc<dyn Storage>> {
    Ok(Arc::new(super::objects::Objects::open(cloud, address)?))
}

#[cfg(not(feature = "objects"))]
fn open_bucket(cloud: Cloud, address: &str) -> Result<Arc<dyn Storage>> {
    Err(Error::NotBuilt { address: address.into(), feature: cloud.feature() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_file_address_are_the_same_directory() {
        assert_eq!(Addresses.open("/tmp/model").unwrap().name(), "/tmp/model");
        assert_eq!(Addresses.open("file:///tmp/model").unwrap().name(), "/tmp/model");
        assert_eq!(Addresses.open("here").unwrap().name(), "here");
    }

    #[test]
    fn an_address_of_no_known_kind_is_refused_with_the_known_ones() {
        for address in ["", "file://", "hdfs://there/x", "S3://bucket/x", "file://s3://x", "s3:/bucket/x"] {
            let Err(error @ Error::NoSuchStorage { .. }) = Addresses.open(address).map(drop) else {
                panic!("{address:?} was accepted")
            };
            let report = openfleet_core::error::report(&error);
            assert!(report.contains("`file://`") && report.contains("`s3://`"), "{report}");
        }
    }

    #[test]
    fn a_bucket_that_this_build_does_not_know_is_an_error_that_names_the_feature() {
        let built = [cfg!(feature = "s3"), cfg!(feature = "gcs"), cfg!(feature = "azure")];
        for ((address, feature), built) in
            [("s3://b/p", "s3"), ("gs://b/p", "gcs"), ("az://b/p", "azure")].into_iter().zip(built)
        {
            match Addresses.open(address).map(drop) {
                Err(error @ Error::NotBuilt { .. }) if !built => {
                    assert!(openfleet_core::error::report(&error).contains(&format!("`{feature}`")));
                }
                other => assert!(built, "{other:?}"),
            }
        }
    }
}
