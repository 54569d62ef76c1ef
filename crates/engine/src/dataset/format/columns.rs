//! The meaning of a CSV file's columns, as the user writes it in a small TOML file.
//!
//! ```toml
//! names = ["age", "job", "city", "tags", "weight", "clicked"]   # default: the first line of each file
//! missing = ["?"]
//! ignore = ["weight"]
//! crosses = [["job", "city"]]
//!
//! label = { column = "clicked", positive = ["yes"] }
//!
//! [[dense]]
//! column = "age"
//! mean = 38.6
//! std = 13.6
//!
//! [[categorical]]
//! column = "job"
//! vocabulary = ["nurse", "baker"]
//!
//! [[categorical]]
//! column = "city"
//! buckets = 1000
//!
//! [[categorical]]
//! name = "age_group"
//! column = "age"
//! boundaries = [18, 25, 40, 65]
//!
//! [[categorical]]
//! column = "tags"
//! multi = "|"
//! ```
//!
//! This module has the settings and their defaults; `csv.rs` checks them against a schema and reads lines.

use openfleet_core::{Field, FieldKind, Schema};
use serde::{Deserialize, Serialize};

use super::label_field;
use crate::dataset::error::{Error, Result};

/// The columns of a file and the fields made from them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ColumnsSpec {
    /// The character between cells. A blank matches any run of blanks.
    pub separator: char,
    /// The names of the columns in order, for files without a header.
    pub names: Vec<String>,
    /// Whether each file starts with a line of column names. Default: yes, unless `names` is given. With both, the line is
    /// skipped and `names` is used.
    pub header: Option<bool>,
    /// Whether cells may be in double quotes; a doubled quote within them is one quote. Quotes do not span lines.
    pub quotes: bool,
    /// Whether blanks around a cell are removed.
    pub trim: bool,
    /// Texts that mean "no value", besides the empty text.
    pub missing: Vec<String>,
    /// Lines that start with this character are skipped.
    pub comment: Option<char>,
    /// The field `label`.
    pub label: Option<LabelColumn>,
    /// The floats of the field `dense`, in this order.
    pub dense: Vec<DenseColumn>,
    /// One slot per entry.
    pub categorical: Vec<CategoricalColumn>,
    /// One slot per entry: combinations of other columns.
    pub crosses: Vec<Cross>,
    /// Columns that are not used; `"*"` means all that are not named elsewhere. A column that is neither used nor ignored is an
    /// error, because it is more often a typing mistake than a decision.
    pub ignore: Vec<String>,
}

impl Default for ColumnsSpec {
    fn default() -> Self {
        ColumnsSpec {
            separator: ',',
            names: Vec::new(),
            header: None,
            quotes: true,
            trim: true,
            missing: Vec::new(),
            comment: None,
            label: None,
            dense: Vec::new(),
            categorical: Vec::new(),
            crosses: Vec::new(),
            ignore: Vec::new(),
        }
    }
}

/// The column to predict.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabelColumn {
    /// Its name.
    pub column: String,
    /// The texts of the positive class; every other text is the negative class. If empty, the cell is a number.
    pub positive: Vec<String>,
    /// The texts of the negative class. If given, any other text makes the line malformed.
    pub negative: Vec<String>,
    /// The label is a number to approximate, stored as a float, and not a class.
    pub regression: bool,
}

/// A number. A missing number becomes 0 after all transformations, which is the mean if one is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DenseColumn {
    /// Its name.
    pub column: String,
    /// First, apply `ln(1 + max(x, 0))`.
    pub log: bool,
    /// Then subtract this.
    pub mean: f32,
    /// Then divide by this; default 1.
    pub std: Option<f32>,
}

/// A category. It is hashed, unless a vocabulary or boundaries are given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CategoricalColumn {
    /// The column's name.
    pub column: String,
    /// The slot's name; default: the column's. It seeds the hash, so it is part of a trained model.
    pub name: Option<String>,
    /// Hashes are taken modulo this; default: all 64 bits.
    pub buckets: Option<u64>,
    /// These texts get the ids 0, 1, 2 ...; any other text gets the id after the last.
    pub vocabulary: Option<Vec<String>>,
    /// The cell is a number; its id is the number of these ascending boundaries that do not exceed it.
    pub boundaries: Option<Vec<f32>>,
    /// The cell contains several categories, separated by this character.
    pub multi: Option<char>,
    /// Which id a missing category gets.
    pub if_missing: IfMissing,
}

impl CategoricalColumn {
    /// The slot's name.
    pub fn slot(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.column)
    }
}

/// Which id a row without a category gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IfMissing {
    /// No id: an empty slot.
    #[default]
    NoId,
    /// A separate id: the hash of the empty text, the id of unknown texts, or the id after the last bucket.
    OwnId,
}

/// The combination of several columns' categories as one category. A part is a slot of `categorical` (its id before the modulo is
/// used) or a column (its text is used). A row without one of the parts has no id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cross {
    /// Only the parts: the slot's name is their names joined with `_x_`.
    Parts(Vec<String>),
    /// Parts with options.
    Full {
        /// The parts.
        columns: Vec<String>,
        /// The slot's name.
        #[serde(default)]
        name: Option<String>,
        /// Hashes are taken modulo this.
        #[serde(default)]
        buckets: Option<u64>,
    },
}

impl Cross {
    /// The names of its parts.
    pub fn parts(&self) -> &[String] {
        match self {
            Cross::Parts(parts) | Cross::Full { columns: parts, .. } => parts,
        }
    }

    /// The slot's name.
    pub fn slot(&self) -> String {
        match self {
            Cross::Full { name: Some(name), .. } => name.clone(),
            Cross::Parts(parts) | Cross::Full { columns: parts, .. } => parts.join("_x_"),
        }
    }

    /// The modulus of the ids.
    pub fn buckets(&self) -> Option<u64> {
        match self {
            Cross::Parts(_) => None,
            Cross::Full { buckets, .. } => *buckets,
        }
    }
}

impl ColumnsSpec {
    /// All fields: `label`, `dense`, one slot per categorical column, one slot per cross.
    pub fn schema(&self) -> Result<Schema> {
        let mut fields = Vec::new();
        if let Some(label) = &self.label {
            let regression = Field::new("label", FieldKind::Floats { dim: 1 });
            fields.push(if label.regression { regression } else { label_field() });
        }
        if !self.dense.is_empty() {
            fields.push(Field::new("dense", FieldKind::Floats { dim: self.dense.len() }));
        }
        fields.extend(self.categorical.iter().map(|column| Field::new(column.slot(), FieldKind::Ids)));
        fields.extend(self.crosses.iter().map(|cross| Field::new(cross.slot(), FieldKind::Ids)));
        Schema::new(fields).map_err(|error| Error::bad_format(error.to_string(), "give one of the two another `name`"))
    }

    /// Whether each file starts with a line of column names.
    pub(crate) fn has_header(&self) -> bool {
        self.header.unwrap_or(self.names.is_empty())
    }

    /// Checks everything that can be checked before a file is read.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: String, remedy: &str| Err(Error::bad_format(what, remedy));
        for (name, character) in [("separator", Some(self.separator)), ("comment", self.comment)] {
            if let Some(character) = character.filter(|character| !character.is_ascii()) {
                return bad(format!("`{name}`: expected an ASCII character, got `{character}`"), "");
            }
        }
        if self.names.is_empty() && !self.has_header() {
            return bad("the columns have no names".into(), "give `names`, or `header = true`");
        }
        if self.quotes && self.separator == '"' {
            return bad("`\"` both separates and quotes".into(), "set `quotes = false`");
        }
        for column in &self.categorical {
            let slot = column.slot();
            if column.vocabulary.is_some() && column.boundaries.is_some() {
                return bad(format!("slot `{slot}` has both a vocabulary and boundaries"), "choose one");
            }
            if column.buckets.is_some() && (column.vocabulary.is_some() || column.boundaries.is_some()) {
                return bad(format!("slot `{slot}` has `buckets` but is not hashed"), "leave `buckets` out");
            }
            if column.buckets == Some(0) {
                return bad(format!("slot `{slot}` has 0 buckets"), "leave `buckets` out for all 64 bits");
            }
            if column.boundaries.as_ref().is_some_and(|values| values.windows(2).any(|pair| pair[0] >= pair[1])) {
                return bad(format!("the boundaries of slot `{slot}` are not ascending"), "");
            }
            if column.multi.is_some_and(|multi| !multi.is_ascii() || multi == self.separator) {
                return bad(
                    format!("`multi` of slot `{slot}`: expected an ASCII character other than `separator`"),
                    "",
                );
            }
        }
        for column in &self.dense {
            if column.std.is_some_and(|std| std == 0.0 || !std.is_finite()) || !column.mean.is_finite() {
                return bad(
                    format!("dense column `{}`: expected finite `mean` and `std`, `std` not 0", column.column),
                    "",
                );
            }
        }
        for cross in &self.crosses {
            let slot = cross.slot();
            if !(2..=8).contains(&cross.parts().len()) {
                return bad(format!("cross `{slot}`: expected 2 to 8 parts, got {}", cross.parts().len()), "");
            }
            if cross.buckets() == Some(0) {
                return bad(format!("cross `{slot}` has 0 buckets"), "leave `buckets` out for all 64 bits");
            }
            let multi =
                self.categorical.iter().find(|c| c.multi.is_some() && cross.parts().iter().any(|p| p == c.slot()));
            if let Some(column) = multi {
                return bad(format!("cross `{slot}`: slot `{}` has several ids per row", column.slot()), "");
            }
        }
        Ok(())
    }

    /// Every column that a field is made from, possibly several times.
    fn used(&self) -> impl Iterator<Item = &str> {
        let crossed = self.crosses.iter().flat_map(|cross| cross.parts()).map(|part| self.column_of(part));
        self.label
            .iter()
            .map(|label| label.column.as_str())
            .chain(self.dense.iter().map(|column| column.column.as_str()))
            .chain(self.categorical.iter().map(|column| column.column.as_str()))
            .chain(crossed)
    }

    /// The column behind a part of a cross.
    fn column_of<'a>(&'a self, part: &'a str) -> &'a str {
        self.categorical.iter().find(|column| column.slot() == part).map_or(part, |column| &column.column)
    }

    /// The first mismatch with a file that has these columns: the column, and what was expected of it.
    pub(crate) fn first_mismatch(&self, names: &[String]) -> Option<(String, &'static str)> {
        let absent = self.used().chain(self.ignore.iter().map(String::as_str).filter(|name| *name != "*"));
        for name in absent {
            if !names.iter().any(|known| known == name) {
                return Some((name.to_owned(), "a column of this name"));
            }
        }
        let all_ignored = self.ignore.iter().any(|name| name == "*");
        let unused = names.iter().find(|name| {
            !all_ignored && !self.ignore.contains(name) && !self.used().any(|used| used == name.as_str())
        })?;
        Some((unused.clone(), "this column to be used or listed in `ignore`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> ColumnsSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_example_of_this_file_is_read_and_names_its_fields() {
        let example: String = include_str!("columns.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| format!("{}\n", line.trim_start_matches("//!").trim()))
            .collect();
        let spec = spec(&example);
        spec.check().unwrap();
        assert_eq!(spec.first_mismatch(&spec.names), None);
        let schema = spec.schema().unwrap();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["label", "dense", "job", "city", "age_group", "tags", "job_x_city"]);
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        let error = toml::from_str::<ColumnsSpec>("seperator = \";\"").unwrap_err();
        assert!(error.to_string().contains("unknown field `seperator`"), "{error}");
    }

    #[test]
    fn contradictions_are_refused_before_any_file_is_read() {
        let table = [
            ("header = false", "the columns have no names"),
            ("separator = \"é\"", "`separator`: expected an ASCII character, got `é`"),
            (
                "categorical = [{ column = \"a\", vocabulary = [], boundaries = [] }]",
                "slot `a` has both a vocabulary and boundaries",
            ),
            ("categorical = [{ column = \"a\", boundaries = [2, 1] }]", "the boundaries of slot `a` are not ascending"),
            ("categorical = [{ column = \"a\", buckets = 0 }]", "slot `a` has 0 buckets"),
            ("crosses = [[\"a\"]]", "cross `a`: expected 2 to 8 parts, got 1"),
            (
                "crosses = [[\"a\", \"b\"]]\ncategorical = [{ column = \"a\", multi = \"|\" }]",
                "cross `a_x_b`: slot `a` has several ids per row",
            ),
            (
                "dense = [{ column = \"a\", std = 0.0 }]",
                "dense column `a`: expected finite `mean` and `std`, `std` not 0",
            ),
        ];
        for (text, expected) in table {
            let error = spec(text).check().unwrap_err();
            assert_eq!(error.to_string(), format!("bad format description: {expected}"), "{text}");
        }
    }

    #[test]
    fn every_column_is_used_or_ignored() {
        let spec = spec("ignore = [\"c\"]\ndense = [{ column = \"a\" }]");
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(spec.first_mismatch(&names(&["a", "c"])), None);
        assert_eq!(spec.first_mismatch(&names(&["c"])), Some(("a".into(), "a column of this name")));
        assert_eq!(spec.first_mismatch(&names(&["a"])), Some(("c".into(), "a column of this name")));
        let unused = spec.first_mismatch(&names(&["a", "b", "c"]));
        assert_eq!(unused, Some(("b".into(), "this column to be used or listed in `ignore`")));
        let all = ColumnsSpec { ignore: vec!["*".into()], ..spec };
        assert_eq!(all.first_mismatch(&names(&["a", "b"])), None);
    }
}
