//! What is needed of a PaddlePaddle program (`.pdmodel`, `__model__`): the names of its saved variables, and which of them are
//! running statistics or embeddings.
//!
//! The messages have the field numbers of `framework.proto` and only the fields that are used.

use std::collections::BTreeSet;

use prost::Message;

use super::bytes::Wrong;

#[derive(Clone, PartialEq, Message)]
struct ProgramDesc {
    #[prost(message, repeated, tag = "1")]
    blocks: Vec<BlockDesc>,
}

#[derive(Clone, PartialEq, Message)]
struct BlockDesc {
    #[prost(message, repeated, tag = "3")]
    variables: Vec<VariableDesc>,
    #[prost(message, repeated, tag = "4")]
    ops: Vec<OpDesc>,
}

#[derive(Clone, PartialEq, Message)]
struct VariableDesc {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    kind: Option<VariableKind>,
    #[prost(bool, optional, tag = "3")]
    persistable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct VariableKind {
    #[prost(int32, tag = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OpDesc {
    #[prost(message, repeated, tag = "1")]
    inputs: Vec<OpArgument>,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(message, repeated, tag = "4")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bool, optional, tag = "10")]
    truth: Option<bool>,
}

impl OpDesc {
    /// Whether an op looks up ids in a matrix whose gradients are rows: such a matrix is a sparse table here.
    fn looks_up_rows(&self) -> bool {
        let is_true = |attribute: &Attribute| {
            attribute.truth == Some(true) && ["is_sparse", "is_distributed"].contains(&attribute.name.as_str())
        };
        match self.kind.as_str() {
            "distributed_lookup_table" => true,
            "lookup_table" | "lookup_table_v2" => self.attributes.iter().any(is_true),
            _ => false,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct OpArgument {
    #[prost(string, tag = "1")]
    parameter: String,
    #[prost(string, repeated, tag = "2")]
    arguments: Vec<String>,
}

/// Variables that hold tensors have this kind.
const DENSE_TENSOR: i32 = 7;

/// A program, as far as its files of values need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProgramNames {
    /// Saved variables, sorted by name, which is their order in a combined file.
    pub(crate) saved: Vec<String>,
    /// Running statistics, which no gradient changes.
    pub(crate) states: BTreeSet<String>,
    /// Matrices whose rows are looked up by id, with sparse gradients.
    pub(crate) embeddings: BTreeSet<String>,
}

impl ProgramNames {
    pub(crate) fn read(file: &[u8]) -> Result<Self, Wrong> {
        let wrong = |got: String| Wrong::at(0, "a PaddlePaddle program (protobuf)", got);
        let program = ProgramDesc::decode(file).map_err(|error| wrong(error.to_string()))?;
        if program.blocks.is_empty() {
            return Err(wrong("a message without blocks".to_owned()));
        }
        let mut saved = BTreeSet::new();
        let (mut states, mut embeddings) = (BTreeSet::new(), BTreeSet::new());
        for block in program.blocks {
            let is_saved = |variable: &VariableDesc| {
                let kind = variable.kind.as_ref().map(|kind| kind.kind);
                variable.persistable == Some(true) && kind == Some(DENSE_TENSOR)
            };
            saved.extend(block.variables.into_iter().filter(is_saved).map(|variable| variable.name));
            for op in block.ops {
                let (parameters, names): (&[&str], _) = match op.kind.as_str() {
                    "batch_norm" | "sync_batch_norm" => (&["Mean", "Variance"], &mut states),
                    "auc" => (&["StatPos", "StatNeg"], &mut states),
                    _ if op.looks_up_rows() => (&["W"], &mut embeddings),
                    _ => continue,
                };
                let of_op = op.inputs.into_iter().filter(|input| parameters.contains(&input.parameter.as_str()));
                names.extend(of_op.flat_map(|input| input.arguments));
            }
        }
        Ok(ProgramNames { saved: saved.into_iter().collect(), states, embeddings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with these saved variables, a batch norm with statistics `mean` and `variance`, and lookups in
    /// `embedding`, by sparse gradients, and in `small`.
    fn written(names: &[&str]) -> Vec<u8> {
        let variable = |name: &str, kind, persistable| VariableDesc {
            name: name.to_owned(),
            kind: Some(VariableKind { kind }),
            persistable: Some(persistable),
        };
        let mut variables: Vec<_> = names.iter().map(|name| variable(name, DENSE_TENSOR, true)).collect();
        // `feed` and `fetch` are persistable and hold no tensor.
        variables.extend([variable("feed", 9, true), variable("tmp_0", DENSE_TENSOR, false)]);
        let input = |parameter: &str, name: &str| OpArgument {
            parameter: parameter.to_owned(),
            arguments: vec![name.to_owned()],
        };
        let lookup = |name: &str, is_sparse| OpDesc {
            inputs: vec![input("W", name)],
            kind: "lookup_table_v2".to_owned(),
            attributes: vec![Attribute { name: "is_sparse".to_owned(), truth: Some(is_sparse) }],
        };
        let ops = vec![
            OpDesc {
                inputs: vec![input("X", "tmp_0"), input("Mean", "mean"), input("Variance", "variance")],
                kind: "batch_norm".to_owned(),
                attributes: vec![],
            },
            lookup("embedding", true),
            lookup("small", false),
        ];
        ProgramDesc { blocks: vec![BlockDesc { variables, ops }] }.encode_to_vec()
    }

    #[test]
    fn a_program_names_what_it_saves() {
        let names = ProgramNames::read(&written(&["w", "mean", "b"])).unwrap();
        assert_eq!(names.saved, ["b", "mean", "w"]);
        assert_eq!(names.states, ["mean", "variance"].map(str::to_owned).into());
        assert_eq!(names.embeddings, ["embedding"].map(str::to_owned).into());
    }

    #[test]
    fn other_files_are_no_programs() {
        for file in [b"".as_slice(), b"\x80\x02}q\x00.", b"PK\x03\x04", &[0xff; 100]] {
            assert!(ProgramNames::read(file).is_err());
        }
        let file = written(&["w", "b"]);
        (0..file.len()).for_each(|end| drop(ProgramNames::read(&file[..end])));
    }
}
