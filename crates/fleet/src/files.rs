//! Expands the patterns of `--train` and similar options to a list of files.

use std::path::{Path, PathBuf};

use openfleet_engine::dataset;

use crate::error::{Error, Result};

/// The files of all patterns, sorted, without duplicates. A pattern may contain several patterns separated by commas.
///
/// # Errors
/// If a pattern is invalid or matches no file.
pub(crate) fn expand(patterns: &[String]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for given in patterns {
        // A file name may contain a comma: an existing file is taken as it is.
        if Path::new(given).is_file() {
            files.push(PathBuf::from(given));
            continue;
        }
        for pattern in given.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()) {
            let before = files.len();
            let found = glob::glob(pattern).map_err(|source| Error::Pattern { pattern: pattern.to_owned(), source })?;
            for path in found {
                let path = path.map_err(|error| {
                    let path = error.path().to_owned();
                    Error::Io { action: "list", path, source: error.into() }
                })?;
                if !path.is_dir() {
                    files.push(path);
                }
            }
            if files.len() == before {
                let is_plain = !pattern.contains(['*', '?', '[']);
                return Err(match is_plain && !Path::new(pattern).is_dir() {
                    true => dataset::Error::MissingFile { file: pattern.into() },
                    false => dataset::Error::NoMatch { pattern: pattern.to_owned() },
                }
                .into());
            }
        }
    }
    if files.is_empty() {
        return Err(dataset::Error::NoMatch { pattern: patterns.join(",") }.into());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_with_commas_give_sorted_files_without_repetition() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c.csv", "d,e.txt"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("z.txt")).unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let names = |patterns: &[String]| -> Vec<String> {
            expand(patterns).unwrap().iter().map(|file| file.file_name().unwrap().display().to_string()).collect()
        };
        assert_eq!(names(&[format!("{},{}", at("*.txt"), at("c.csv"))]), ["a.txt", "b.txt", "c.csv", "d,e.txt"]);
        assert_eq!(names(&[at("d,e.txt"), at("a.txt"), at("a*")]), ["a.txt", "d,e.txt"]);
    }

    #[test]
    fn a_pattern_without_files_is_named() {
        let error = expand(&["no-such-*.txt".into()]).unwrap_err();
        assert_eq!(error.to_string(), "no file matches `no-such-*.txt`");
        let error = expand(&["no-such.txt".into()]).unwrap_err();
        assert_eq!(error.to_string(), "data file `no-such.txt` does not exist");
    }
}
