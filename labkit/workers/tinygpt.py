"""The report's decoder-only transformer: small enough for a laptop, large enough to fill DDP's buckets.

Parameter names, shapes and registration order are those of `labkit.calc.tinygpt`, which predicts the buckets without
torch; a test compares the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """Drawn by `build_tinygpt`: torch's own draw of 110 million numbers, thrown away, would take seconds."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Embedding(nn.Embedding):
    """As `Linear`: drawn by `build_tinygpt`."""

    def reset_parameters(self) -> None:
        """Leave the memory as it is."""


class Block(nn.Module):
    """Pre-norm attention and a 4x MLP."""

    def __init__(self, hidden: int, num_heads: int, *, linear_bias: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.ln1 = nn.LayerNorm(hidden)
        self.qkv = Linear(hidden, 3 * hidden, bias=linear_bias)
        self.proj = Linear(hidden, hidden, bias=linear_bias)
        self.ln2 = nn.LayerNorm(hidden)
        self.fc1 = Linear(hidden, 4 * hidden, bias=linear_bias)
        self.fc2 = Linear(4 * hidden, hidden, bias=linear_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, tokens, hidden] -> the same shape."""
        batch, tokens, hidden = x.shape
        heads = self.qkv(self.ln1(x)).view(batch, tokens, 3, self.num_heads, hidden // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class TinyGPT(nn.Module):
    """Token and learned position tables, blocks, a final norm, and a head that may be the token table itself.

    No buffers: a registered buffer would add a broadcast to every DDP step and spoil the count of collectives.
    """

    def __init__(
        self, *, num_layers: int, hidden: int, num_heads: int, vocab_size: int, num_positions: int, tied: bool = True,
        linear_bias: bool = False,
    ) -> None:
        super().__init__()
        self.tok = Embedding(vocab_size, hidden)
        self.pos = Embedding(num_positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, num_heads, linear_bias=linear_bias) for _ in range(num_layers))
        self.lnf = nn.LayerNorm(hidden)
        self.head = Linear(hidden, vocab_size, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        """[batch, tokens] of ids -> [batch, tokens, vocab] logits."""
        x = self.tok(token_ids) + self.pos(torch.arange(token_ids.shape[1], device=token_ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))


def build_tinygpt(*, seed: int, device: torch.device, **sizes: Any) -> TinyGPT:
    """The same weights on every rank and machine for one seed.

    Drawn on the CPU, uniform with the standard deviation 0.02 of GPT-2; norms start at one, biases at zero.
    """
    model = TinyGPT(**sizes)
    generator = torch.Generator().manual_seed(seed)
    limit = 0.02 * 3**0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.uniform_(-limit, limit, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return model.to(device)
