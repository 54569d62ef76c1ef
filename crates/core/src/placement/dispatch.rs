//! Which server gets the next dense block.
//!
//! `RoundRobin` assigns blocks in turn, with one cursor over all parameters in program order, so servers differ by at most one
//! block. `HashName` uses only the block's name: adding a parameter to the program moves no other one. The hash is XXH3, part
//! of the format like those of `key`; a per-process hash like Python's would give every process another placement.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How blocks are assigned to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum SplitMethod {
    /// In turn.
    #[default]
    RoundRobin,
    /// By a fixed hash of the block's name.
    HashName,
}

impl SplitMethod {
    /// The name a user writes.
    pub fn name(self) -> &'static str {
        match self {
            SplitMethod::RoundRobin => "RoundRobin",
            SplitMethod::HashName => "HashName",
        }
    }

    /// The method with this name; accepts PaddlePaddle's class names and the spelling of a configuration file.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "RoundRobin" | "round_robin" => Ok(SplitMethod::RoundRobin),
            "HashName" | "hash_name" => Ok(SplitMethod::HashName),
            _ => Err(Error::OptionChoice {
                name: "split_method",
                got: name.to_owned(),
                choices: &["RoundRobin", "HashName"],
            }),
        }
    }
}

/// Assigns the blocks of one placement.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    method: SplitMethod,
    server_count: usize,
    /// The next server of `RoundRobin`.
    cursor: usize,
}

impl Dispatcher {
    /// Starts at server 0 of `server_count`, which is not 0.
    pub fn new(method: SplitMethod, server_count: usize) -> Self {
        Dispatcher { method, server_count, cursor: 0 }
    }

    /// The server of the next block; `RoundRobin` must be called once per block, in order.
    pub fn server_of(&mut self, parameter: &str, index: usize) -> usize {
        match self.method {
            SplitMethod::RoundRobin => {
                let server = self.cursor;
                self.cursor = (server + 1) % self.server_count;
                server
            }
            SplitMethod::HashName => {
                let hash = xxhash_rust::xxh3::xxh3_64(block_name(parameter, index).as_bytes());
                (hash % self.server_count as u64) as usize
            }
        }
    }
}

/// `fc_0.w_0` and 2 make `fc_0.w_0.block2`; a parameter in one piece is `.block0`.
pub fn block_name(parameter: &str, index: usize) -> String {
    format!("{parameter}.block{index}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Hinted;

    #[test]
    fn round_robin_starts_at_the_first_server_and_wraps() {
        let mut dispatcher = Dispatcher::new(SplitMethod::RoundRobin, 3);
        let servers: Vec<usize> = (0..7).map(|index| dispatcher.server_of("w", index)).collect();
        assert_eq!(servers, [0, 1, 2, 0, 1, 2, 0]);
    }

    /// A change here would move every dense block of every saved job: these values are part of the format.
    #[test]
    fn hash_name_is_xxh3_of_the_block_name() {
        let rows = [
            // XXH3 with seed 0 of `fc_0.w_0.block0`, computed from its specification independently of the crate used here.
            ("fc_0.w_0", 0, 0x6735_b4a7_5db7_4fea_u64),
            // The next block has another server.
            ("fc_0.w_0", 1, 0x4606_3b7f_39d9_b807),
            // So has the bias.
            ("fc_0.b_0", 0, 0xc5b0_b138_d9b7_e8ec),
        ];
        for (parameter, index, hash) in rows {
            for server_count in [1_usize, 2, 3, 5, 4096] {
                let server = Dispatcher::new(SplitMethod::HashName, server_count).server_of(parameter, index);
                assert_eq!(server as u64, hash % server_count as u64, "{parameter} {index} on {server_count}");
            }
        }
    }

    #[test]
    fn split_methods_are_known_by_their_names() {
        for method in [SplitMethod::RoundRobin, SplitMethod::HashName] {
            assert_eq!(SplitMethod::parse(method.name()), Ok(method));
        }
        assert_eq!(SplitMethod::parse("hash_name"), Ok(SplitMethod::HashName));
        let error = SplitMethod::parse("HashNames").unwrap_err();
        assert_eq!(error.to_string(), "`split_method` cannot be `HashNames`");
        assert_eq!(error.hint().unwrap(), "did you mean `HashName`?");
    }
}
