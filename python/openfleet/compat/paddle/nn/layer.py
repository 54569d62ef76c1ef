"""`Layer`: a part of a network that owns parameters, and containers of layers.

Programs are static here: creating a layer declares its parameters in the default programs, and calling it adds ops to
the current program. A layer that is called twice uses the same parameters twice.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from openfleet.static import nn as _nn
from openfleet.static import unique_name
from openfleet.static.param_attr import with_defaults
from openfleet.static.program import Variable


class Layer:
    """A part of a network. `parameters()` and `sublayers()` find attributes that are parameters or layers."""

    def __init__(self, name_scope: str | None = None, dtype: str = "float32") -> None:
        word = _snake(type(self).__name__) if name_scope is None else name_scope
        object.__setattr__(self, "_full_name", unique_name.generate(word))
        object.__setattr__(self, "_parameters", OrderedDict())
        object.__setattr__(self, "_sub_layers", OrderedDict())
        self.training = True
        self._dtype = dtype

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Computes the result of the layer. Subclasses override it."""
        raise NotImplementedError(f"`forward` of {type(self).__name__}")

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.forward(*inputs, **kwargs)

    def full_name(self) -> str:
        """Returns its unique name, the first part of its parameters' names."""
        return self._full_name

    # Attributes that are parameters or layers.

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Layer) or _is_parameter(value):
            parts = self.__dict__.get("_sub_layers" if isinstance(value, Layer) else "_parameters")
            if parts is None:
                raise ValueError(f"call `super().__init__()` of {type(self).__name__} before giving it `{name}`")
            self.__delattr__(name, missing_ok=True)
            parts[name] = value
        else:
            self.__delattr__(name, missing_ok=True)
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for parts in ("_parameters", "_sub_layers"):
            if name in self.__dict__.get(parts, ()):
                return self.__dict__[parts][name]
        raise AttributeError(f"{type(self).__name__} has no `{name}`")

    def __delattr__(self, name: str, missing_ok: bool = False) -> None:
        for parts in ("_parameters", "_sub_layers"):
            if name in self.__dict__.get(parts, ()):
                del self.__dict__[parts][name]
                return
        if name in self.__dict__ or not missing_ok:
            object.__delattr__(self, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._parameters, *self._sub_layers]

    def create_parameter(
        self,
        shape: Any,
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Variable | None:
        """Declares a parameter of this layer. Returns None if `attr` is False."""
        if attr is False:
            return None
        attr = with_defaults(attr)
        if attr.name is None:
            attr.name = unique_name.generate(f"{self._full_name}.{'b' if is_bias else 'w'}")
        return _nn.create_parameter(shape, dtype or self._dtype, None, attr, is_bias, default_initializer)

    def add_parameter(self, name: str, parameter: Variable | None) -> Variable | None:
        """Adds a parameter as an attribute."""
        if parameter is not None and not _is_parameter(parameter):
            raise TypeError(f"`add_parameter` expects a parameter, got {type(parameter).__name__}")
        setattr(self, name, parameter)
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Adds a layer as an attribute."""
        if not isinstance(sublayer, Layer):
            raise TypeError(f"`add_sublayer` expects a Layer, got {type(sublayer).__name__}")
        self._sub_layers[str(name)] = sublayer
        return sublayer

    # Iterating over them.

    def named_children(self) -> Iterator[tuple[str, Layer]]:
        """The layers among its attributes."""
        yield from self._sub_layers.items()

    def children(self) -> Iterator[Layer]:
        """The layers among its attributes."""
        yield from self._sub_layers.values()

    def named_sublayers(self, prefix: str = "", include_self: bool = False) -> Iterator[tuple[str, Layer]]:
        """All layers in it, at any depth, each once."""
        seen: set[int] = set()

        def walk(layer: Layer, prefix: str, itself: bool) -> Iterator[tuple[str, Layer]]:
            if id(layer) in seen:
                return
            seen.add(id(layer))
            if itself:
                yield prefix, layer
            for name, child in layer._sub_layers.items():
                yield from walk(child, f"{prefix}.{name}" if prefix else name, True)

        yield from walk(self, prefix, include_self)

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """All layers in it, at any depth, each once."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def named_parameters(self, prefix: str = "", include_sublayers: bool = True) -> Iterator[tuple[str, Variable]]:
        """Its parameters and those of the layers in it, each once."""
        seen: set[str] = set()
        layers = self.named_sublayers(prefix, True) if include_sublayers else iter([(prefix, self)])
        for where, layer in layers:
            for name, parameter in layer._parameters.items():
                if parameter.name not in seen:
                    seen.add(parameter.name)
                    yield (f"{where}.{name}" if where else name), parameter

    def parameters(self, include_sublayers: bool = True) -> list[Variable]:
        """Its parameters and those of the layers in it, each once."""
        return [parameter for _, parameter in self.named_parameters(include_sublayers=include_sublayers)]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: the values of a static program are in the scope."""
        raise NotImplementedError("`Layer.state_dict`: values are in the scope, use `paddle.static.save`")

    def set_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises NotImplementedError: the values of a static program are in the scope."""
        raise NotImplementedError("`Layer.set_state_dict`: use `paddle.static.load` or `set_program_state`")

    def apply(self, fn: Callable[[Layer], Any]) -> Layer:
        """Calls a function with each layer in it, and with itself."""
        for layer in self.sublayers(include_self=True):
            fn(layer)
        return self

    def train(self) -> None:
        """Calls after this one add the ops of training."""
        self.apply(lambda layer: setattr(layer, "training", True))

    def eval(self) -> None:
        """Calls after this one add the ops of evaluation."""
        self.apply(lambda layer: setattr(layer, "training", False))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={layer!r}" for name, layer in self._sub_layers.items())
        return f"{type(self).__name__}({inside})"


def _is_parameter(value: Any) -> bool:
    # A variable that is declared on first use, such as the sum of a slot, is not a parameter.
    return type(value) is Variable and value.kind in ("parameter", "table")


def _snake(name: str) -> str:
    # As in PaddlePaddle, for parameters of the same names: `BatchNorm1D` is `batch_norm1d`, `GRUCell` is `gru_cell`.
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()


class Sequential(Layer):
    """Applies layers one after the other. They are given as layers, or as pairs of name and layer."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        for at, layer in enumerate(layers):
            named = isinstance(layer, (tuple, list))
            self.add_sublayer(*(layer if named else (str(at), layer)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self._sub_layers[index]
        layers = list(self._sub_layers.values())[index]
        return Sequential(*layers) if isinstance(index, slice) else layers

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._sub_layers.values())

    def forward(self, input: Any) -> Any:
        """Applies each layer to the result of the one before."""
        for layer in self._sub_layers.values():
            input = layer(input)
        return input


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Iterable[Layer] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def append(self, sublayer: Layer) -> LayerList:
        """Appends one."""
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[Layer]) -> LayerList:
        """Appends several."""
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: Layer) -> None:
        """Inserts one before another."""
        layers = list(self)
        layers.insert(index, sublayer)
        self._sub_layers.clear()
        self.extend(layers)

    def __getitem__(self, index: Any) -> Any:
        layers = list(self._sub_layers.values())[index]
        return LayerList(layers) if isinstance(index, slice) else layers

    def __setitem__(self, index: int, sublayer: Layer) -> None:
        self.add_sublayer(str(range(len(self))[index]), sublayer)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(list(self._sub_layers.values()))


class ParameterList(Layer):
    """A list of parameters."""

    def __init__(self, parameters: Iterable[Variable] | None = None) -> None:
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def append(self, parameter: Variable) -> ParameterList:
        """Appends one."""
        self.add_parameter(str(len(self)), parameter)
        return self

    def __getitem__(self, index: int) -> Variable:
        return list(self._parameters.values())[index]

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Variable]:
        return iter(list(self._parameters.values()))


def __getattr__(name: str) -> Any:
    # `paddle.nn.layer.ReLU` is `paddle.nn.ReLU`.
    from openfleet.compat.paddle import nn

    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(nn, name)
