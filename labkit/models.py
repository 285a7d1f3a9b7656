"""Model shapes: the few numbers that formulas need, as data with their source.

In: `data/models/<name>.yaml`. Out: `ModelSpec`. No weights and no configuration file of anyone is stored here.

    python -c "from labkit.models import load_model; print(load_model('qwen2.5-7b'))"
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import yaml

from labkit.paths import MODELS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of one decoder-only transformer. None: does not apply, or not published."""

    name: str
    """File name without ending, e.g. "qwen2.5-7b"."""
    title: str
    num_layers: int
    hidden: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Heads whose K and V are cached; equal to `num_heads` without grouping. Not used by MLA models."""
    head_dim: int
    """Width of one query or key head (without the MLA split)."""
    intermediate: int
    """Width of the dense MLP."""
    vocab_size: int
    tied_embeddings: bool
    dtype: str
    """Storage type of weights and cache, e.g. "bfloat16"."""
    source: str
    accessed: str
    kv_lora_rank: int | None = None
    """Multi-head latent attention: width of the cached latent."""
    qk_rope_head_dim: int | None = None
    """Multi-head latent attention: width of the cached rotary key, shared by all heads."""
    num_experts: int | None = None
    num_experts_per_token: int | None = None
    moe_intermediate: int | None = None
    """Width of one routed expert."""
    num_positions: int | None = None
    """Rows of a learned position table."""
    sliding_window: int | None = None
    """Last tokens that a windowed layer sees, and so all that it has to cache."""
    layer_pattern: str | None = None
    """Kinds of the layers, repeated from the first: f full attention, s sliding window, l linear attention or state
    space (no cache that grows). None: all full."""
    architecture: str | None = None
    """Hugging Face model type whose modules these shapes are of, e.g. "qwen2". None: shapes for formulas only."""
    max_positions: int | None = None
    """Longest sequence that the configuration allows; rotary positions."""
    rope_theta: float | None = None
    norm_eps: float | None = None
    qkv_bias: bool | None = None
    """Whether the query, key and value projections have a bias."""
    qk_norm: bool | None = None
    """Whether queries and keys are normalised per head, each with one weight of a head's width."""
    q_lora_rank: int | None = None
    """Multi-head latent attention: width of the query's latent; None: queries are projected at once."""
    qk_nope_head_dim: int | None = None
    """Multi-head latent attention: width of a key head without the rotary part."""
    v_head_dim: int | None = None
    """Multi-head latent attention: width of a value head."""
    num_shared_experts: int | None = None
    """Experts that every token goes through, each as wide as a routed one."""
    first_dense_layers: int | None = None
    """Layers, from the first, with a dense MLP instead of experts. None where `num_experts` is given: not recorded."""
    norm_topk_prob: bool | None = None
    """Whether the router's chosen probabilities are scaled to sum to one."""

    @property
    def is_mla(self) -> bool:
        """Whether the cache holds a latent and a rotary key instead of keys and values."""
        return self.kv_lora_rank is not None

    def layer_kinds(self) -> str:
        """One letter for each layer, as in `layer_pattern`."""
        pattern = self.layer_pattern or "f"
        return (pattern * self.num_layers)[: self.num_layers]

    def kv_cache_shape(self) -> dict[str, Any]:
        """Keyword arguments for `labkit.calc.kv_cache.kv_bytes_per_token`, without the element size.

        Layers are those with attention: what a token takes while it is inside every window.
        """
        return {"num_layers": self.num_layers - self.layer_kinds().count("l"), **self._cached_widths()}

    def kv_layers_shape(self) -> dict[str, Any]:
        """Keyword arguments for `labkit.calc.kv_cache.sequence_bytes`, without length and element size."""
        kinds = self.layer_kinds()
        return {
            "full_layers": kinds.count("f"), "window_layers": kinds.count("s"), "window_tokens": self.sliding_window,
            **self._cached_widths(),
        }

    def decoder_shape(self) -> dict[str, Any]:
        """Keyword arguments for `labkit.calc.decoder.DecoderShape`.

        Raises: ValueError where the widths of this model's modules are not recorded.
        """
        if self.architecture is None or self.qkv_bias is None or self.qk_norm is None:
            raise ValueError(f"{self.name}: architecture, qkv_bias and qk_norm: expected all of them in "
                             f"data/models/{self.name}.yaml, parameters cannot be counted without")
        if self.num_experts is not None and self.first_dense_layers is None:
            raise ValueError(f"{self.name}: first_dense_layers=None: expected a number beside num_experts")
        same = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "intermediate", "vocab_size",
                "tied_embeddings", "qkv_bias", "qk_norm", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
                "v_head_dim", "q_lora_rank", "num_experts", "num_experts_per_token", "moe_intermediate")
        return {name: getattr(self, name) for name in same} | {
            "num_shared_experts": self.num_shared_experts or 0, "first_dense_layers": self.first_dense_layers or 0}

    def _cached_widths(self) -> dict[str, Any]:
        if self.is_mla:
            return {"kv_lora_rank": self.kv_lora_rank, "qk_rope_head_dim": self.qk_rope_head_dim}
        return {"num_kv_heads": self.num_kv_heads, "head_dim": self.head_dim}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value of every field."""
        return asdict(self)


def list_models() -> list[str]:
    """Names of all models, sorted."""
    return sorted(path.stem for path in MODELS.glob("*.yaml"))


@lru_cache(maxsize=64)
def load_model(name: str) -> ModelSpec:
    """Read one model shape.

    Args:
        name: e.g. "qwen2.5-7b"; see `list_models`.

    Returns: the shape.
    Raises: ValueError naming the model or the field that is unknown, missing or inconsistent.
    """
    if name not in list_models():
        close = difflib.get_close_matches(name, list_models(), n=1, cutoff=0.4)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"unknown model {name!r}{hint} (known: {', '.join(list_models())})")
    raw = yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))
    odd = set(raw) - {f.name for f in fields(ModelSpec)}
    if odd:
        raise ValueError(f"{name}.yaml: unknown field {', '.join(sorted(odd))}")
    try:
        spec = ModelSpec(**{**raw, "name": name, "accessed": str(raw.get("accessed", ""))})
    except TypeError as error:
        raise ValueError(f"{name}.yaml: {str(error).removeprefix('ModelSpec.__init__() ')}") from None
    if spec.num_heads % spec.num_kv_heads:
        raise ValueError(f"{name}.yaml: num_heads={spec.num_heads}: not a multiple of num_kv_heads={spec.num_kv_heads}")
    if (spec.kv_lora_rank is None) != (spec.qk_rope_head_dim is None):
        raise ValueError(f"{name}.yaml: kv_lora_rank and qk_rope_head_dim: expected both or neither")
    if spec.layer_pattern is not None and (not spec.layer_pattern or set(spec.layer_pattern) - set("fsl")):
        raise ValueError(f"{name}.yaml: layer_pattern={spec.layer_pattern!r}: expected letters f, s and l")
    if (spec.sliding_window is not None) != ("s" in spec.layer_kinds()):
        raise ValueError(f"{name}.yaml: sliding_window={spec.sliding_window!r}: expected one where layers slide")
    return spec
