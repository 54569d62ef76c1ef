//! The job's shared secret: from a file, from the environment, or newly made for a job on one machine.
//!
//! It is passed on only in the environment, because others can read command lines and logs.

use std::path::Path;

use super::error::Error;
use crate::error::{Error as OptionError, Result};
use crate::variables::SECRET;

/// A secret that `Debug` does not print.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    /// 32 random bytes in hexadecimal.
    pub(crate) fn fresh() -> Self {
        let bytes = [openfleet_dist::handshake::fresh_nonce(), openfleet_dist::handshake::fresh_nonce()].concat();
        Secret(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The user's secret, or a new one if no other machine needs it. A dry run needs none.
    pub(crate) fn find(file: Option<&Path>, is_whole: bool, dry_run: bool) -> Result<Self> {
        if let Some(file) = file {
            let text = std::fs::read_to_string(file).map_err(OptionError::io("read the secret", file))?;
            let text = text.trim();
            return match text.is_empty() || text.contains('\0') {
                true => Err(OptionError::BadOption {
                    option: "--secret-file",
                    expected: "a file with a line of text",
                    got: file.display().to_string(),
                }),
                false => Ok(Secret(text.to_owned())),
            };
        }
        match std::env::var(SECRET) {
            Ok(secret) if !secret.is_empty() => Ok(Secret(secret)),
            _ if is_whole || dry_run => Ok(Secret::fresh()),
            _ => Err(Error::NoSecret.into()),
        }
    }

    /// For the environment of a process.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_secrets_differ_and_do_not_show_themselves() {
        let (one, other) = (Secret::fresh(), Secret::fresh());
        assert!(one.expose() != other.expose() && one.expose().len() == 64);
        assert_eq!(format!("{one:?}"), "Secret(hidden)");
    }

    #[test]
    fn a_file_is_read_without_its_line_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("secret");
        std::fs::write(&file, "swordfish\n").unwrap();
        assert_eq!(Secret::find(Some(&file), false, false).unwrap().expose(), "swordfish");
        std::fs::write(&file, "\n").unwrap();
        let error = Secret::find(Some(&file), true, false).unwrap_err().to_string();
        assert!(error.starts_with("`--secret-file`: expected a file with a line of text"), "{error}");
    }
}
