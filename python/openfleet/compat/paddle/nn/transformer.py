"""Attention and the layers of transformers."""

from __future__ import annotations

import copy
from typing import Any

from openfleet.static import nn as _nn
from openfleet.static.param_attr import ParamAttr
from openfleet.static.program import Variable

from . import functional as F
from .common import Dropout, LayerNorm, Linear
from .layer import Layer, LayerList


class MultiHeadAttention(Layer):
    """Attention with several heads: each row of `query` becomes a mean of the rows of `value`, weighted by `key`."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        kdim: int | None = None,
        vdim: int | None = None,
        need_weights: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"`embed_dim` {embed_dim} of MultiHeadAttention is not divisible by {num_heads} heads")
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.dropout, self.need_weights = dropout, need_weights
        self.q_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)
        self.k_proj = Linear(embed_dim if kdim is None else kdim, embed_dim, weight_attr, bias_attr)
        self.v_proj = Linear(embed_dim if vdim is None else vdim, embed_dim, weight_attr, bias_attr)
        self.out_proj = Linear(embed_dim, embed_dim, weight_attr, bias_attr)

    def forward(
        self,
        query: Variable,
        key: Variable | None = None,
        value: Variable | None = None,
        attn_mask: Variable | None = None,
        cache: Any = None,
    ) -> Any:
        """Attends with `[B, T, embed_dim]`. A mask is added to the scores, or with booleans keeps where it is true."""
        if cache is not None:
            raise NotImplementedError("`cache` of MultiHeadAttention: it is for decoding step by step")
        key = query if key is None else key
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(key if value is None else value)
        q, k, v = (self._heads(part) for part in (q, k, v))
        scores = _nn.matmul(_nn.scale(q, self.head_dim**-0.5), k, transpose_y=True)
        if attn_mask is not None:
            scores = _nn.add(scores, _added(attn_mask))
        weights = _nn.softmax(scores, -1)
        kept = F.dropout(weights, self.dropout, training=self.training) if self.dropout else weights
        joined = _nn.transpose(_nn.matmul(kept, v), [0, 2, 1, 3])
        out = self.out_proj(_nn.reshape(joined, [0, 0, self.embed_dim]))
        return (out, weights) if self.need_weights else out

    def _heads(self, x: Variable) -> Variable:
        return _nn.transpose(_nn.reshape(x, [0, 0, self.num_heads, self.head_dim]), [0, 2, 1, 3])


def _added(mask: Variable) -> Variable:
    """What a mask adds to the scores."""
    if mask.dtype == "bool":
        return _nn.scale(_nn.cast(mask, "float32"), 1e9, -1e9)
    return _nn.cast(mask, "float32")


class TransformerEncoderLayer(Layer):
    """Attention of a sequence to itself, then two dense layers; each with dropout, its input added, and normalised."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float = 0.1,
        activation: str = "relu",
        attn_dropout: float | None = None,
        act_dropout: float | None = None,
        normalize_before: bool = False,
        weight_attr: Any = None,
        bias_attr: Any = None,
        layer_norm_eps: float = 1e-5,
    ) -> None:
        config = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        # Other layers of a TransformerEncoder are made from it.
        self._config = config
        self.normalize_before, self._activation = normalize_before, activation
        weights, biases = (attr if isinstance(attr, (list, tuple)) else [attr] * 2 for attr in (weight_attr, bias_attr))
        attention_dropout = dropout if attn_dropout is None else attn_dropout
        self.self_attn = MultiHeadAttention(d_model, nhead, attention_dropout, None, None, False, weights[0], biases[0])
        self.linear1 = Linear(d_model, dim_feedforward, weights[1], biases[1])
        self.dropout = Dropout(dropout if act_dropout is None else act_dropout)
        self.linear2 = Linear(dim_feedforward, d_model, weights[1], biases[1])
        self.norm1, self.norm2 = LayerNorm(d_model, layer_norm_eps), LayerNorm(d_model, layer_norm_eps)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)

    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Variable:
        """Encodes `[B, T, d_model]`."""
        attended = self.norm1(src) if self.normalize_before else src
        attended = _nn.add(src, self.dropout1(self.self_attn(attended, attended, attended, src_mask, cache)))
        src = attended if self.normalize_before else self.norm1(attended)
        dense = self.norm2(src) if self.normalize_before else src
        dense = self.linear2(self.dropout(getattr(F, self._activation)(self.linear1(dense))))
        out = _nn.add(src, self.dropout2(dense))
        return out if self.normalize_before else self.norm2(out)


class TransformerEncoder(Layer):
    """Several encoder layers like a first one, one after the other, then a normalisation if there is one."""

    def __init__(self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Any = None) -> None:
        super().__init__()
        others = [type(encoder_layer)(**_of_its_own(encoder_layer._config)) for _ in range(num_layers - 1)]
        self.layers = LayerList([encoder_layer, *others])
        self.num_layers, self.norm = num_layers, norm

    def forward(self, src: Variable, src_mask: Variable | None = None, cache: Any = None) -> Variable:
        """Encodes `[B, T, d_model]`."""
        for layer in self.layers:
            src = layer(src, src_mask, cache)
        return src if self.norm is None else self.norm(src)


def _of_its_own(config: dict[str, Any]) -> dict[str, Any]:
    """The same options, without the names of the parameters: each layer has parameters of its own."""

    def unnamed(attr: Any) -> Any:
        if isinstance(attr, (list, tuple)):
            return [unnamed(one) for one in attr]
        if isinstance(attr, ParamAttr):
            attr = copy.copy(attr)
            attr.name = None
        return attr

    return {name: unnamed(value) if name.endswith("_attr") else value for name, value in config.items()}
