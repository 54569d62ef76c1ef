//! The format of data files: its description in TOML, and the fields that result from it.
//!
//! The engine defines the descriptions of CSV and libsvm (see `openfleet_engine::dataset::format`). MultiSlot text has no
//! names, so a description lists its slots in order:
//!
//! ```toml
//! [[fields]]
//! kind = "label"        # one integer, 0 or 1
//!
//! [[fields]]
//! kind = "floats"
//! name = "dense"
//! dim = 13
//!
//! [[fields]]
//! kind = "ids"
//! name = "C1"
//!
//! [[fields]]
//! kind = "ignored"
//! name = "weight"
//! ```
//!
//! Without a description, the slots are those of `openfleet gen criteo`: `label`, `dense` and `C1` to `C26`.

use std::path::Path;

use openfleet_core::{Field, FieldKind, Schema};
use openfleet_engine::dataset::{CategoricalColumn, ColumnsSpec, Criteo, Csv, Format, LibSvm, MultiSlot, Parquet};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::Salt;

/// Floats per row of Criteo-like data.
pub const CRITEO_DENSE: usize = 13;
/// Slots per row of Criteo-like data.
pub const CRITEO_SLOTS: usize = 26;

/// The format of data files and the fields that are read from them. It is saved with a model, so that `infer` reads data as
/// training did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataDescription {
    /// The format of a line.
    pub format: DataFormat,
    /// The fields that are read.
    pub schema: Schema,
}

/// The format of a line, with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFormat {
    /// The slots of the text, in order.
    Multislot(Vec<String>),
    /// Label, 13 numbers and 26 categories, separated by tabs.
    Criteo(Criteo),
    /// Cells separated by commas or another character.
    Csv(Box<ColumnsSpec>),
    /// A label, then `index:value` pairs.
    Libsvm(LibSvm),
    /// Columns of Parquet and Arrow files.
    Parquet(Box<ColumnsSpec>),
    /// Words separated by blanks.
    Text,
}

/// One slot of MultiSlot text in a description.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum SlotDescription {
    Label {},
    Floats { name: String, dim: usize },
    Ids { name: String },
    Ignored { name: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotsDescription {
    fields: Vec<SlotDescription>,
}

impl DataDescription {
    /// MultiSlot text with the fields `label`, `dense` (absent if `dense` is 0) and `C1` to `C{slots}`.
    pub fn multislot(dense: usize, slots: usize) -> Result<Self> {
        let mut fields = vec![Field::new("label", FieldKind::FixedIds { length: 1 })];
        if dense > 0 {
            fields.push(Field::new("dense", FieldKind::Floats { dim: dense }));
        }
        fields.extend((1..=slots).map(|slot| Field::new(format!("C{slot}"), FieldKind::Ids)));
        let names = fields.iter().map(|field| field.name.clone()).collect();
        Ok(DataDescription { format: DataFormat::Multislot(names), schema: Schema::new(fields)? })
    }

    /// MultiSlot text with a description in TOML.
    pub fn multislot_of(path: &Path) -> Result<Self> {
        let description: SlotsDescription = read_toml(path, "MultiSlot text")?;
        let (mut names, mut fields) = (Vec::new(), Vec::new());
        for slot in description.fields {
            let (name, kind) = match slot {
                SlotDescription::Label {} => ("label".to_owned(), Some(FieldKind::FixedIds { length: 1 })),
                SlotDescription::Floats { name, dim } => (name, Some(FieldKind::Floats { dim })),
                SlotDescription::Ids { name } => (name, Some(FieldKind::Ids)),
                SlotDescription::Ignored { name } => (name, None),
            };
            fields.extend(kind.map(|kind| Field::new(&name, kind)));
            names.push(name);
        }
        Ok(DataDescription { format: DataFormat::Multislot(names), schema: Schema::new(fields)? })
    }

    /// Criteo text; ids modulo `buckets` if given.
    pub fn criteo(options: Criteo) -> Self {
        let schema = options.schema();
        DataDescription { format: DataFormat::Criteo(options), schema }
    }

    /// Criteo text with a description in TOML.
    pub fn criteo_of(path: &Path) -> Result<Self> {
        Ok(Self::criteo(read_toml(path, "Criteo's text")?))
    }

    /// CSV with a description in TOML.
    pub fn csv_of(path: &Path) -> Result<Self> {
        let columns: ColumnsSpec = read_toml(path, "CSV")?;
        let schema = columns.schema()?;
        Ok(DataDescription { format: DataFormat::Csv(Box::new(columns)), schema })
    }

    /// Parquet and Arrow files with a description in TOML, like that of CSV.
    pub fn parquet_of(path: &Path) -> Result<Self> {
        let columns: ColumnsSpec = read_toml(path, "Parquet")?;
        let schema = columns.schema()?;
        Ok(DataDescription { format: DataFormat::Parquet(Box::new(columns)), schema })
    }

    /// libsvm text.
    pub fn libsvm(options: LibSvm) -> Result<Self> {
        let schema = options.schema()?;
        Ok(DataDescription { format: DataFormat::Libsvm(options), schema })
    }

    /// libsvm text with a description in TOML.
    pub fn libsvm_of(path: &Path) -> Result<Self> {
        Self::libsvm(read_toml(path, "libsvm text")?)
    }

    /// The same files without labels: MultiSlot text has no such slot, CSV and Parquet no such column. Lines of Criteo and libsvm files
    /// still begin with a label, which is ignored.
    pub fn without_label(mut self) -> Result<Self> {
        match &mut self.format {
            DataFormat::Multislot(names) => names.retain(|name| name != "label"),
            DataFormat::Csv(columns) => {
                if let Some(label) = columns.label.take() {
                    columns.names.retain(|name| *name != label.column);
                }
            }
            DataFormat::Parquet(columns) => columns.label = None,
            DataFormat::Criteo(_) | DataFormat::Libsvm(_) | DataFormat::Text => {}
        }
        let fields = self.schema.fields().iter().filter(|field| field.name != "label").cloned().collect();
        Ok(DataDescription { schema: Schema::new(fields)?, ..self })
    }

    /// The salt of the ids of this data. 64-bit hashes are seeded with their slot's number or name and need none; all other ids
    /// (numbers of a vocabulary, buckets, raw ids) start at 0 in every slot.
    pub fn salt(&self) -> Option<Salt> {
        let slots = self.schema.fields().iter().filter(|field| field.name != "label" && field.kind == FieldKind::Ids);
        let is_of_its_slot = match &self.format {
            DataFormat::Criteo(options) => options.buckets.is_none(),
            DataFormat::Csv(columns) | DataFormat::Parquet(columns) => {
                let hashed = |column: &CategoricalColumn| {
                    column.buckets.is_none() && column.vocabulary.is_none() && column.boundaries.is_none()
                };
                columns.categorical.iter().all(hashed) && columns.crosses.iter().all(|cross| cross.buckets().is_none())
            }
            DataFormat::Multislot(_) | DataFormat::Libsvm(_) | DataFormat::Text => false,
        };
        (slots.count() > 1 && !is_of_its_slot).then_some(Salt::SlotName)
    }

    /// The engine's format; `None` for text, which has its own dataset.
    pub fn engine_format(&self) -> Option<Format> {
        Some(match &self.format {
            DataFormat::Multislot(names) => Format::MultiSlot(MultiSlot::with_slots(names.iter().cloned())),
            DataFormat::Criteo(options) => Format::Criteo(options.clone()),
            DataFormat::Csv(columns) => Format::Csv(Csv { columns: (**columns).clone() }),
            DataFormat::Libsvm(options) => Format::LibSvm(options.clone()),
            DataFormat::Parquet(columns) => Format::Parquet(Parquet { columns: (**columns).clone() }),
            DataFormat::Text => return None,
        })
    }
}

impl DataFormat {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            DataFormat::Multislot(_) => "multislot",
            DataFormat::Criteo(_) => "criteo",
            DataFormat::Csv(_) => "csv",
            DataFormat::Libsvm(_) => "libsvm",
            DataFormat::Parquet(_) => "parquet",
            DataFormat::Text => "text",
        }
    }
}

fn read_toml<T: DeserializeOwned>(path: &Path, format: &'static str) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(Error::io("read the column description", path))?;
    toml::from_str(&text).map_err(|source| Error::Columns { path: path.to_owned(), format, source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_this_file_names_its_fields() {
        let example: String = include_str!("columns.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| format!("{}\n", line.trim_start_matches("//!").trim()))
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fields.toml");
        std::fs::write(&path, example).unwrap();
        let description = DataDescription::multislot_of(&path).unwrap();
        assert_eq!(
            description.format,
            DataFormat::Multislot(["label", "dense", "C1", "weight"].map(str::to_owned).to_vec())
        );
        let names: Vec<&str> = description.schema.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["label", "dense", "C1"]);
        let unlabelled = description.without_label().unwrap();
        assert_eq!(unlabelled.schema.fields().len(), 2);
    }

    #[test]
    fn a_description_survives_its_json() {
        let mut columns = ColumnsSpec { names: vec!["a".into(), "b".into()], ..ColumnsSpec::default() };
        columns.label = Some(Default::default());
        let schema = columns.schema().unwrap();
        let descriptions = [
            DataDescription::multislot(3, 2).unwrap(),
            DataDescription::criteo(Criteo { buckets: Some(10), ..Criteo::default() }),
            DataDescription::libsvm(LibSvm { dense: Some([1, 4]), ..LibSvm::default() }).unwrap(),
            DataDescription { format: DataFormat::Csv(Box::new(columns.clone())), schema: schema.clone() },
            DataDescription { format: DataFormat::Parquet(Box::new(columns)), schema },
        ];
        for description in descriptions {
            let json = serde_json::to_string(&description).unwrap();
            assert_eq!(serde_json::from_str::<DataDescription>(&json).unwrap(), description, "{json}");
        }
    }
}
