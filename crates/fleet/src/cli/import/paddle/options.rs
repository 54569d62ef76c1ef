//! The values of options that say what the files do not.

use std::str::FromStr;

use super::rows::{Accessor, Rule};

/// A sparse table of a dump: `0=embedding_0.w_0:10:CtrCommonAccessor:adagrad`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseTable {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) dim: usize,
    pub(crate) accessor: Accessor,
    pub(crate) rule: Option<Rule>,
}

/// The most weights of a row.
const MOST_WEIGHTS: usize = 1 << 20;

impl FromStr for SparseTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected `ID=NAME:DIM`, as in `0=embedding_0.w_0:10`".to_owned();
        let (id, rest) = text.split_once('=').ok_or_else(expected)?;
        let mut parts: Vec<&str> = rest.split(':').collect();
        // From the end, because a name may have colons.
        let rule = parts.last().and_then(|part| Rule::named(part));
        parts.truncate(parts.len() - usize::from(rule.is_some()));
        let accessor = parts.last().and_then(|part| Accessor::named(part));
        parts.truncate(parts.len() - usize::from(accessor.is_some()));
        let dim = parts.pop().and_then(|dim| dim.parse().ok()).filter(|dim| (1..=MOST_WEIGHTS).contains(dim));
        let Some(dim) = dim else {
            return Err(format!(
                "{}; accessors are SparseAccessor, CtrCommonAccessor, CtrDoubleAccessor and CtrDymfAccessor; rules are naive, \
                 adagrad, std_adagrad, adam and shared_adam",
                expected()
            ));
        };
        let name = parts.join(":");
        if name.is_empty() {
            return Err(expected());
        }
        let id = id.trim().parse().map_err(|_| expected())?;
        Ok(SparseTable { id, name, dim, accessor: accessor.unwrap_or(Accessor::Sparse), rule })
    }
}

/// A dense table of a dump: `2=fc_0.b_0:5,fc_0.w_0:11x5`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenseTable {
    pub(crate) id: u32,
    pub(crate) parameters: Vec<(String, Vec<usize>)>,
}

impl FromStr for DenseTable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected `ID=NAME:SHAPE,...`, as in `2=fc_0.b_0:5,fc_0.w_0:11x5`".to_owned();
        let (id, rest) = text.split_once('=').ok_or_else(expected)?;
        let parameter = |text: &str| {
            let (name, shape) = text.rsplit_once(':')?;
            let dims = shape.split('x').map(|dim| dim.parse().ok().filter(|dim| *dim > 0));
            let dims = dims.collect::<Option<Vec<usize>>>()?;
            (!name.is_empty() && super::value::count(&dims).is_some()).then(|| (name.to_owned(), dims))
        };
        let parameters = rest.split(',').map(parameter).collect::<Option<_>>().ok_or_else(expected)?;
        Ok(DenseTable { id: id.trim().parse().map_err(|_| expected())?, parameters })
    }
}

/// Another name: `OLD=NEW`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rename {
    pub(crate) old: String,
    pub(crate) new: String,
}

impl FromStr for Rename {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((old, new)) if !old.is_empty() && !new.is_empty() => {
                Ok(Rename { old: old.to_owned(), new: new.to_owned() })
            }
            _ => Err("expected `OLD=NEW`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_an_id_a_name_and_a_dim() {
        let table = |accessor, rule| SparseTable { id: 0, name: "emb".into(), dim: 10, accessor, rule };
        assert_eq!("0=emb:10".parse(), Ok(table(Accessor::Sparse, None)));
        assert_eq!("0=emb:10:CtrCommonAccessor".parse(), Ok(table(Accessor::CtrCommon, None)));
        assert_eq!("0=emb:10:DownpourCtrDymfAccessor:adam".parse(), Ok(table(Accessor::CtrDymf, Some(Rule::Adam))));
        for text in ["", "emb:10", "0=emb", "0=:10", "x=emb:10", "0=emb:0", "0=emb:10:Other", "0=emb:99999999999"] {
            assert!(text.parse::<SparseTable>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_dense_table_lists_its_parameters() {
        let table = "2=b:5,w:11x5".parse::<DenseTable>().unwrap();
        assert_eq!((table.id, table.parameters), (2, vec![("b".into(), vec![5]), ("w".into(), vec![11, 5])]));
        for text in ["", "2=", "2=w", "2=w:0", "2=w:ax5", "2=w:4,"] {
            assert!(text.parse::<DenseTable>().is_err(), "{text}");
        }
    }
}
