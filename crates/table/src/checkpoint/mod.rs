//! Checkpoints: the contents of tables and the work they have applied, as files that outlive the job.
//!
//! ```text
//! DIR/manifest.json                   the contents, with the checksum of every block of every file
//! DIR/data-ID/dense.safetensors       dense parameters and their optimizer state, whole
//! DIR/data-ID/states.safetensors      the program's own state: running statistics, counters of metrics
//! DIR/data-ID/00-emb/0000-2047.keys.npy, .weights.npy, .state.npy, .stats.npy       rows, column by column
//! ```
//!
//! Servers write their parts in parallel into `.saving-ID`. Then the directory gets its final name, and last of all the new
//! manifest replaces the old one, in one rename. A crash before that leaves the old checkpoint unchanged, a crash after it
//! leaves the new one: no file changes once a manifest names it. Columns are `.npy` files because NumPy, and therefore almost
//! every tool, can map them, and because they are written front to back, as object stores require.
//!
//! Any number of servers can read a checkpoint, whatever the number that wrote it: a part tells which buckets it has, and a
//! reader takes the keys that belong to it. The format is documented in `docs/reference/checkpoint.md`.
//!
//! This crate opens no files: bytes are written to and read from a [`Storage`] that the caller passes. It knows no requests
//! either: the server decides who takes a cut, and when.

mod columns;
mod commit;
mod dense;
mod file;
mod manifest;
mod mapped;
mod memory;
mod read;
mod reshard;
mod states;
mod storage;
mod write;

pub use columns::npy_header;
pub use commit::{Commit, Replaces, abandon, begin, commit, is_of_a_save, save_alone};
pub use file::{BLOCK_BYTES, FileEntry, Flip};
pub use manifest::{
    DenseEntry, FORMAT, GroupWork, Layer, MANIFEST, Manifest, SparseEntry, SparsePart, VERSION, Work, find_manifest,
    read_manifest,
};
pub use mapped::MappedTable;
pub use memory::Memory;
pub use read::{DenseValues, LeftOut, Loaded, each_row, read_dense, read_sparse, verify};
pub use reshard::{compact, reshard};
pub use states::{StateElements, StateValue, States, decode_states, encode_states, read_states, read_states_file};
pub use storage::{Bytes, Parallelism, Sequential, Sink, Storage, StorageError};
pub use write::{DenseBlock, DenseCut, ServerPart, SparseCut, TableCuts, write_part};
