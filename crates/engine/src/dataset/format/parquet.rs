//! Parquet and Arrow files: their columns have the meaning of a CSV file's, by a [`ColumnsSpec`].
//!
//! A value gives what its text gives in a CSV file, so the same data has the same ids in both. A list is a column of several
//! categories. `columnar.rs` reads the files.

use openfleet_core::{FieldKind, Schema};

use super::columns::ColumnsSpec;
use super::csv::Resolved;
use crate::dataset::error::Result;

/// Files of columns: Parquet, or Arrow's IPC format.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parquet {
    /// The meaning of the columns. What describes the text of a file (`separator`, `names`, `header`, `quotes`, `comment`) has no
    /// effect.
    pub columns: ColumnsSpec,
}

impl Parquet {
    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<Resolved>> {
        let mut columns = ColumnsSpec { names: Vec::new(), header: None, ..self.columns.clone() };
        let is_crossed =
            |slot: &str| self.columns.crosses.iter().any(|cross| cross.parts().iter().any(|part| part == slot));
        for column in &mut columns.categorical {
            // Whether a column has lists is known when a file is open. Crosses and slots of one id take no lists.
            let is_ragged =
                schema.fields().iter().any(|field| field.name == column.slot() && field.kind == FieldKind::Ids);
            if is_ragged && !is_crossed(column.slot()) {
                column.multi = column.multi.or(Some(LIST_SEPARATOR));
            }
        }
        Resolved::new(&columns, schema).map(Box::new)
    }
}

/// Between the parts of a list: the unit separator of ASCII, which texts do not have.
pub(crate) const LIST_SEPARATOR: char = '\u{1f}';
