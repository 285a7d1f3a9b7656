"""The report's TinyGPT as a list of parameters: what the data-parallel and sharding calculators start from.

In: sizes and switches of the model. Out: [name, shape] of every parameter in registration order.

    python -m labkit calc tinygpt tinygpt_parameters num_layers=1
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_int


def tinygpt_parameters(
    *, num_layers: int = 12, hidden: int = 768, vocab_size: int = 32000, num_positions: int = 512, tied: bool = True,
    linear_bias: bool = False, layernorm_bias: bool = True,
) -> list[list[Any]]:
    """Parameters of the report's TinyGPT, [name, shape] in registration order.

    Token table, position table, per block (LayerNorm, QKV, projection, LayerNorm, two MLP matrices of 4x width), final
    LayerNorm, and the head only if it is not tied to the token table.

    Args:
        num_layers: blocks, >= 0.
        hidden: width, >= 1.
        vocab_size: rows of the token table, >= 1.
        num_positions: rows of the learned position table, >= 1.
        tied: the head is the token table; it is then listed (and reduced) once.
        linear_bias: Linear layers of the blocks have a bias (the head never has).
        layernorm_bias: LayerNorms have a bias beside their weight.

    Returns: [["tok.weight", [vocab_size, hidden]], ...].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the shape inferred in the claims file (erratum E14); the report states width, depth and vocabulary only.
    Source: settings that reproduce the report's bucket table; checked against a torch module of this shape.

    >>> sum(rows * cols[0] if cols else rows for _, (rows, *cols) in tinygpt_parameters())
    109942272
    """
    for name, value, least in (
        ("num_layers", num_layers, 0), ("hidden", hidden, 1), ("vocab_size", vocab_size, 1),
        ("num_positions", num_positions, 1),
    ):
        require_int(name, value, least=least)

    def norm(prefix: str) -> list[list[Any]]:
        names = ("weight", "bias") if layernorm_bias else ("weight",)
        return [[f"{prefix}.{name}", [hidden]] for name in names]

    def linear(prefix: str, num_out: int, num_in: int) -> list[list[Any]]:
        bias = [[f"{prefix}.bias", [num_out]]] if linear_bias else []
        return [[f"{prefix}.weight", [num_out, num_in]], *bias]

    parameters: list[list[Any]] = [["tok.weight", [vocab_size, hidden]], ["pos.weight", [num_positions, hidden]]]
    for i in range(num_layers):
        block = f"blocks.{i}"
        parameters += norm(f"{block}.ln1") + linear(f"{block}.qkv", 3 * hidden, hidden)
        parameters += linear(f"{block}.proj", hidden, hidden) + norm(f"{block}.ln2")
        parameters += linear(f"{block}.fc1", 4 * hidden, hidden) + linear(f"{block}.fc2", hidden, 4 * hidden)
    parameters += norm("lnf")
    if not tied:
        parameters.append(["head.weight", [vocab_size, hidden]])
    return parameters
