//! Splits a file list among workers.

/// The files of one worker: a contiguous block of the list. The first `files % worker_count` workers get one file more.
///
/// Every worker must pass the same list in the same order. The block is empty if there are more workers than files, or if
/// `worker_index` is not below `worker_count`.
pub fn split_files<F>(files: &[F], worker_index: usize, worker_count: usize) -> &[F] {
    if worker_index >= worker_count {
        return &[];
    }
    let block = files.len() / worker_count;
    let longer = files.len() % worker_count;
    let start = worker_index * block + worker_index.min(longer);
    let end = start + block + usize::from(worker_index < longer);
    &files[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_to_workers_in_contiguous_blocks_the_first_ones_longer() {
        // files, workers -> the block of each worker
        let table: &[(usize, usize, &[&[usize]])] = &[
            (5, 1, &[&[0, 1, 2, 3, 4]]),
            (5, 2, &[&[0, 1, 2], &[3, 4]]),
            (6, 3, &[&[0, 1], &[2, 3], &[4, 5]]),
            (7, 3, &[&[0, 1, 2], &[3, 4], &[5, 6]]),
            (8, 3, &[&[0, 1, 2], &[3, 4, 5], &[6, 7]]),
            // more workers than files: the last have none
            (2, 4, &[&[0], &[1], &[], &[]]),
            (0, 2, &[&[], &[]]),
        ];
        for (files, workers, blocks) in table {
            let files: Vec<usize> = (0..*files).collect();
            for (index, block) in blocks.iter().enumerate() {
                assert_eq!(split_files(&files, index, *workers), *block, "{} files, worker {index}", files.len());
            }
        }
    }

    #[test]
    fn a_worker_outside_the_count_has_no_files() {
        assert!(split_files(&["a"], 1, 1).is_empty());
        assert!(split_files(&["a"], 0, 0).is_empty());
    }
}
