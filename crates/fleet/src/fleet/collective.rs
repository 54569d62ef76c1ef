//! The calls that all workers of a job make together.

use openfleet_dist::Reduce;
use openfleet_engine::dataset::InMemoryDataset;

use super::Fleet;
use crate::error::Result;

impl Fleet {
    /// Waits until all workers that have not departed have called it.
    pub fn barrier_worker(&self) -> Result<()> {
        match self.working("barrier_worker")? {
            Some(cluster) => Ok(cluster.barrier()?),
            None => Ok(()),
        }
    }

    /// Reduces the values of all workers element by element and gives every worker the result. All workers call it with the
    /// same number of values.
    pub fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        match self.working("all_reduce")? {
            Some(cluster) => Ok(cluster.all_reduce(op, values)?),
            None => Ok(()),
        }
    }

    /// Distributes the rows of all workers' datasets at random over all workers, each row to one worker. All workers that have
    /// not departed call it; a worker without files may have loaded no rows. Rows travel through the servers, which hold a few
    /// megabytes per worker at a time. After an error the dataset is empty.
    pub fn global_shuffle(&self, dataset: &mut InMemoryDataset, seed: u64) -> Result<()> {
        let Some(cluster) = self.working("global_shuffle")? else {
            return Ok(dataset.local_shuffle(seed)?);
        };
        // Find the workers that have not departed: each sets its own position.
        let worker = cluster.worker();
        let mut present = vec![0.0; worker.count as usize];
        present[worker.rank as usize] = 1.0;
        cluster.all_reduce(Reduce::Sum, &mut present)?;
        let members: Vec<u32> = (0..worker.count).filter(|&rank| present[rank as usize] > 0.0).collect();
        let rank = members.iter().position(|&member| member == worker.rank).unwrap_or(0);
        let exchange = |parts: Vec<Vec<u8>>| -> Result<Vec<Vec<u8>>> {
            let parts: Vec<(u32, Vec<u8>)> = members.iter().copied().zip(parts).collect();
            Ok(cluster.all_to_all(&parts)?.into_iter().map(|(_, part)| part).collect())
        };
        dataset.global_shuffle(seed, rank, members.len(), exchange)
    }
}
