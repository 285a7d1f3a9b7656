"""Checkpoints that are whole or plainly not: a manifest with lengths and content hashes, written last.

Knows no torch. hashing: content hashes. manifest: the commit mark. save: atomic files, commit, seal. verify: judge a
directory from the outside, find the newest good one. damage: break one on purpose.

Layer: may import units and paths of labkit; workers, analyzers and slices may import it.
"""

from labkit.checkpoints.hashing import (
    ALGORITHMS,
    HashingStream,
    HashUnavailable,
    available_algorithms,
    fast_algorithm,
    hash_bytes,
    hash_file,
    new_hash,
)
from labkit.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    ManifestError,
    parse_manifest,
)
from labkit.checkpoints.save import begin, commit, entry_of, seal, step_dir, write_file
from labkit.checkpoints.verify import Problem, Report, list_checkpoints, newest_good, require_good, step_of, verify

__all__ = [
    "ALGORITHMS", "MANIFEST_NAME", "CheckpointError", "FileEntry", "HashUnavailable", "HashingStream", "Manifest",
    "ManifestError", "Problem", "Report", "available_algorithms", "begin", "commit", "entry_of", "fast_algorithm",
    "hash_bytes", "hash_file", "list_checkpoints", "new_hash", "newest_good", "parse_manifest", "require_good", "seal",
    "step_dir", "step_of", "verify", "write_file",
]  # fmt: skip
