//! The calls that all workers of a job make together.

use openfleet_dist::Reduce;
use openfleet_dist::collective::Element;
use openfleet_engine::dataset::InMemoryDataset;

use super::{Fleet, Others};
use crate::error::Result;

impl Fleet {
    /// Waits until all workers that have not departed have called it.
    pub fn barrier_worker(&self) -> Result<()> {
        match self.working("barrier_worker")? {
            Others::Servers(cluster) => Ok(cluster.barrier()?),
            Others::Ranks(group) => Ok(group.barrier()?),
            Others::Nobody => Ok(()),
        }
    }

    /// Reduces the values of all workers element by element and gives every worker the result. All workers call it with the
    /// same number of values. Servers compute with 64-bit floats, so integers are exact up to 2^53 there; a collective job
    /// computes with the type of the values.
    pub fn all_reduce<T: Element>(&self, op: Reduce, values: &mut [T]) -> Result<()> {
        match self.working("all_reduce")? {
            Others::Servers(cluster) => {
                let mut floats: Vec<f64> = values.iter().map(|value| value.to_f64()).collect();
                cluster.all_reduce(op, &mut floats)?;
                values.iter_mut().zip(floats).for_each(|(value, float)| *value = T::from_f64(float));
                Ok(())
            }
            Others::Ranks(group) => Ok(group.all_reduce(op, values)?),
            Others::Nobody => Ok(()),
        }
    }

    /// Distributes the rows of all workers' datasets at random over all workers, each row to one worker. All workers that have
    /// not departed call it; a worker without files may have loaded no rows. Rows travel through the servers, which hold a few
    /// megabytes per worker at a time. After an error the dataset is empty.
    pub fn global_shuffle(&self, dataset: &mut InMemoryDataset, seed: u64) -> Result<()> {
        let cluster = match self.working("global_shuffle")? {
            Others::Servers(cluster) => cluster,
            Others::Ranks(group) => {
                let exchange = |parts: Vec<Vec<u8>>| -> Result<Vec<Vec<u8>>> { Ok(group.all_to_all(&parts)?) };
                return dataset.global_shuffle(seed, group.rank(), group.size(), exchange);
            }
            Others::Nobody => return Ok(dataset.local_shuffle(seed)?),
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
