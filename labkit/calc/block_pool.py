"""The engine's cache blocks: which are free in what order, and which full ones can be found again by their content.

The rules are those of vLLM's block pool; `labkit.calc.scheduler` uses it. No clock, no tokens: a content is a number.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_BLOCKS = 1_000_000
"""What a lab asks for at most: the model keeps some hundred bytes a block, and 100 million blocks fill a laptop."""

class BlockPool:
    """Blocks, which of them are free in what order, and which full ones can be found again by content."""

    def __init__(self, num_blocks: int, *, reuse_partial_first: bool = True) -> None:
        """All blocks free but block 0, the null block."""
        self.reuse_partial_first = reuse_partial_first
        self.num_usable = num_blocks - 1
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.references = dict.fromkeys(range(1, num_blocks), 0)
        self.hash_of: dict[int, int] = {}
        self.by_hash: dict[int, OrderedDict[int, None]] = {}
        self.num_evictions = 0

    @property
    def usage(self) -> float:
        """Share of the usable blocks that a request holds."""
        return 1 - len(self.free) / self.num_usable

    def find(self, content: int) -> int | None:
        """A block with this content, held or free."""
        return next(iter(self.by_hash.get(content, ())), None)

    def touch(self, block: int) -> None:
        """One more request uses a cached block."""
        self.references[block] += 1
        self.free.pop(block, None)

    def take(self, count: int) -> list[int]:
        """New blocks, the longest free first; what they held can no longer be found."""
        taken = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            content = self.hash_of.pop(block, None)
            if content is not None:
                self.num_evictions += 1
                del self.by_hash[content][block]
                if not self.by_hash[content]:
                    del self.by_hash[content]
            self.references[block] = 1
            taken.append(block)
        return taken

    def keep(self, block: int, content: int) -> None:
        """A full block can be found by its content from now on, already before the step that computes it has run."""
        if block not in self.hash_of:
            self.hash_of[block] = content
            self.by_hash.setdefault(content, OrderedDict())[block] = None

    def give_back(self, blocks: list[int]) -> None:
        """A request ends or is preempted: its last block is free first, so a prefix outlives its tail.

        A block that nobody can find again is the next one to be given out, before any that may be found.
        """
        idle = []
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free[block] = None
                idle.append(block)
        if self.reuse_partial_first:
            for block in reversed([block for block in idle if block not in self.hash_of]):
                self.free.move_to_end(block, last=False)
