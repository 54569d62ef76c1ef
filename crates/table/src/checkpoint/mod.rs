//! Checkpoints: what tables hold and which work they have applied, as files that outlive the job.
//!
//! ```text
//! DIR/manifest.json                   what there is, with the checksum of every block of every file
//! DIR/data-ID/dense.safetensors       dense parameters and their optimizer state, whole
//! DIR/data-ID/states.safetensors      what the program keeps beside them: running statistics, counters of metrics
//! DIR/data-ID/00-emb/0000-2047.keys.npy, .weights.npy, .state.npy, .stats.npy       rows, column by column
//! ```
//!
//! Servers write their parts side by side into `.saving-ID`; then the directory gets its name, and last of all the new
//! manifest takes the old one's place, in one rename. Whatever dies before that leaves the old checkpoint as it was, and
//! whatever dies after it leaves the new one: no file is ever changed once a manifest names it. Columns are `.npy` files
//! because NumPy, and so everybody, can map them, and because they are written front to back, as object stores want it.
//!
//! How many servers wrote a checkpoint does not matter to those that read it: a part says which buckets it holds, and a
//! reader takes the keys that are its own. The format is described for people in `docs/reference/checkpoint.md`.
//!
//! This room opens no file: bytes go to and come from a [`Storage`] that is handed in. Nor does it know requests: who
//! asks for the cut, and when, is the server's affair.

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
