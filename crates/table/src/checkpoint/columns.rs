//! The columns of a sparse part: `.npy` files whose contents are fully determined before the first byte is written.
//!
//! The header of such a file is a Python literal. A reader does not parse it: it knows from the manifest what the header must
//! be, byte by byte.

use openfleet_core::bfloat16::{round_to_nearest, widen};

use crate::accessor::{Accessor, CtrFields, RowStorage};
use crate::error::{Error, Result};
use crate::sparse::SparseSpec;

/// One column of a sparse part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Column {
    Keys,
    Weights,
    State,
    Stats,
    /// Keys whose rows were removed; not one of the rows' columns.
    Removed,
}

impl Column {
    /// The columns of rows.
    pub(super) const ROWS: [Column; 4] = [Column::Keys, Column::Weights, Column::State, Column::Stats];

    pub(super) fn name(self) -> &'static str {
        match self {
            Column::Keys => "keys",
            Column::Weights => "weights",
            Column::State => "state",
            Column::Stats => "stats",
            Column::Removed => "removed",
        }
    }

    /// Bytes per row; 0 if the table has no such column.
    pub(super) fn width(self, spec: &SparseSpec) -> usize {
        match self {
            Column::Keys | Column::Removed => 8,
            Column::Weights => weight_bytes(spec.storage) * spec.dim,
            Column::State => 4 * spec.state_len(),
            Column::Stats => match spec.accessor {
                Accessor::Plain => 4,
                Accessor::Ctr(_) => 24,
            },
        }
    }

    /// The header of the file; fails if the file is too short or too long for its rows.
    pub(super) fn checked_header(self, spec: &SparseSpec, rows: u64, path: &str, bytes: u64) -> Result<Vec<u8>> {
        let header = self.header(spec, rows);
        let length = rows.checked_mul(self.width(spec) as u64);
        let length = length.and_then(|length| length.checked_add(header.len() as u64));
        match length == Some(bytes) {
            true => Ok(header),
            false => {
                let expected = length.unwrap_or(u64::MAX);
                Err(Error::FileLength { file: path.to_owned(), expected, got: bytes })
            }
        }
    }

    /// An error about a header that differs.
    pub(super) fn strange_header(self, rows: u64, file: String) -> Error {
        Error::DamagedManifest { file, reason: format!("its header does not match {rows} {}", self.name()) }
    }

    /// The header of the file.
    pub(super) fn header(self, spec: &SparseSpec, rows: u64) -> Vec<u8> {
        let stamp = "('stamp', '<u4')";
        let (kind, shape) = match self {
            Column::Keys | Column::Removed => ("'<u8'".to_owned(), format!("({rows},)")),
            Column::Weights => {
                // NumPy has no name for bfloat16.
                let kind = if spec.storage.is_float32() { "'<f4'" } else { "'<u2'" };
                (kind.to_owned(), format!("({rows}, {})", spec.dim))
            }
            Column::State => {
                let slots = spec.optimizer.state_slots();
                ("'<f4'".to_owned(), format!("({rows}, {slots}, {})", spec.state_len() / slots.max(1)))
            }
            Column::Stats => {
                let fields = match spec.accessor {
                    Accessor::Plain => String::new(),
                    Accessor::Ctr(_) => ", ('show', '<f4'), ('click', '<f4'), ('delta_score', '<f4'), \
                                         ('unseen_days', '<u4'), ('has_long', '<u4')"
                        .to_owned(),
                };
                (format!("[{stamp}{fields}]"), format!("({rows},)"))
            }
        };
        npy_header(&kind, &shape)
    }
}

/// The header of a `.npy` file: element type and shape as Python literals.
pub fn npy_header(kind: &str, shape: &str) -> Vec<u8> {
    let mut text = format!("{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}").into_bytes();
    // Magic, version 1.0, two bytes of length; padded to a multiple of 64 so that the rows are aligned.
    let padded = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text.resize(padded - 1, b' ');
    text.push(b'\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(padded as u16).to_le_bytes());
    header.extend_from_slice(&text);
    header
}

/// Appends a row's stamp and ctr fields, as in the `stats` column.
pub(super) fn put_stats(out: &mut Vec<u8>, stamp: u32, ctr: Option<CtrFields>) {
    out.extend_from_slice(&stamp.to_le_bytes());
    if let Some(ctr) = ctr {
        out.extend_from_slice(&ctr.show.to_le_bytes());
        out.extend_from_slice(&ctr.click.to_le_bytes());
        out.extend_from_slice(&ctr.delta_score.to_le_bytes());
        out.extend_from_slice(&ctr.unseen_days.to_le_bytes());
        out.extend_from_slice(&u32::from(ctr.has_long).to_le_bytes());
    }
}

/// Reads them back; `bytes` is one row of the column.
pub(super) fn take_stats(bytes: &[u8]) -> (u32, Option<CtrFields>) {
    let word = |at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[at * 4..at * 4 + 4]);
        u32::from_le_bytes(word)
    };
    let float = |at| f32::from_bits(word(at));
    let ctr = (bytes.len() > 4).then(|| CtrFields {
        show: float(1),
        click: float(2),
        delta_score: float(3),
        unseen_days: word(4),
        has_long: word(5) != 0,
    });
    (word(0), ctr)
}

/// Bytes of a weight.
fn weight_bytes(storage: RowStorage) -> usize {
    match storage {
        RowStorage::Float32 => 4,
        RowStorage::Bfloat16 => 2,
    }
}

/// Appends the weights of a row as their column stores them. Nothing is lost: a table of that storage has no other values.
pub(super) fn put_weights(out: &mut Vec<u8>, weights: &[f32], storage: RowStorage) {
    match storage {
        RowStorage::Float32 => put_floats(out, weights),
        RowStorage::Bfloat16 => {
            out.extend(weights.iter().flat_map(|weight| round_to_nearest(*weight).to_le_bytes()));
        }
    }
}

/// Reads the weights of a row.
pub(super) fn take_weights(bytes: &[u8], storage: RowStorage, out: &mut [f32]) {
    match storage {
        RowStorage::Float32 => {
            for (weight, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *weight = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        RowStorage::Bfloat16 => {
            for (weight, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *weight = widen(u16::from_le_bytes([b[0], b[1]]));
            }
        }
    }
}

/// Appends floats as a column stores them.
pub(super) fn put_floats(out: &mut Vec<u8>, floats: &[f32]) {
    out.extend(floats.iter().flat_map(|float| float.to_le_bytes()));
}

/// Reads floats back.
pub(super) fn take_floats(bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}
