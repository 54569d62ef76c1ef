"""`fleet.distributed_optimizer` for PyTorch's optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .. import static
from .._log import logger
from ..fleet import _job
from ..fleet.optimizer import DistributedOptimizer as _ProgramOptimizer
from ..static.optimizer import Optimizer
from ..static.scope import Scope
from . import _tables
from .embeddings import TableModule, _OneTable


class DistributedOptimizer(torch.optim.Optimizer):
    """A PyTorch optimizer whose rule updates parameters and rows where they are: on the servers, or in this process.

    `fleet.distributed_optimizer(torch_optimizer, strategy, model)` returns it. Its last parameter group has the rows
    that have gradients in this step, so clipping by the optimizer's parameters and loss scaling see them.

    With `dense="local"`, PyTorch's optimizer steps on the parameters in each worker. By how much it changed them is
    then exchanged as a gradient at a rate of 1 is: added up in async and half_async, averaged in the other modes.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        strategy: Any,
        model: torch.nn.Module,
        name: str = "",
        dense: str = "tables",
    ) -> None:
        if dense not in _DENSE:
            raise ValueError(f"`dense` expects one of {', '.join(_DENSE)}, got {dense!r}")
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._optimizer, self._is_local = optimizer, dense == "local"
        rule = _Rule(optimizer, names, name, self._is_local)
        embeddings = [(path, module) for path, module in model.named_modules() if isinstance(module, _OneTable)]
        tables = _distinct_tables(embeddings, name)

        def buffers() -> dict[str, torch.Tensor]:
            return {_prefixed(name, path): buffer for path, buffer in _tables.buffers_of(model).items()}

        program, startup, scope = static.Program(), static.Program(), static.global_scope()
        _check_names(model, scope, {*tables, *rule.parameters})
        _check_job(model, {id(parameter) for parameter in rule.parameters.values()})
        _tables.tell_unsaved_buffers(model)
        with static.program_guard(program, startup):
            loss = _tables.define(tables.values(), rule.parameters, rule.decays, buffers())
        rule.add_rows(tables)
        _ProgramOptimizer(rule, strategy).minimize(loss, startup)
        self.tables = _tables.Tables(program, startup, scope, tables.values(), rule.parameters, buffers)
        for module in model.modules():
            if isinstance(module, TableModule):
                module.bind(self.tables)
        self._parameters = rule.parameters
        _job.listen(self.tables.take_new_values, self.tables.store)
        # The groups of both optimizers are the same objects, so schedulers of either one work.
        super().__init__([*optimizer.param_groups, {"params": [], "lr": rule.row_rate}], {})
        self.param_groups[-1]["params"] = self.tables.staged
        self._first_rates = rule.rates

    def _rate_factor(self) -> float:
        """What the learning rates were multiplied by since the tables were created."""
        rates = [float(group["lr"]) for group in self.param_groups]
        *factors, of_rows = [rate / first for rate, first in zip(rates, self._first_rates)]
        # A scheduler of the other optimizer does not know the group of the rows, which follow the others.
        if self._is_local:
            return factors[0] if of_rows == 1.0 else of_rows
        if of_rows != 1.0:
            factors.append(of_rows)
        if not all(math.isclose(factor, factors[0], rel_tol=1e-6) for factor in factors):
            raise NotImplementedError(
                f"the learning rates of the groups were {self._first_rates} and are {rates}: they are multiplied by "
                "one factor at a time\n\nhint: change all of them in proportion"
            )
        return factors[0]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Pushes the gradients of rows and parameters, as one step of the job."""
        loss = None
        if self._is_local:
            self.tables.begin_step()
            before = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
            loss = self._optimizer.step() if closure is None else self._optimizer.step(closure)
            factor = self._rate_factor()
            gradients = {
                name: (before[name] - parameter.detach()) / (factor or 1.0)
                for name, parameter in self._parameters.items()
                if parameter.grad is not None
            }
        else:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.tables.begin_step()
            # A scheduler of the other optimizer warns if that has made no step.
            self._optimizer._opt_called = True
            factor = self._rate_factor()
            gradients = {
                name: parameter.grad for name, parameter in self._parameters.items() if parameter.grad is not None
            }
        self.tables.push(factor, gradients)
        self.tables.drop_staged(all=False)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of parameters and rows."""
        super().zero_grad(set_to_none)
        self.tables.drop_staged(all=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings of the groups. Moments are with the tables: `fleet.save_persistables` saves them.

        With `dense="local"`, the moments of parameters are in it.
        """
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]
        local = {"local": self._optimizer.state_dict()} if self._is_local else {}
        return {"state": {}, "param_groups": groups, **local}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets what `state_dict` returned."""
        if self._is_local and "local" in state_dict:
            self._optimizer.load_state_dict(state_dict["local"])
            self.param_groups[:-1] = self._optimizer.param_groups
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update(saved)


def _check_names(model: torch.nn.Module, scope: Scope, names: set[str]) -> None:
    """Checks that a scope can have the tables and parameters of a model, and reserves their names."""
    bound = [module for module in model.modules() if isinstance(module, TableModule) and module.is_bound_in(scope)]
    if bound:
        raise ValueError(
            f"an `{type(bound[0]).__name__}` of the model belongs to a distributed optimizer already\n\n"
            "hint: one optimizer trains a model; parameters with other settings are a group of it"
        )
    names_of_models = scope.__dict__.setdefault("_names_of_torch_models", set())
    taken = sorted(names & {*scope.names(), *names_of_models})
    if taken:
        raise ValueError(
            f"the scope has a value of the name `{taken[0]}`, of another model or program\n\n"
            "hint: give this model's tables and parameters a prefix, with `name=` of `distributed_optimizer`"
        )
    names_of_models.update(names)


def _check_job(model: torch.nn.Module, trained: set[int]) -> None:
    """Checks that the job can train a model, and says which parameters it does not train."""
    job = _job.current()
    if _job.is_listened_to() and (job.server_num() > 0 or job.is_collective()):
        raise NotImplementedError(
            "a second PyTorch model with an optimizer of its own, in a job with servers or several ranks\n\n"
            "hint: put the models into a `torch.nn.ModuleList` with one optimizer: what has no gradient rests"
        )
    left = [path for path, each in model.named_parameters() if each.requires_grad and id(each) not in trained]
    if left and job.worker_num() > 1:
        logger.warning(
            "the parameter `%s` is not one of the optimizer, and %d others: every worker keeps its own values",
            left[0],
            len(left) - 1,
        )


def _distinct_tables(embeddings: list[tuple[str, _OneTable]], prefix: str) -> dict[str, _tables.Table]:
    """Names the tables of a model's embeddings, and returns each table once."""
    if not embeddings:
        raise ValueError("the model has no embedding of `openfleet.torch`")
    tables: dict[str, _tables.Table] = {}
    for path, module in embeddings:
        table = module.table
        table.key = _prefixed(prefix, table.name or f"{path}.rows" if path else "rows")
        tables.setdefault(table.key, table).merge(table)
    return tables


def _prefixed(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class _Rule(Optimizer):
    """The rule of a PyTorch optimizer, in the words of the tables, and how it differs between parameters.

    If PyTorch's optimizer steps on the parameters itself, their rule adds up what it has changed.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, names: dict[int, str], prefix: str, is_local: bool) -> None:
        groups, kind = optimizer.param_groups, type(optimizer)
        if is_local:
            rules, main = [_CHANGES] * len(groups), _CHANGES
        else:
            rules = [_rule_of(kind, group) for group in groups]
            # Groups without decay, such as biases, are exceptions to the rule of AdamW.
            main = next((rule for rule in rules if rule.get("adamw", {}).get("weight_decay")), rules[0])
            if any(rule != main and rule != _without_decay(main) for rule in rules):
                raise NotImplementedError(
                    "the parameter groups of the optimizer differ in more than their learning rate and weight decay"
                )
        super().__init__(1.0, main)
        self._kind, self._first_group = kind, groups[0]
        self.parameters: dict[str, torch.nn.Parameter] = {}
        self.decays: dict[str, float] = {}
        self._exceptions: dict[str, Any] = {}
        # A scheduler may have begun with a rate of 0.
        rates = [float(group["lr"] or group.get("initial_lr", 0.0)) for group in groups]
        if not all(rates):
            raise ValueError("the optimizer has a learning rate of 0\n\nhint: a scheduler may lower it to 0 later")
        self.row_rate = rates[0]
        self.rates = [*rates, self.row_rate]
        for group, rule, rate in zip(groups, rules, rates):
            for parameter in group["params"]:
                if id(parameter) not in names:
                    raise ValueError(f"a parameter {list(parameter.shape)} of the optimizer is not one of the model")
                if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                    raise ValueError(
                        f"the parameter `{names[id(parameter)]}` is {parameter.dtype} on {parameter.device}: "
                        "parameters are float32 on the CPU"
                    )
                name = _prefixed(prefix, names[id(parameter)])
                self.parameters[name] = parameter
                self._exceptions[name] = {"learning_rate": 1.0 if is_local else rate, "weight_decay": rule == main}
                if "adamw" not in rule and not is_local:
                    self.decays[name] = float(group.get("weight_decay", 0.0))

    def add_rows(self, tables: dict[str, _tables.Table]) -> None:
        """Adds the rules of the tables, which are the model's unless a module has its own."""
        for name, table in tables.items():
            if table.optimizer is None:
                rule, rate = _row_rule_of(_rule_of(self._kind, self._first_group)), self.row_rate
            else:
                settings = table.optimizer.to_json()
                rate = settings["schedule"].get("constant")
                if rate is None or settings["regularizer"] or settings["clip"]:
                    raise NotImplementedError(
                        f"the optimizer of the table `{name}` has a schedule, a weight decay or a clipping: "
                        "rows have a constant rate"
                    )
                rule = settings["optimizer"]
            self._exceptions[name] = {"optimizer": rule, "learning_rate": rate}

    def exceptions(self, program: static.Program) -> dict[str, Any]:
        """Returns what the rule does differently for some parameters of a program, by name, as the engine reads it."""
        return self._exceptions


_DENSE = ("tables", "local")
# Adds up what PyTorch's optimizer has changed.
_CHANGES: dict[str, Any] = {"sgd": {}}


def _rule_of(kind: type, group: dict[str, Any]) -> dict[str, Any]:
    """The update rule of a group of a PyTorch optimizer."""
    for option, allowed in (("amsgrad", False), ("maximize", False), ("dampening", 0), ("lr_decay", 0)):
        if group.get(option, allowed) != allowed:
            raise NotImplementedError(f"`{option}={group[option]}` of {kind.__name__}")
    if kind is torch.optim.SGD:
        momentum, nesterov = float(group["momentum"]), bool(group["nesterov"])
        return {"momentum": {"momentum": momentum, "nesterov": nesterov}} if momentum else {"sgd": {}}
    if kind is torch.optim.Adagrad:
        start = float(group["initial_accumulator_value"])
        return {"adagrad": {"epsilon": float(group["eps"]), "initial_accumulator": start}}
    if kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SparseAdam):
        beta1, beta2 = map(float, group["betas"])
        moments = {"beta1": beta1, "beta2": beta2, "epsilon": float(group["eps"])}
        if kind is torch.optim.AdamW or group.get("decoupled_weight_decay"):
            return {"adamw": {**moments, "weight_decay": float(group["weight_decay"])}}
        return {"adam": moments}
    known = "SGD, Adagrad, Adam, AdamW and SparseAdam"
    hint = (
        'with `dense="local"` this optimizer steps on the parameters in each worker, '
        "and each embedding has one of `static.optimizer`, as its `optimizer=`"
    )
    raise NotImplementedError(f"`{kind.__name__}` has no rule on the tables: there are {known}\n\nhint: {hint}")


def _without_decay(rule: dict[str, Any]) -> dict[str, Any]:
    return {"adamw": {**rule["adamw"], "weight_decay": 0.0}} if "adamw" in rule else rule


def _row_rule_of(rule: dict[str, Any]) -> dict[str, Any]:
    """The rule of rows by default: the same, without weight decay; for Adam that of SparseAdam."""
    moments = rule.get("adam") or rule.get("adamw")
    if moments is None:
        return rule
    moments = {name: value for name, value in moments.items() if name != "weight_decay"}
    return {"adam": {**moments, "unscaled_epsilon": True}}
