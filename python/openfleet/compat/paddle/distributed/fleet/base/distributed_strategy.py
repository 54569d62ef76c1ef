"""`DistributedStrategy` with the settings that only PaddlePaddle's scripts make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openfleet import _native, compat
from openfleet.compat._notices import say_once
from openfleet.fleet import strategy as _strategy


class FsClientParameter:
    """Where PaddlePaddle's servers find HDFS. OpenFleet's servers read and write directories and `s3://` addresses."""

    def __init__(self, uri: str = "", user: str = "", passwd: str = "", hadoop_bin: str = "") -> None:
        self.uri, self.user, self.passwd, self.hadoop_bin = uri, user, passwd, hadoop_bin

    def __repr__(self) -> str:
        # Without the password, because scripts print their strategy.
        return f"<FsClientParameter uri={self.uri!r} user={self.user!r} hadoop_bin={self.hadoop_bin!r}>"


_TRAINER = {
    "device_worker": "",
    "dump_fields": [],
    "dump_fields_path": "",
    "dump_param": [],
    "local_sparse": [],
    "remote_sparse": [],
    "stat_var_names": [],
    "trainer": "",
}
_ROW_SETTINGS = "rows are trained by the optimizer of the job: set it there, or per table with `ParamAttr`"
# Parts of the names in `sparse_table_configs` whose value changes what is trained, each with what to use instead.
_REFUSED_OF_TABLES = {
    "embed_sgd_param": _ROW_SETTINGS,
    "embedx_sgd_param": _ROW_SETTINGS,
    "graph_sgd_param": _ROW_SETTINGS,
    "embedx_threshold": "give `sparse_embedding` the argument `entry=paddle.distributed.CountFilterEntry(n)`",
}
_REFUSED = {
    "is_fl_ps_mode": "workers train on servers; there is no federated mode",
    "is_with_coordinator": "workers train on servers; there is no coordinator",
}


class DistributedStrategy(_strategy.DistributedStrategy):
    """How a job trains. The settings of this class are PaddlePaddle's: each says in one line what it does not do."""

    _properties = (
        *_strategy.DistributedStrategy._properties,
        "adam_d2sum",
        "fs_client_param",
        "is_fl_ps_mode",
        "is_with_coordinator",
        "sparse_table_configs",
        "trainer_desc_configs",
    )
    _paddle: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_paddle", {})

    def __deepcopy__(self, memo: Any) -> DistributedStrategy:
        copied = type(self)()
        object.__setattr__(copied, "_options", self._options.copy())
        object.__setattr__(copied, "_paddle", dict(self._paddle))
        return copied

    @property
    def trainer_desc_configs(self) -> dict[str, Any]:
        """Which variables PaddlePaddle's workers write to files, which they do not here."""
        return {**_TRAINER, **self._paddle.get("trainer_desc_configs", {})}

    @trainer_desc_configs.setter
    def trainer_desc_configs(self, configs: Mapping[str, Any]) -> None:
        _check_keys("trainer_desc_configs", configs, list(_TRAINER))
        if configs.get("local_sparse"):
            raise NotImplementedError(
                "`local_sparse` of `trainer_desc_configs`: every sparse table is on the servers\n\n"
                "hint: for copies of all rows at each worker, train in geo mode: `a_sync_configs = {'k_steps': 100}`"
            )
        for name in ("device_worker", "trainer"):
            if configs.get(name):
                say_once(f"`{name}` of `trainer_desc_configs` has no effect")
        if configs.get("dump_fields_path") and (configs.get("dump_fields") or configs.get("dump_param")):
            say_no_dump()
        self._paddle["trainer_desc_configs"] = dict(configs)

    @property
    def fs_client_param(self) -> FsClientParameter:
        """Where PaddlePaddle's servers find HDFS."""
        found: FsClientParameter = self._paddle.setdefault("fs_client_param", FsClientParameter())
        return found

    @fs_client_param.setter
    def fs_client_param(self, configs: Mapping[str, str] | FsClientParameter) -> None:
        if not isinstance(configs, FsClientParameter):
            _check_keys("fs_client_param", configs, ["hadoop_bin", "passwd", "uri", "user"])
            configs = FsClientParameter(**configs)
        if configs.uri:
            say_once(
                "`fs_client_param` has no effect: files are on the local disk or at `s3://` addresses; "
                "`fleet.utils.HDFSClient` copies them to and from HDFS"
            )
        self._paddle["fs_client_param"] = configs

    @property
    def adam_d2sum(self) -> bool:
        """Whether PaddlePaddle's servers train dense parameters with a variant of Adam, which is not here."""
        return bool(self._paddle.get("adam_d2sum", False))

    @adam_d2sum.setter
    def adam_d2sum(self, flag: bool) -> None:
        if flag:
            say_once(
                "`adam_d2sum` has no effect: dense parameters are trained by Adam itself, "
                "not by PaddlePaddle's variant with decayed sums of squares"
            )
        self._paddle["adam_d2sum"] = bool(flag)

    @property
    def sparse_table_configs(self) -> dict[str, Any]:
        """Settings of sparse tables that were made, by table."""
        return dict(self._paddle.get("sparse_table_configs", {}))

    @sparse_table_configs.setter
    def sparse_table_configs(self, configs: Mapping[str, Mapping[str, Any]] | None) -> None:
        configs = {} if configs is None else configs
        if not isinstance(configs, Mapping):
            raise TypeError(f"`sparse_table_configs` expects a dict, got {type(configs).__name__}")
        for table, settings in configs.items():
            for name, value in settings.items():
                part = next((part for part in name.split(".") if part in _REFUSED_OF_TABLES), None)
                if part is not None and value not in (0, None):
                    raise NotImplementedError(f"`{name}` of `sparse_table_configs`\n\nhint: {_REFUSED_OF_TABLES[part]}")
            if settings:
                say_once(
                    f"the settings of the sparse table `{table}` in `sparse_table_configs` have no effect: its layer "
                    "gives its size and `entry`, and `fleet.shrink` decides which rows are dropped"
                )
        self._paddle["sparse_table_configs"] = dict(configs)


def _refused(name: str) -> Any:
    def read(self: DistributedStrategy) -> bool:
        return False

    def write(self: DistributedStrategy, value: bool) -> None:
        if value:
            raise NotImplementedError(f"`{name}` of DistributedStrategy\n\nhint: {_REFUSED[name]}")

    return property(read, write, doc=f"False: {_REFUSED[name]}.")


for _name in _REFUSED:
    setattr(DistributedStrategy, _name, _refused(_name))


def say_no_dump() -> None:
    """Says that no variable is written to a file."""
    say_once(
        "`dump_fields` and `dump_param` have no effect: fetch the variables instead, with `fetch_list` of "
        "`exe.train_from_dataset` or a `FetchHandler`"
    )


def _check_keys(owner: str, configs: Any, known: list[str]) -> None:
    if not isinstance(configs, Mapping):
        raise TypeError(f"`{owner}` expects a dict, got {type(configs).__name__}")
    for name in configs:
        if name not in known:
            raise ValueError(f"no option of `{owner}` is named `{name}`\n\nhint: {_native.nearest(name, known)}")


__all__ = ["DistributedStrategy", "FsClientParameter"]
__getattr__ = compat.absent(__name__, __all__)
