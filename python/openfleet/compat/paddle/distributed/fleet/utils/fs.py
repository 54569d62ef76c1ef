"""`fleet.utils.fs`: files on the local disk and in HDFS, by the same methods.

HDFS is reached through the program `hadoop`. OpenFleet itself reads and writes `s3://` addresses wherever it saves and
loads, without a client.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from openfleet import compat


class ExecuteError(Exception):
    """A command of `hadoop` failed."""


class FSFileExistsError(Exception):
    """A file that should not exist does."""


class FSFileNotExistsError(Exception):
    """A file that should exist does not."""


class FSTimeOut(Exception):
    """A command of `hadoop` did not end in time."""


class FSShellCmdAborted(ExecuteError):
    """`hadoop` was aborted."""


class FS:
    """The methods of a file system. Subclasses override them."""

    def _missing(self, method: str) -> NoReturn:
        raise NotImplementedError(f"`{method}` of {type(self).__name__}")

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the directories and of the files in a directory."""
        self._missing("ls_dir")

    def list_dirs(self, fs_path: str) -> list[str]:
        """Returns the names of the directories in a directory."""
        return self.ls_dir(fs_path)[0]

    def is_exist(self, fs_path: str) -> bool:
        """Returns whether there is a file or directory of this name."""
        self._missing("is_exist")

    def is_dir(self, fs_path: str) -> bool:
        """Returns whether there is a directory of this name."""
        self._missing("is_dir")

    def is_file(self, fs_path: str) -> bool:
        """Returns whether there is a file of this name."""
        self._missing("is_file")

    def mkdirs(self, fs_path: str) -> None:
        """Creates a directory and those above it. Idempotent."""
        self._missing("mkdirs")

    def delete(self, fs_path: str) -> None:
        """Removes a file, or a directory with all that is in it. Idempotent."""
        self._missing("delete")

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Creates an empty file. Leaves an existing one as it is, or raises with `exist_ok=False`."""
        self._missing("touch")

    def mv(self, fs_src_path: str, fs_dst_path: str, overwrite: bool = False, test_exists: bool = True) -> None:
        """Renames a file or directory, in place of an existing one with `overwrite`."""
        self._missing("mv")

    def rename(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Renames a file or directory."""
        self.mv(fs_src_path, fs_dst_path)

    def upload(self, local_path: str, fs_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a local file, or what is in a local directory, to this file system."""
        self._missing("upload")

    def upload_dir(self, local_dir: str, dest_dir: str, overwrite: bool = False) -> None:
        """Copies a local directory, with its name, into a directory of this file system."""
        target = _joined(dest_dir, os.path.basename(local_dir.rstrip("/")))
        self.mkdirs(target)
        self.upload(local_dir, target, overwrite=overwrite)

    def download(self, fs_path: str, local_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a file, or what is in a directory, of this file system to the local disk."""
        self._missing("download")

    def cat(self, fs_path: str) -> str:
        """Returns the text of a file, without its last line break; an empty text if there is none."""
        self._missing("cat")

    def need_upload_download(self) -> bool:
        """Returns whether files have to be copied to be read with `open`."""
        self._missing("need_upload_download")


class LocalFS(FS):
    """Files on the local disk."""

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the directories and of the files in a directory, sorted."""
        names = sorted(os.listdir(_hdfs_or_local(fs_path))) if self.is_exist(fs_path) else []
        dirs = [name for name in names if os.path.isdir(os.path.join(fs_path, name))]
        return dirs, [name for name in names if name not in dirs]

    def is_exist(self, fs_path: str) -> bool:
        """Returns whether there is a file or directory of this name."""
        return os.path.exists(_hdfs_or_local(fs_path))

    def is_dir(self, fs_path: str) -> bool:
        """Returns whether there is a directory of this name."""
        return os.path.isdir(_hdfs_or_local(fs_path))

    def is_file(self, fs_path: str) -> bool:
        """Returns whether there is a file of this name."""
        return os.path.isfile(_hdfs_or_local(fs_path))

    def mkdirs(self, fs_path: str) -> None:
        """Creates a directory and those above it. Idempotent."""
        os.makedirs(_hdfs_or_local(fs_path), exist_ok=True)

    def delete(self, fs_path: str) -> None:
        """Removes a file, or a directory with all that is in it. Idempotent."""
        if self.is_dir(fs_path) and not os.path.islink(fs_path):
            shutil.rmtree(fs_path)
        elif os.path.lexists(fs_path):
            os.remove(fs_path)

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Creates an empty file. Leaves an existing one as it is, or raises with `exist_ok=False`."""
        if self.is_exist(fs_path) and not exist_ok:
            raise FSFileExistsError(f"`{fs_path}` exists already")
        with open(fs_path, "a"):
            pass

    def mv(self, fs_src_path: str, fs_dst_path: str, overwrite: bool = False, test_exists: bool = False) -> None:
        """Renames a file or directory, in place of an existing one with `overwrite`."""
        _check_move(self, fs_src_path, fs_dst_path, overwrite)
        shutil.move(fs_src_path, fs_dst_path)

    def upload(self, local_path: str, fs_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a file, or what is in a directory. Existing files are replaced with `overwrite` only."""
        if not self.is_exist(local_path):
            raise FSFileNotExistsError(f"`{local_path}` does not exist")
        sources = [local_path]
        if self.is_dir(local_path):
            self.mkdirs(fs_path)
            sources = [os.path.join(local_path, name) for name in sorted(os.listdir(local_path))]
        for source in sources:
            target = _target(self, source, fs_path)
            if self.is_exist(target) and not overwrite:
                raise FSFileExistsError(f"`{target}` exists already")
            if self.is_dir(source):
                shutil.copytree(source, target, dirs_exist_ok=True)
            else:
                shutil.copy(source, target)

    def download(self, fs_path: str, local_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a file, or what is in a directory. Existing files are replaced with `overwrite` only."""
        self.upload(fs_path, local_path, multi_processes, overwrite)

    def cat(self, fs_path: str) -> str:
        """Returns the text of a file, without its last line break; an empty text if there is none."""
        if not self.is_file(fs_path):
            return ""
        with open(fs_path) as file:
            return file.read().removesuffix("\n")

    def need_upload_download(self) -> bool:
        """Returns False: files are read in place."""
        return False


class HDFSClient(FS):
    """Files in HDFS, through the program `bin/hadoop` in `hadoop_home`.

    A command that fails is retried every `sleep_inter` milliseconds, three times in all. A command that runs longer
    than `time_out` milliseconds is stopped.
    """

    _ATTEMPTS = 3
    _ABORTED = 134
    """The exit code of a process that aborted."""

    def __init__(
        self,
        hadoop_home: str,
        configs: Mapping[str, Any] | None,
        time_out: int = 5 * 60 * 1000,
        sleep_inter: int = 1000,
    ) -> None:
        self._program = os.path.join(os.path.expandvars(hadoop_home), "bin", "hadoop")
        self._configs = [f"-D{name}={value}" for name, value in (configs or {}).items()]
        self._time_out, self._sleep_inter = time_out / 1000, sleep_inter / 1000

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the directories and of the files in a directory."""
        dirs: list[str] = []
        files: list[str] = []
        if self.is_exist(fs_path):
            for mode, _, path in self._entries([fs_path]):
                (dirs if mode.startswith("d") else files).append(path.rstrip("/").rpartition("/")[2])
        return dirs, files

    def is_exist(self, fs_path: str) -> bool:
        """Returns whether there is a file or directory of this name."""
        return self._test("-e", fs_path)

    def is_dir(self, fs_path: str) -> bool:
        """Returns whether there is a directory of this name."""
        return self._test("-d", fs_path)

    def is_file(self, fs_path: str) -> bool:
        """Returns whether there is a file of this name."""
        return self._test("-e", fs_path) and not self._test("-d", fs_path)

    def mkdirs(self, fs_path: str) -> None:
        """Creates a directory and those above it. Idempotent."""
        self._checked("-mkdir", "-p", fs_path)

    def delete(self, fs_path: str) -> None:
        """Removes a file, or a directory with all that is in it. Idempotent."""
        if self.is_exist(fs_path):
            self._checked("-rm", "-r", "-f", fs_path)

    def touch(self, fs_path: str, exist_ok: bool = True) -> None:
        """Creates an empty file. Leaves an existing one as it is, or raises with `exist_ok=False`."""
        if not self.is_exist(fs_path):
            self._checked("-touchz", fs_path)
        elif not exist_ok:
            raise FSFileExistsError(f"`{fs_path}` exists already")

    def mv(self, fs_src_path: str, fs_dst_path: str, overwrite: bool = False, test_exists: bool = True) -> None:
        """Renames a file or directory, in place of an existing one with `overwrite`."""
        if test_exists or overwrite:
            _check_move(self, fs_src_path, fs_dst_path, overwrite)
        try:
            self._checked("-mv", fs_src_path, fs_dst_path, attempts=1)
        except ExecuteError:
            # The command may fail after the move.
            if self.is_exist(fs_src_path) or not self.is_exist(fs_dst_path):
                raise

    def upload(self, local_path: str, fs_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a local file, or what is in a local directory, to HDFS, `multi_processes` at a time.

        Existing files are replaced with `overwrite` only.
        """
        if not os.path.exists(local_path):
            raise FSFileNotExistsError(f"`{local_path}` does not exist")
        sources = [local_path]
        if os.path.isdir(local_path):
            self.mkdirs(fs_path)
            sources = [os.path.join(local_path, name) for name in sorted(os.listdir(local_path))]
        into_directory = self.is_dir(fs_path)

        def put(source: str) -> None:
            target = _joined(fs_path, os.path.basename(source)) if into_directory else fs_path
            if self.is_exist(target):
                if not overwrite:
                    raise FSFileExistsError(f"`{target}` exists already")
                self.delete(target)
            self._checked("-put", "-f", source, target)

        _each(put, sources, multi_processes)

    def download(self, fs_path: str, local_path: str, multi_processes: int = 5, overwrite: bool = False) -> None:
        """Copies a file, or what is in a directory, to the local disk, `multi_processes` at a time.

        Existing files are replaced with `overwrite` only.
        """
        if not self.is_exist(fs_path):
            raise FSFileNotExistsError(f"`{fs_path}` does not exist")
        local, sources = LocalFS(), [fs_path]
        if self.is_dir(fs_path):
            local.mkdirs(local_path)
            sources = [path for _, _, path in self._entries([fs_path])]

        def get(source: str) -> None:
            target = _target(local, source.rstrip("/"), local_path)
            if local.is_exist(target):
                if not overwrite:
                    raise FSFileExistsError(f"`{target}` exists already")
                local.delete(target)
            # Under another name until it is complete, so that a half file is never taken for a whole one.
            self._checked("-get", source, f"{target}.part", before=lambda: local.delete(f"{target}.part"))
            os.replace(f"{target}.part", target)

        _each(get, sources, multi_processes)

    def cat(self, fs_path: str) -> str:
        """Returns the text of a file, without its last line break; an empty text if there is none."""
        return self._checked("-cat", fs_path).removesuffix("\n") if self.is_file(fs_path) else ""

    def list_files_info(self, path_list: Sequence[str]) -> list[dict[str, Any]]:
        """Returns `path` and `size` of each of some files."""
        if not path_list:
            return []
        return [{"path": path, "size": size} for _, size, path in self._entries(path_list)]

    def need_upload_download(self) -> bool:
        """Returns True: files are copied before they are read with `open`."""
        return True

    def _entries(self, paths: Sequence[str]) -> list[tuple[str, int, str]]:
        """Mode, size and path of each file that `-ls` lists."""
        found = []
        for line in self._checked("-ls", *paths).splitlines():
            # Mode, replicas, owner, group, size, day, time, path; the last may contain blanks.
            words = line.split(None, 7)
            if len(words) == 8:
                found.append((words[0], int(words[4]), words[7]))
        return found

    def _test(self, option: str, path: str) -> bool:
        run = self._run("-test", option, path)
        if run.returncode not in (0, 1):
            self._failed(["-test", option, path], run)
        return run.returncode == 0

    def _checked(self, *words: str, attempts: int | None = None, before: Any = None) -> str:
        """Runs a command until it succeeds, and returns its output."""
        attempts = self._ATTEMPTS if attempts is None else attempts
        for attempt in range(attempts):
            if attempt > 0:
                time.sleep(self._sleep_inter)
            if before is not None:
                before()
            run = self._run(*words)
            if run.returncode == 0:
                return run.stdout
        self._failed(words, run)

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        for word in words:
            _hdfs_or_local(word)
        if not os.access(self._program, os.X_OK):
            raise FileNotFoundError(
                f"there is no program `{self._program}`, which HDFSClient runs\n\n"
                "hint: give `hadoop_home` the directory with `bin/hadoop`; files on the local disk are those of "
                "`LocalFS`, and saving and loading take `s3://` addresses directly"
            )
        command = [self._program, "fs", *self._configs, *words]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=self._time_out)
        except subprocess.TimeoutExpired:
            # The settings are left out: they may hold a password.
            raise FSTimeOut(f"`hadoop fs {' '.join(words)}` did not end within {self._time_out:g} s") from None

    def _failed(self, words: Sequence[str], run: subprocess.CompletedProcess[str]) -> NoReturn:
        said = "".join(f": {line}" for line in run.stderr.strip().splitlines()[-1:])
        kind = FSShellCmdAborted if run.returncode == self._ABORTED else ExecuteError
        raise kind(f"`hadoop fs {' '.join(words)}` ended with exit code {run.returncode}{said}")


def _hdfs_or_local(path: str) -> str:
    """Returns a path. Raises for the address of an object store."""
    if re.match(r"(s3[an]?|gs|az|oss|obs|cos|bos|abfss?|wasbs?)://", path):
        raise NotImplementedError(
            f"`{path}` is an address of an object store, not of a file system\n\n"
            "hint: give `s3://`, `gs://` and `az://` addresses to the functions that save and load, such as "
            "`fleet.save_persistables`; they need no client"
        )
    return path


def _joined(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _target(fs: FS, source: str, path: str) -> str:
    """Where a copy of `source` goes: into a directory under its own name, or else to that name."""
    return _joined(path, source.rstrip("/").rpartition("/")[2]) if fs.is_dir(path) else path


def _check_move(fs: FS, source: str, target: str, overwrite: bool) -> None:
    if not fs.is_exist(source):
        raise FSFileNotExistsError(f"`{source}` does not exist")
    if overwrite:
        fs.delete(target)
    if fs.is_exist(target):
        raise FSFileExistsError(f"`{target}` exists already")


def _each(copy: Any, sources: Sequence[str], count: int) -> None:
    with ThreadPoolExecutor(max(1, count)) as pool:
        for done in [pool.submit(copy, source) for source in sources]:
            done.result()


__all__ = [
    "ExecuteError",
    "FS",
    "FSFileExistsError",
    "FSFileNotExistsError",
    "FSShellCmdAborted",
    "FSTimeOut",
    "HDFSClient",
    "LocalFS",
]
__getattr__ = compat.absent(__name__, __all__)
