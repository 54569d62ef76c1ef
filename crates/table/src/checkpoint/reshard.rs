//! Rewriting a checkpoint: with another number of parts, or several saves merged into one.
//!
//! Any number of servers can read any checkpoint; it is just more efficient if there is one part per server.

use std::sync::Arc;

use openfleet_core::placement::Buckets;

use super::commit::{Commit, Replaces, abandon, begin, commit};
use super::manifest::{MANIFEST, Manifest, SparseEntry};
use super::read::{read_dense, read_sparse};
use super::states::read_states_file;
use super::storage::{Sequential, Storage};
use super::write::{DenseCut, ServerPart, SparseCut, TableCuts, write_part};
use crate::error::{Error, Result};
use crate::sparse::{SparseSpec, SparseTable};

/// Copies a checkpoint as if servers with these buckets had written it. `id` is 16 hexadecimal digits, unique per save. Has one
/// part in memory at a time.
pub fn reshard(
    from: &dyn Storage,
    manifest: &Manifest,
    to: &dyn Storage,
    id: &str,
    buckets: Buckets,
    replace: bool,
) -> Result<Manifest> {
    begin(to, id, replace)?;
    copy(from, manifest, to, id, buckets, Replaces::Anything)
}

/// Merges the several saves of a checkpoint into one, in place.
pub fn compact(storage: &dyn Storage, manifest: &Manifest, id: &str) -> Result<Manifest> {
    let servers = Buckets::new(manifest.servers.max(1) as usize);
    let servers =
        servers.map_err(|error| Error::DamagedManifest { file: MANIFEST.into(), reason: error.to_string() })?;
    begin(storage, id, true)?;
    copy(storage, manifest, storage, id, servers, Replaces::Whole(manifest.id.clone()))
}

fn copy(
    from: &dyn Storage,
    manifest: &Manifest,
    to: &dyn Storage,
    id: &str,
    buckets: Buckets,
    replaces: Replaces,
) -> Result<Manifest> {
    let written = write_parts(from, manifest, to, id, buckets).and_then(|parts| {
        let save = Commit {
            id: id.to_owned(),
            job: manifest.job.clone(),
            mode: manifest.mode.clone(),
            workers: manifest.workers,
            threads: manifest.threads,
            data: manifest.data.clone(),
            states: read_states_file(from, manifest)?,
            parts,
            replaces,
            moment: Some(manifest.moment().to_owned()),
            run: manifest.run.clone(),
        };
        commit(to, save)
    });
    if written.is_err() {
        abandon(to, id);
    }
    written
}

fn write_parts(
    from: &dyn Storage,
    manifest: &Manifest,
    to: &dyn Storage,
    id: &str,
    buckets: Buckets,
) -> Result<Vec<ServerPart>> {
    let servers = buckets.server_count() as u32;
    let mut dense = dense(from, manifest)?;
    let mut parts = Vec::with_capacity(servers as usize);
    for server in 0..servers {
        let range = buckets.range(server as usize);
        let sparse = manifest.sparse.iter().map(|entry| {
            // The row limit belongs to a server; here all rows are copied.
            let table = Arc::new(SparseTable::new(SparseSpec { capacity: None, ..entry.spec.clone() })?);
            read_sparse(from, manifest, entry, range.clone(), &table, true, &Sequential)?;
            Ok(SparseCut { name: entry.name.clone(), cut: table.cut()?, without_state: false })
        });
        let cuts = TableCuts {
            server,
            sparse: sparse.collect::<Result<_>>()?,
            buckets: range,
            // Whole parameters: the dense file does not tell which server wrote which block.
            dense: std::mem::take(&mut dense),
            work: manifest.work.clone(),
            position: manifest.position.clone(),
        };
        let mut part = write_part(to, id, cuts)?;
        for (written, SparseEntry { spec, .. }) in part.sparse.iter_mut().zip(&manifest.sparse) {
            written.spec.clone_from(spec);
        }
        parts.push(part);
    }
    Ok(parts)
}

fn dense(from: &dyn Storage, manifest: &Manifest) -> Result<Vec<DenseCut>> {
    let mut values = read_dense(from, manifest)?;
    let cut = |entry: &super::manifest::DenseEntry| {
        let parameter = values.remove(&entry.name)?;
        Some(DenseCut {
            parameter: entry.name.clone(),
            offset: 0,
            spec: entry.spec.clone(),
            values: parameter.values,
            state: parameter.state,
            step: parameter.step,
        })
    };
    Ok(manifest.dense.iter().filter_map(cut).collect())
}
