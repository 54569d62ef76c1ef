"""`fleet.utils.fs`: files on the local disk, and in HDFS through a stand-in for the program `hadoop`."""

import importlib
import os

import pytest

import openfleet.compat.paddle as paddle
from openfleet.compat.paddle.distributed.fleet.utils import fs as module
from openfleet.compat.paddle.distributed.fleet.utils.fs import (
    ExecuteError,
    FSFileExistsError,
    FSFileNotExistsError,
    FSShellCmdAborted,
    FSTimeOut,
    HDFSClient,
    LocalFS,
)

# `hadoop fs` over a local directory. It notes each call in `calls`.
HADOOP = r"""#!/bin/sh
root=ROOT
echo "$*" >> "$root.calls"
shift
while [ "${1#-D}" != "$1" ]; do shift; done
command=$1; shift
if [ -e "$root.broken" ]; then
    rm "$root.broken"; echo "connection reset" >&2; exit 1
fi
at() { echo "$root/${1#hdfs://*/}"; }
case $command in
    -test) test "$1" "$(at "$2")" ;;
    -mkdir) mkdir -p "$(at "$2")" ;;
    -touchz) : > "$(at "$1")" ;;
    -rm) rm -r "$(at "$3")" ;;
    -mv) mv "$(at "$1")" "$(at "$2")" ;;
    -put) cp -r "$2" "$(at "$3")" ;;
    -get) cp -r "$(at "$1")" "$2" ;;
    -cat) cat "$(at "$1")" ;;
    -abort) exit 134 ;;
    -sleep) exec sleep 10 ;;
    -ls)
        echo "Found some items"
        for path in "$@"; do
            if [ -d "$(at "$path")" ]; then
                for name in $(ls "$(at "$path")"); do
                    mode=-rw-r--r--; test -d "$(at "$path/$name")" && mode=drwxr-xr-x
                    size=$(stat -c %s "$(at "$path/$name")")
                    echo "$mode   3 user group $size 2024-01-01 10:00 $path/$name"
                done
            else
                echo "-rw-r--r--   3 user group $(stat -c %s "$(at "$path")") 2024-01-01 10:00 $path"
            fi
        done ;;
    *) echo "$command: Unknown command" >&2; exit 255 ;;
esac
"""


@pytest.fixture
def client(tmp_path):
    program = tmp_path / "home" / "bin" / "hadoop"
    program.parent.mkdir(parents=True)
    (tmp_path / "cluster").mkdir()
    program.write_text(HADOOP.replace("ROOT", str(tmp_path / "cluster")))
    program.chmod(0o755)
    configs = {"fs.default.name": "hdfs://name:9000", "hadoop.job.ugi": "user,secret"}
    return HDFSClient(str(tmp_path / "home"), configs, sleep_inter=1)


@pytest.fixture(params=["local", "hdfs"])
def fs(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return LocalFS() if request.param == "local" else request.getfixturevalue("client")


def test_files_and_directories_are_made_listed_moved_and_removed(fs):
    assert not fs.is_exist("models") and fs.ls_dir("models") == ([], []) and fs.list_dirs("models") == []
    fs.mkdirs("models/day1")
    fs.mkdirs("models/day1")
    fs.touch("models/done")
    fs.touch("models/done")
    with pytest.raises(FSFileExistsError, match="`models/done` exists already"):
        fs.touch("models/done", exist_ok=False)
    assert fs.ls_dir("models") == (["day1"], ["done"]) and fs.list_dirs("models") == ["day1"]
    assert fs.is_dir("models") and not fs.is_file("models") and fs.is_file("models/done")
    fs.mv("models/done", "models/ready", test_exists=True)
    fs.rename("models/day1", "models/day2")
    assert fs.ls_dir("models") == (["day2"], ["ready"])
    with pytest.raises(FSFileNotExistsError, match="`models/done` does not exist"):
        fs.mv("models/done", "models/other", test_exists=True)
    fs.touch("models/other")
    with pytest.raises(FSFileExistsError, match="`models/other` exists already"):
        fs.mv("models/ready", "models/other", test_exists=True)
    fs.mv("models/ready", "models/other", overwrite=True)
    assert fs.ls_dir("models") == (["day2"], ["other"])
    fs.delete("models/other")
    fs.delete("models")
    fs.delete("models")
    assert not fs.is_exist("models")


def test_files_and_directories_are_copied_there_and_back(fs, tmp_path):
    here = tmp_path / "here"
    (here / "part").mkdir(parents=True)
    (here / "a").write_text("first\n")
    (here / "part" / "b").write_text("second\n")
    fs.mkdirs("store")
    fs.upload(str(here / "a"), "store")
    assert fs.cat("store/a") == "first" and fs.cat("store/none") == ""
    fs.upload(str(here / "a"), "store/copy")
    with pytest.raises(FSFileExistsError, match="`store/a` exists already"):
        fs.upload(str(here / "a"), "store")
    (here / "a").write_text("changed\n")
    fs.upload(str(here / "a"), "store", overwrite=True)
    assert fs.cat("store/a") == "changed"
    fs.upload(str(here), "all")
    fs.upload_dir(str(here), "store")
    assert fs.ls_dir("all") == (["part"], ["a"]) and fs.ls_dir("store") == (["here"], ["a", "copy"])
    fs.download("all", str(tmp_path / "back"))
    assert (tmp_path / "back" / "part" / "b").read_text() == "second\n"
    fs.download("all/a", str(tmp_path / "one"))
    assert (tmp_path / "one").read_text() == "changed\n"
    with pytest.raises(FSFileExistsError, match="exists already"):
        fs.download("all/a", str(tmp_path / "one"))
    with pytest.raises(FSFileNotExistsError, match="`none` does not exist"):
        fs.download("none", str(tmp_path / "one"))
    with pytest.raises(FSFileNotExistsError, match="`none` does not exist"):
        fs.upload("none", "store")


def test_only_files_of_hdfs_have_to_be_copied(client):
    assert client.need_upload_download() and not LocalFS().need_upload_download()


def test_a_client_runs_hadoop_with_its_settings_and_gives_sizes(client, tmp_path):
    (tmp_path / "cluster" / "part-0").write_text("12345")
    assert client.list_files_info([]) == []
    assert client.list_files_info(["hdfs://name:9000/part-0"]) == [{"path": "hdfs://name:9000/part-0", "size": 5}]
    called = (tmp_path / "cluster.calls").read_text().splitlines()[-1]
    assert called == "fs -Dfs.default.name=hdfs://name:9000 -Dhadoop.job.ugi=user,secret -ls hdfs://name:9000/part-0"


def test_a_command_is_retried_and_then_its_error_has_the_last_line_and_no_password(client, tmp_path):
    (tmp_path / "cluster.broken").touch()
    client.mkdirs("models")
    assert client.is_dir("models")
    with pytest.raises(ExecuteError) as raised:
        client._checked("-chown", "me", "models")
    assert str(raised.value) == "`hadoop fs -chown me models` ended with exit code 255: -chown: Unknown command"
    with pytest.raises(FSShellCmdAborted, match="exit code 134"):
        client._checked("-abort")
    client._time_out = 0.2
    with pytest.raises(FSTimeOut, match="`hadoop fs -sleep` did not end within 0.2 s"):
        client._checked("-sleep")


def test_a_half_downloaded_file_is_never_taken_for_a_whole_one(client, tmp_path, monkeypatch):
    (tmp_path / "cluster" / "rows").write_text("rows")
    run = client._run

    def broken(*words):
        done = run(*words)
        done.returncode = 1 if words[0] == "-get" else done.returncode
        return done

    monkeypatch.setattr(client, "_run", broken)
    with pytest.raises(ExecuteError):
        client.download("rows", str(tmp_path / "rows"))
    assert not (tmp_path / "rows").exists()


def test_without_hadoop_the_first_use_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    client = HDFSClient("$HADOOP_HOME", None)
    with pytest.raises(FileNotFoundError) as raised:
        client.is_exist("models")
    assert f"`{tmp_path}/bin/hadoop`" in str(raised.value) and "\n\nhint: give `hadoop_home`" in str(raised.value)


@pytest.mark.parametrize("address", ["s3://bucket/models", "gs://bucket/models", "s3a://bucket/models"])
def test_the_address_of_an_object_store_is_for_saving_and_loading_directly(client, address):
    for fs in (LocalFS(), client):
        with pytest.raises(NotImplementedError, match="`fleet.save_persistables`; they need no client"):
            fs.is_exist(address)


@pytest.mark.parametrize(
    "name",
    [
        "distributed.fleet.utils",
        "fluid.incubate.fleet.utils.hdfs",
        "fluid.incubate.fleet.utils.fs",
    ],
)
def test_every_import_path_has_the_same_classes(name):
    found = importlib.import_module(f"openfleet.compat.paddle.{name}")
    assert found.HDFSClient is HDFSClient and found.LocalFS is LocalFS
    assert os.path.basename(module.__file__) == "fs.py" and paddle.distributed.fleet.utils.fs is module


def test_a_file_system_of_ones_own_says_which_method_it_lacks():
    class Own(module.FS):
        pass

    with pytest.raises(NotImplementedError, match="`is_exist` of Own"):
        Own().is_exist("x")
