//! The command that each process runs, from SCRIPT and the options around it.
//!
//! All processes of a job run the same command; only the environment says which of them is a server.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::environment::Variable;
use super::error::Error;
use super::options::CommandWords;
use crate::error::{Error as OptionError, Result};

/// The module that makes `import paddle` work in PaddlePaddle scripts.
const COMPAT: &str = "openfleet.compat";

/// A command, program first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub words: Vec<OsString>,
    /// Whether it is Python, whose output must be unbuffered.
    pub is_python: bool,
    /// The script's name without directories and extension, for the name of the job.
    pub stem: String,
}

impl Program {
    /// Resolves and finds the command on this machine. `python` is the caller's interpreter, if the caller is one; `beside` is
    /// searched for programs before the PATH.
    pub(crate) fn find(words: &CommandWords, python: Option<&Path>, beside: Option<&Path>) -> Result<Self> {
        let mut program = Program::elsewhere(words, python)?;
        let is_script = program.is_python && !words.module;
        if let Some(script) = words.command.first().filter(|_| is_script).map(Path::new)
            && !script.is_file()
        {
            return Err(Error::NoScript { path: script.to_owned() }.into());
        }
        if let Some(first) = program.words.first_mut() {
            // A program that is not Python may be next to `fleetrun`; Python is found on the user's PATH.
            let beside = beside.filter(|_| !program.is_python);
            *first = find(first, beside)?.into_os_string();
        }
        Ok(program)
    }

    /// Resolves the command for another machine, whose files are not visible.
    pub(crate) fn elsewhere(words: &CommandWords, python: Option<&Path>) -> Result<Self> {
        let Some(script) = words.command.first() else {
            return Err(OptionError::MissingOption {
                option: "SCRIPT",
                owner: "`fleetrun`".into(),
                remedy: "end the command with a script, `-m` and a module, or a program",
            });
        };
        let has_python_ending = has_python_ending(script);
        if words.module && has_python_ending {
            return Err(OptionError::BadOption {
                option: "-m",
                expected: "the name of a module, as in `package.train`",
                got: script.to_string_lossy().into_owned(),
            });
        }
        let is_python = words.module || has_python_ending;
        if !is_python {
            let meaningless = [("--python", words.python.is_some()), ("--compat", words.compat)];
            if let Some((option, _)) = meaningless.into_iter().find(|(_, given)| *given) {
                let owner = format!("the program `{}`", script.to_string_lossy());
                return Err(OptionError::MeaninglessOption { option, owner, takers: "Python scripts and modules" });
            }
        }
        let mut all: Vec<OsString> = Vec::new();
        if is_python {
            let chosen = words.python.as_deref().or(python).unwrap_or(Path::new("python3"));
            all.push(chosen.into());
            if words.compat {
                all.extend(["-m".into(), COMPAT.into()]);
            }
            if words.module {
                all.push("-m".into());
            }
        }
        all.extend(words.command.iter().cloned());
        let stem = Path::new(script).file_stem().unwrap_or(script).to_string_lossy().into_owned();
        Ok(Program { words: all, is_python, stem })
    }
}

/// Makes Python write its output lines immediately.
const UNBUFFERED: &str = "PYTHONUNBUFFERED";

impl Program {
    /// The variable that makes Python write its output lines immediately, unless the user has set it.
    pub(crate) fn unbuffered(&self) -> Option<Variable> {
        let is_needed = self.is_python && std::env::var_os(UNBUFFERED).is_none();
        is_needed.then(|| (UNBUFFERED, "1".to_owned()))
    }
}

fn has_python_ending(script: &OsStr) -> bool {
    let ending = Path::new(script).extension().and_then(OsStr::to_str);
    ending.is_some_and(|ending| ["py", "pyc", "pyz"].contains(&ending))
}

/// Finds a program as a shell does, but next to `fleetrun` first: `fleetrun openfleet` means the one that was installed with
/// it.
fn find(name: &OsStr, beside: Option<&Path>) -> Result<PathBuf> {
    let missing = |looked: String, here: bool| Error::NoProgram { name: name.to_string_lossy().into(), looked, here };
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match is_executable(&path) {
            true => Ok(path),
            false if path.exists() => Err(missing("as something that may be executed".into(), false).into()),
            false => Err(missing("at this path".into(), false).into()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = beside.map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let found = directories.map(|directory| directory.join(name)).find(|path| is_executable(path));
    found.ok_or_else(|| missing("beside `fleetrun` or on the PATH".into(), is_executable(Path::new(name))).into())
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(words: CommandWords) -> String {
        let program = Program::elsewhere(&words, Some(Path::new("/env/bin/python"))).unwrap();
        program.words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn scripts_modules_and_programs_become_words() {
        let command = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let script = || CommandWords { command: command(&["a/train.py", "-m", "x"]), ..CommandWords::default() };
        assert_eq!(resolved(script()), "/env/bin/python a/train.py -m x");
        assert_eq!(resolved(CommandWords { python: Some("pypy".into()), ..script() }), "pypy a/train.py -m x");
        assert_eq!(
            resolved(CommandWords { compat: true, ..script() }),
            "/env/bin/python -m openfleet.compat a/train.py -m x"
        );
        let module =
            || CommandWords { module: true, command: command(&["pack.train", "--lr=1"]), ..CommandWords::default() };
        assert_eq!(resolved(module()), "/env/bin/python -m pack.train --lr=1");
        assert_eq!(
            resolved(CommandWords { compat: true, ..module() }),
            "/env/bin/python -m openfleet.compat -m pack.train --lr=1"
        );
        let program = CommandWords { command: command(&["openfleet", "train"]), ..CommandWords::default() };
        assert_eq!(resolved(program), "openfleet train");
    }

    #[test]
    fn a_program_beside_the_launcher_comes_before_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("sh");
        std::fs::write(&own, "").unwrap();
        assert_ne!(find(OsStr::new("sh"), Some(directory.path())).unwrap(), own, "not executable");
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(OsStr::new("sh"), Some(directory.path())).unwrap(), own);
    }
}
