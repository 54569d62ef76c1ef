//! Placement over the servers of a job: dense parameters in blocks and sparse keys in buckets.
//!
//! Every process computes the same [`Placement`] from the same inputs (the parameters in program order, the number of servers,
//! the rule), so no communication is needed. There are two independent parts: a dense parameter is split into blocks
//! ([`mod@slice`]) that are assigned to servers ([`dispatch`]); a sparse key has a fixed bucket, and servers own ranges of
//! buckets ([`bucket`]). [`group`] sorts a batch's keys by server and restores the order of the replies.
//!
//! This module does not know what a row or a block contains, or how it is sent; a server is just a number.

pub mod bucket;
pub mod dispatch;
pub mod group;
pub mod slice;

use std::collections::HashSet;

pub use bucket::{BUCKET_COUNT, Buckets, bucket_of};
pub use dispatch::{Dispatcher, SplitMethod};
pub use group::Grouping;
pub use slice::{MIN_BLOCK_SIZE, SliceRule};

use crate::error::{Error, Result};
use crate::key::Key;

/// How dense parameters are split and assigned; the user's choice, already checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlacementRule {
    /// How a parameter is split into blocks.
    pub slice: SliceRule,
    /// How blocks are assigned to servers.
    pub split_method: SplitMethod,
}

/// A dense parameter as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenseParameter {
    /// Its name in the program.
    pub name: String,
    /// Its dimensions; empty for a scalar.
    pub shape: Vec<usize>,
    /// Whether it is one block, whatever its size and the rule are.
    pub is_whole: bool,
}

impl DenseParameter {
    /// A parameter of this name and shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        DenseParameter { name: name.into(), shape: shape.into(), is_whole: false }
    }

    /// Keeps it in one block if `is_whole`: for an update that needs all of it at once.
    pub fn whole_if(self, is_whole: bool) -> Self {
        DenseParameter { is_whole, ..self }
    }

    /// Number of elements; fails if there are none, or more than fit into `usize`.
    fn element_count(&self) -> Result<usize> {
        let count = self.shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(dim));
        count
            .filter(|&count| count > 0)
            .ok_or_else(|| Error::ParameterShape { name: self.name.clone(), shape: self.shape.clone() })
    }
}

/// A contiguous range of one parameter's elements, on one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Position of the parameter in [`Placement::parameters`].
    pub parameter: usize,
    /// Number of the block within the parameter, from 0.
    pub index: usize,
    /// The first element.
    pub offset: usize,
    /// Number of elements; never 0.
    pub length: usize,
    /// The server of the block.
    pub server: usize,
}

/// The servers of all dense blocks and all sparse keys of a job.
///
/// ```
/// use openfleet_core::placement::{DenseParameter, Grouping, Placement, PlacementRule};
///
/// let parameters = vec![DenseParameter::new("fc_0.w_0", [400, 400]), DenseParameter::new("fc_0.b_0", [400])];
/// let placement = Placement::new(parameters, 3, PlacementRule::default())?;
/// let lengths: Vec<_> = placement.blocks().iter().map(|block| (block.length, block.server)).collect();
/// assert_eq!(lengths, [(53_600, 0), (53_600, 1), (52_800, 2), (400, 0)]);
///
/// let keys = [7, 0, 9];
/// let mut grouping = Grouping::new();
/// placement.group(&keys, &mut grouping);
/// let mut back = [0; 3];
/// for server in 0..placement.server_count() {
///     grouping.gather(server, 1, grouping.keys(server), &mut back)?;
/// }
/// assert_eq!(back, keys);
/// # Ok::<(), openfleet_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    parameters: Vec<DenseParameter>,
    /// In parameter order, then by offset: the order in which they were assigned.
    blocks: Vec<Block>,
    /// Index of each parameter's first block, then the number of blocks.
    first_block: Vec<usize>,
    buckets: Buckets,
}

impl Placement {
    /// Places `parameters`, in program order, and all keys on `server_count` servers.
    ///
    /// Fails if there is no server or more than [`BUCKET_COUNT`], if two parameters share a name (which identifies them in
    /// checkpoints and for `HashName`), or if one has no elements.
    pub fn new(parameters: Vec<DenseParameter>, server_count: usize, rule: PlacementRule) -> Result<Self> {
        let buckets = Buckets::new(server_count)?;
        let mut names = HashSet::with_capacity(parameters.len());
        let mut dispatcher = Dispatcher::new(rule.split_method, server_count);
        let mut blocks = Vec::with_capacity(parameters.len());
        let mut first_block = Vec::with_capacity(parameters.len() + 1);
        for (position, parameter) in parameters.iter().enumerate() {
            if !names.insert(parameter.name.as_str()) {
                return Err(Error::DuplicateParameter { name: parameter.name.clone() });
            }
            let element_count = parameter.element_count()?;
            let row_length = element_count / parameter.shape.first().copied().unwrap_or(1);
            let block_length = match parameter.is_whole {
                true => element_count,
                false => rule.slice.block_length(element_count, row_length, server_count),
            };
            first_block.push(blocks.len());
            for (index, offset) in (0..element_count).step_by(block_length).enumerate() {
                blocks.push(Block {
                    parameter: position,
                    index,
                    offset,
                    length: block_length.min(element_count - offset),
                    server: dispatcher.server_of(&parameter.name, index),
                });
            }
        }
        first_block.push(blocks.len());
        drop(names);
        Ok(Placement { parameters, blocks, first_block, buckets })
    }

    /// Number of servers.
    pub fn server_count(&self) -> usize {
        self.buckets.server_count()
    }

    /// The dense parameters, as they were given.
    pub fn parameters(&self) -> &[DenseParameter] {
        &self.parameters
    }

    /// All blocks, in parameter order and then by offset.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks of one parameter, by offset; together they cover it.
    ///
    /// # Panics
    /// If there is no such parameter.
    pub fn blocks_of(&self, parameter: usize) -> &[Block] {
        &self.blocks[self.first_block[parameter]..self.first_block[parameter + 1]]
    }

    /// The dense blocks of one server, in parameter order; may be empty.
    pub fn blocks_on(&self, server: usize) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.server == server)
    }

    /// A block's name, used by `HashName` and as the name of its table: `fc_0.w_0.block2`.
    pub fn block_name(&self, block: &Block) -> String {
        dispatch::block_name(&self.parameters[block.parameter].name, block.index)
    }

    /// Which buckets, and so which keys, each server owns.
    pub fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// The server of a key's row.
    #[inline]
    pub fn server_of(&self, key: Key) -> usize {
        self.buckets.server_of(key)
    }

    /// Sorts `keys` by server into `grouping`, whose memory is reused.
    pub fn group(&self, keys: &[Key], grouping: &mut Grouping) {
        grouping.group(self.buckets, keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(parameters: &[(&str, &[usize])], server_count: usize, rule: PlacementRule) -> Result<Placement> {
        let parameters = parameters.iter().map(|(name, shape)| DenseParameter::new(*name, *shape)).collect();
        Placement::new(parameters, server_count, rule)
    }

    #[test]
    fn round_robin_runs_one_cursor_over_the_blocks_of_all_parameters() {
        let parameters: &[(&str, &[usize])] = &[("w0", &[400, 400]), ("b0", &[400]), ("w1", &[16_384]), ("b1", &[])];
        let placement = place(parameters, 3, PlacementRule::default()).unwrap();
        let servers: Vec<usize> = placement.blocks().iter().map(|block| block.server).collect();
        // w0 in three, b0 whole, w1 in two, b1 whole: seven blocks assigned 0, 1, 2, 0, 1, 2, 0.
        assert_eq!(servers, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(placement.blocks_of(2).len(), 2);
        assert_eq!(placement.block_name(&placement.blocks_of(2)[1]), "w1.block1");
        assert_eq!(placement.blocks_on(0).map(|block| block.parameter).collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn hash_name_goes_by_the_name_alone() {
        let rule = PlacementRule { split_method: SplitMethod::HashName, ..PlacementRule::default() };
        let forward = place(&[("a", &[10]), ("b", &[16_384])], 5, rule).unwrap();
        let backward = place(&[("b", &[16_384]), ("a", &[10])], 5, rule).unwrap();
        assert_eq!(forward.blocks_of(0)[0].server, backward.blocks_of(1)[0].server);
        let servers = |blocks: &[Block]| blocks.iter().map(|block| block.server).collect::<Vec<_>>();
        assert_eq!(servers(forward.blocks_of(1)), servers(backward.blocks_of(0)));
    }

    #[test]
    fn a_parameter_that_is_needed_whole_is_one_block_among_others_that_are_split() {
        let parameters = ["w0", "w1"].map(|name| DenseParameter::new(name, [400, 400]).whole_if(name == "w0"));
        let placement = Placement::new(parameters.into(), 3, PlacementRule::default()).unwrap();
        assert_eq!(placement.blocks_of(0), [Block { parameter: 0, index: 0, offset: 0, length: 160_000, server: 0 }]);
        assert_eq!(placement.blocks_of(1).len(), 3);
    }

    #[test]
    fn whole_parameters_have_one_block_each() {
        let slice = SliceRule::new(false, MIN_BLOCK_SIZE).unwrap();
        let placement = place(&[("w", &[1000, 1000])], 4, PlacementRule { slice, ..PlacementRule::default() }).unwrap();
        assert_eq!(placement.blocks(), [Block { parameter: 0, index: 0, offset: 0, length: 1_000_000, server: 0 }]);
    }

    #[test]
    fn a_parameter_that_cannot_be_placed_is_an_error() {
        let rule = PlacementRule::default();
        assert_eq!(
            place(&[("w", &[1]), ("w", &[2])], 1, rule),
            Err(Error::DuplicateParameter { name: "w".into() }),
            "names are identities"
        );
        let shapes: [&[usize]; 3] = [&[0], &[3, 0, 5], &[usize::MAX, 2]];
        for shape in shapes {
            let expected = Error::ParameterShape { name: "w".into(), shape: shape.to_vec() };
            assert_eq!(place(&[("w", shape)], 1, rule), Err(expected), "{shape:?}");
        }
        assert_eq!(place(&[], 0, rule), Err(Error::ServerCount { got: 0 }));
        assert_eq!(place(&[], BUCKET_COUNT + 1, rule), Err(Error::ServerCount { got: 4097 }));
    }

    proptest! {
        #[test]
        fn every_element_of_every_parameter_is_in_exactly_one_block(
            shapes in prop::collection::vec(prop::collection::vec(1_usize..300, 0..4), 0..6),
            server_count in 1_usize..40,
            min_block_size in MIN_BLOCK_SIZE..40_000,
            slice_var_up: bool,
            hash_name: bool,
        ) {
            let rule = PlacementRule {
                slice: SliceRule::new(slice_var_up, min_block_size).unwrap(),
                split_method: if hash_name { SplitMethod::HashName } else { SplitMethod::RoundRobin },
            };
            let parameters: Vec<_> =
                shapes.iter().enumerate().map(|(i, shape)| DenseParameter::new(format!("p{i}"), shape.clone())).collect();
            let placement = Placement::new(parameters, server_count, rule).unwrap();
            for (position, shape) in shapes.iter().enumerate() {
                let blocks = placement.blocks_of(position);
                prop_assert!(!blocks.is_empty() && blocks.len() <= server_count);
                let mut end = 0;
                for (index, block) in blocks.iter().enumerate() {
                    prop_assert_eq!((block.parameter, block.index, block.offset), (position, index, end));
                    prop_assert!(block.length > 0 && block.server < server_count);
                    end += block.length;
                }
                prop_assert_eq!(end, shape.iter().product::<usize>());
            }
            let on_servers: usize = (0..server_count).map(|server| placement.blocks_on(server).count()).sum();
            prop_assert_eq!(on_servers, placement.blocks().len());
            if !hash_name {
                let counts: Vec<_> = (0..server_count).map(|server| placement.blocks_on(server).count()).collect();
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
        }
    }
}
