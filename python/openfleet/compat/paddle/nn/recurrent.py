"""Recurrent layers: GRU, LSTM and SimpleRNN over sequences, their cells, and `RNN` for a cell of the script's own."""

from __future__ import annotations

from typing import Any

from openfleet.static import nn as _nn
from openfleet.static.initializer import Uniform
from openfleet.static.program import Variable

from . import functional as F
from .layer import Layer, LayerList


class RNNCellBase(Layer):
    """One step of a recurrent layer. Subclasses override `forward(inputs, states)` and `state_shape`."""

    def get_initial_states(
        self,
        batch_ref: Variable,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Returns states filled with a number, one row for each row of `batch_ref`."""
        rows = _nn.shape(batch_ref)[batch_dim_idx]

        def filled(one: Any) -> Any:
            if isinstance(one[0], (list, tuple)):
                return tuple(filled(part) for part in one)
            return _nn.full([rows, *(size for size in one if size != -1)], init_value)

        return filled(self.state_shape if shape is None else shape)

    @property
    def state_shape(self) -> Any:
        """The sizes of a state, without the batch; a tuple of them for several states."""
        raise NotImplementedError(f"`state_shape` of {type(self).__name__}")


class _Cell(RNNCellBase):
    _gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
    ) -> None:
        super().__init__()
        bound = hidden_size**-0.5
        first, width = Uniform(-bound, bound), self._gates * hidden_size
        self.input_size, self.hidden_size = input_size, hidden_size
        self.weight_ih = self.create_parameter([width, input_size], weight_ih_attr, default_initializer=first)
        self.weight_hh = self.create_parameter([width, hidden_size], weight_hh_attr, default_initializer=first)
        self.bias_ih = self.create_parameter([width], bias_ih_attr, is_bias=True, default_initializer=first)
        self.bias_hh = self.create_parameter([width], bias_hh_attr, is_bias=True, default_initializer=first)

    @property
    def state_shape(self) -> Any:
        return (self.hidden_size,)

    def _products(self, inputs: Variable) -> Variable:
        y = _nn.matmul(inputs, self.weight_ih, transpose_y=True)
        return y if self.bias_ih is None else _nn.add(y, self.bias_ih)

    def _state_bias(self) -> Variable:
        width = self._gates * self.hidden_size
        return _nn.full([width], 0.0) if self.bias_hh is None else self.bias_hh

    def run(self, inputs: Variable, states: Any, lengths: Variable | None, reverse: bool) -> tuple[Variable, Any]:
        """All steps of `[T, B, input_size]`: the outputs `[T, B, hidden_size]`, and the last states."""
        raise NotImplementedError


class SimpleRNNCell(_Cell):
    """tanh (or relu) of the products of the input and of the state."""

    def __init__(
        self, input_size: int, hidden_size: int, activation: str = "tanh", *attrs: Any, name: Any = None, **kwargs: Any
    ) -> None:
        if activation not in ("tanh", "relu"):
            raise ValueError(f"`activation` of {type(self).__name__} expects `tanh` or `relu`, got `{activation}`")
        super().__init__(input_size, hidden_size, *attrs, **kwargs)
        self._activation = activation

    def forward(self, inputs: Variable, states: Variable | None = None) -> tuple[Variable, Variable]:
        """One step."""
        states = self.get_initial_states(inputs) if states is None else states
        product = _nn.add(_nn.matmul(states, self.weight_hh, transpose_y=True), self._state_bias())
        state = getattr(_nn, self._activation)(_nn.add(self._products(inputs), product))
        return state, state

    def run(self, inputs: Variable, states: Any, lengths: Variable | None, reverse: bool) -> tuple[Variable, Any]:
        """All steps, one after the other."""
        return _step_by_step(self, inputs, states, lengths, reverse)


class GRUCell(_Cell):
    """A gated recurrent unit."""

    _gates = 3

    def __init__(self, input_size: int, hidden_size: int, *attrs: Any, name: Any = None, **kwargs: Any) -> None:
        super().__init__(input_size, hidden_size, *attrs, **kwargs)

    def forward(self, inputs: Variable, states: Variable | None = None) -> tuple[Variable, Variable]:
        """One step."""
        states = self.get_initial_states(inputs) if states is None else states
        _, state = self.run(_nn.unsqueeze(inputs, [0]), states, None, False)
        return state, state

    def run(self, inputs: Variable, states: Any, lengths: Variable | None, reverse: bool) -> tuple[Variable, Any]:
        """All steps."""
        outputs = _nn.gru(self._products(inputs), self.weight_hh, self._state_bias(), states, lengths, reverse)
        return outputs, _last(outputs, reverse)


class LSTMCell(_Cell):
    """A long short-term memory. Its states are a pair."""

    _gates = 4

    def __init__(self, input_size: int, hidden_size: int, *attrs: Any, name: Any = None, **kwargs: Any) -> None:
        super().__init__(input_size, hidden_size, *attrs, **kwargs)

    @property
    def state_shape(self) -> Any:
        return (self.hidden_size,), (self.hidden_size,)

    def forward(self, inputs: Variable, states: Any = None) -> tuple[Variable, Any]:
        """One step."""
        states = self.get_initial_states(inputs) if states is None else states
        _, last = self.run(_nn.unsqueeze(inputs, [0]), states, None, False)
        return last[0], last

    def run(self, inputs: Variable, states: Any, lengths: Variable | None, reverse: bool) -> tuple[Variable, Any]:
        """All steps."""
        products, bias = self._products(inputs), self._state_bias()
        outputs, cells = _nn.lstm(products, self.weight_hh, bias, tuple(states), lengths, reverse)
        return outputs, (_last(outputs, reverse), _last(cells, reverse))


def _last(states: Variable, reverse: bool) -> Variable:
    return states[0] if reverse else states[-1]


def _step_by_step(
    cell: Any, inputs: Variable, states: Any, lengths: Variable | None, reverse: bool, **kwargs: Any
) -> tuple[Variable, Any]:
    steps = inputs.shape[0]
    if steps < 0:
        raise NotImplementedError(
            f"`RNN` of {type(cell).__name__} over a number of steps that is known only when the program runs\n\n"
            "hint: declare the data with a fixed number of steps, or use GRU or LSTM"
        )
    outputs: list[Any] = [None] * steps
    for step in reversed(range(steps)) if reverse else range(steps):
        outputs[step], after = cell(inputs[step], states, **kwargs)
        states = after if lengths is None else _where_longer(lengths, step, after, states)
        if lengths is not None and isinstance(outputs[step], Variable):
            outputs[step] = _nn.multiply(outputs[step], _has_step(lengths, step))
    return _nn.stack(outputs, 0), states


def _has_step(lengths: Variable, step: int) -> Variable:
    return _nn.cast(_nn.unsqueeze(_nn.greater_than(lengths, step), [1]), "float32")


def _where_longer(lengths: Variable, step: int, after: Any, before: Any) -> Any:
    if isinstance(after, (list, tuple)):
        return type(after)(_where_longer(lengths, step, a, b) for a, b in zip(after, before))
    has = _has_step(lengths, step)
    return _nn.add(_nn.multiply(after, has), _nn.multiply(before, _nn.scale(has, -1.0, 1.0)))


class RNN(Layer):
    """Runs a cell over a sequence. Returns the outputs of all steps, and the last states."""

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell, self.is_reverse, self.time_major = cell, is_reverse, time_major

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Variable | None = None, **kwargs: Any
    ) -> tuple[Variable, Any]:
        """Runs the cell over `[B, T, ...]`, or with `time_major` over `[T, B, ...]`."""
        steps = inputs if self.time_major else _swapped(inputs)
        if initial_states is None:
            initial_states = self.cell.get_initial_states(inputs, batch_dim_idx=1 if self.time_major else 0)
        lengths = None if sequence_length is None else _nn.cast(_nn.reshape(sequence_length, [-1]), "int64")
        if isinstance(self.cell, _Cell) and not kwargs:
            outputs, last = self.cell.run(steps, initial_states, lengths, self.is_reverse)
            outputs = outputs if lengths is None else _masked(outputs, lengths)
        else:
            outputs, last = _step_by_step(self.cell, steps, initial_states, lengths, self.is_reverse, **kwargs)
        return outputs if self.time_major else _swapped(outputs), last


class BiRNN(Layer):
    """Runs one cell forwards and one backwards over a sequence, and joins their outputs."""

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False) -> None:
        super().__init__()
        self.fw, self.bw = RNN(cell_fw, False, time_major), RNN(cell_bw, True, time_major)

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Variable | None = None, **kwargs: Any
    ) -> tuple[Variable, Any]:
        """Runs both cells."""
        first = (None, None) if initial_states is None else initial_states
        forwards, last_forwards = self.fw(inputs, first[0], sequence_length, **kwargs)
        backwards, last_backwards = self.bw(inputs, first[1], sequence_length, **kwargs)
        return _nn.concat([forwards, backwards], -1), (last_forwards, last_backwards)


def _swapped(x: Variable) -> Variable:
    return _nn.transpose(x, [1, 0, *range(2, x.ndim)])


def _masked(outputs: Variable, lengths: Variable) -> Variable:
    # As in PaddlePaddle, outputs after the end of a row are 0.
    mask = _nn.sequence_mask(lengths, _nn.shape(outputs)[0], "float32")
    return _nn.multiply(outputs, _nn.unsqueeze(_nn.transpose(mask, [1, 0]), 2))


class _Layers(Layer):
    """Several layers of a cell, in one or two directions, with dropout between them."""

    _cell: Any = None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        *args: Any,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(f"`direction` of {type(self).__name__} expects `forward` or `bidirect`, got `{direction}`")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.time_major, self.dropout = time_major, dropout
        self.num_directions = 1 if direction == "forward" else 2
        self.could_use_cudnn = False
        sizes = [input_size, *[hidden_size * self.num_directions] * (num_layers - 1)]
        self._layers = LayerList()
        for size in sizes:
            cells = [self._cell(size, hidden_size, *args, **kwargs) for _ in range(self.num_directions)]
            rnn = RNN(cells[0], False, time_major) if len(cells) == 1 else BiRNN(cells[0], cells[1], time_major)
            self._layers.append(rnn)

    def forward(
        self, inputs: Variable, initial_states: Any = None, sequence_length: Variable | None = None
    ) -> tuple[Variable, Any]:
        """Returns the outputs of all steps of the last layer, and the last states `[layers x directions, B, H]`."""
        first = self._first_states(initial_states)
        last: list[Any] = []
        for number, layer in enumerate(self._layers):
            if number and self.dropout:
                inputs = F.dropout(inputs, self.dropout, training=self.training)
            own = first[number * self.num_directions : (number + 1) * self.num_directions] if first else None
            both = own if own is None or self.num_directions == 2 else own[0]
            inputs, states = layer(inputs, both, sequence_length)
            last.extend(states if self.num_directions == 2 else [states])
        if isinstance(last[0], (list, tuple)):
            return inputs, tuple(_nn.stack([states[part] for states in last], 0) for part in range(2))
        return inputs, _nn.stack(last, 0)

    def _first_states(self, states: Any) -> list[Any]:
        count = self.num_layers * self.num_directions
        if states is None:
            return []
        if isinstance(states, (list, tuple)):
            return [tuple(part[number] for part in states) for number in range(count)]
        return [states[number] for number in range(count)]


class SimpleRNN(_Layers):
    """A recurrent layer: tanh of the products of the input and of the state."""

    _cell = SimpleRNNCell

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        activation: str = "tanh",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            input_size, hidden_size, num_layers, direction, time_major, dropout, activation, *args, **kwargs
        )


class GRU(_Layers):
    """Gated recurrent units over a sequence."""

    _cell = GRUCell


class LSTM(_Layers):
    """Long short-term memories over a sequence."""

    _cell = LSTMCell
