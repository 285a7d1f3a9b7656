"""Parameters of a decoder-only transformer by what they are read for: attention, dense MLP, experts, vocabulary.

In: a shape. Out: counts of parameters. Grouped-query and latent attention, gated MLPs, experts with shared ones.

    decoder.parameter_groups(DecoderShape(**load_model("qwen2.5-7b").decoder_shape()))
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from labkit.calc._require import require_int

OPTIONAL = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "q_lora_rank", "num_experts",
            "num_experts_per_token", "moe_intermediate")
LATENT = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
EXPERTS = ("num_experts", "num_experts_per_token", "moe_intermediate")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """Widths of one decoder with RMS norms, rotary positions and gated MLPs, named as in `labkit.models.ModelSpec`."""

    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    """Not used with a latent."""
    head_dim: int
    """Width of a query head."""
    intermediate: int
    """Width of a dense layer's MLP."""
    vocab_size: int
    tied_embeddings: bool
    """The output layer reads the embedding's table."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """One weight of a head's width for queries, one for keys."""
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    qk_nope_head_dim: int | None = None
    v_head_dim: int | None = None
    q_lora_rank: int | None = None
    """Latent attention: the query's latent; None: queries are projected at once."""
    num_experts: int | None = None
    num_experts_per_token: int | None = None
    moe_intermediate: int | None = None
    num_shared_experts: int = 0
    first_dense_layers: int = 0
    """Layers with a dense MLP before those with experts. Without experts all are dense."""

    def __post_init__(self) -> None:
        """Refuse an impossible shape, naming the argument."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in OPTIONAL and value is None:
                continue
            if entry.name in ("tied_embeddings", "qkv_bias", "qk_norm"):
                if not isinstance(value, bool):
                    raise ValueError(f"{entry.name}={value!r}: expected true or false")
                continue
            require_int(entry.name, value, least=0 if entry.name in ("num_shared_experts", "first_dense_layers") else 1)
        for names in (LATENT, EXPERTS):
            given = [name for name in names if getattr(self, name) is not None]
            if given and len(given) < len(names):
                raise ValueError(f"{', '.join(names)}: expected all or none of them, got {', '.join(given)}")
        if self.first_dense_layers > self.num_layers:
            raise ValueError(f"first_dense_layers={self.first_dense_layers}: expected at most {self.num_layers}")

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.first_dense_layers if self.num_experts else 0


def parameter_groups(shape: DecoderShape) -> dict[str, int]:
    """Parameters of the whole model by group.

    Args:
        shape: of the model.

    Returns: {"embedding", "attention", "norms", "dense_mlp", "router", "shared_experts", "routed_experts", "head"}:
        counts over all layers; "head" is 0 where it is the embedding's table. "norms" are all RMS norms.
    Raises: nothing; the shape is checked when it is made.
    Assumes: no bias but that of queries, keys and values; no scales of quantised weights.
    Source: the modules of Qwen2, Qwen3-MoE and DeepSeek-V2; sums equal the published counts of their checkpoints.

    >>> shape = DecoderShape(num_layers=1, hidden=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate=8,
    ...                      vocab_size=10, tied_embeddings=True)
    >>> groups = parameter_groups(shape)
    >>> groups["attention"], groups["dense_mlp"], sum(groups.values())
    (48, 96, 196)
    """
    table, layers = shape.vocab_size * shape.hidden, shape.num_layers
    attention, extra_norms = _attention(shape)
    expert = 3 * shape.hidden * (shape.moe_intermediate or 0)
    return {
        "embedding": table, "attention": layers * attention,
        "norms": layers * (2 * shape.hidden + extra_norms) + shape.hidden,
        "dense_mlp": (layers - shape.expert_layers) * 3 * shape.hidden * shape.intermediate,
        "router": shape.expert_layers * shape.hidden * (shape.num_experts or 0),
        "shared_experts": shape.expert_layers * shape.num_shared_experts * expert,
        "routed_experts": shape.expert_layers * (shape.num_experts or 0) * expert,
        "head": 0 if shape.tied_embeddings else table,
    }


def active_parameters(shape: DecoderShape, *, with_embedding: bool = False) -> int:
    """Parameters that one token is multiplied with.

    Args:
        shape: of the model.
        with_embedding: also count the embedding's table, of which a token reads one row. Model cards differ in this.

    Returns: parameters.
    Raises: as `parameter_groups`.
    Assumes: as `parameter_groups`; the output layer counts also where it is the embedding's table.
    Source: all groups, but of the routed experts those of one token.

    >>> shape = DecoderShape(num_layers=1, hidden=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate=8,
    ...                      vocab_size=10, tied_embeddings=True, num_experts=4, num_experts_per_token=1,
    ...                      moe_intermediate=2)
    >>> active_parameters(shape), active_parameters(shape, with_embedding=True)
    (140, 180)
    """
    groups = parameter_groups(shape)
    chosen = groups["routed_experts"]
    if shape.num_experts and shape.num_experts_per_token:
        chosen = chosen // shape.num_experts * shape.num_experts_per_token
    table = shape.vocab_size * shape.hidden
    rest = sum(groups[name] for name in ("attention", "norms", "dense_mlp", "router", "shared_experts"))
    return rest + chosen + table * (2 if with_embedding else 1)


def _attention(shape: DecoderShape) -> tuple[int, int]:
    """Parameters of one layer's projections and of its norms beside the two of the layer."""
    hidden, queries = shape.hidden, shape.num_heads * shape.head_dim
    if shape.kv_lora_rank and shape.qk_rope_head_dim and shape.qk_nope_head_dim and shape.v_head_dim:
        rank, rope = shape.kv_lora_rank, shape.qk_rope_head_dim
        width = shape.num_heads * (shape.qk_nope_head_dim + shape.v_head_dim)
        asked = hidden * queries if shape.q_lora_rank is None else shape.q_lora_rank * (hidden + queries)
        output = shape.num_heads * shape.v_head_dim * hidden
        return asked + hidden * (rank + rope) + rank * width + output, rank + (shape.q_lora_rank or 0)
    keys = 2 * shape.num_kv_heads * shape.head_dim
    bias = queries + keys if shape.qkv_bias else 0
    return hidden * (queries + keys) + bias + queries * hidden, 2 * shape.head_dim if shape.qk_norm else 0
