"""The error file (error.json) that `torch.distributed.elastic`'s `@record` writes for a rank that failed."""

from __future__ import annotations

import json
import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text


def parse_error_file(text: str) -> dict[str, Any]:
    """What an elastic error file (error.json) says.

    Returns: `error` (exception and message), `error_type`, `timestamp` (seconds since the epoch), `traceback`,
    `exitcode` (if the agent added one); None where the file does not say.

    Raises: UnreadableInput when the text is not such a file.
    """
    try:
        data = json.loads(text, strict=False)
    except (ValueError, RecursionError) as err:
        raise UnreadableInput(f"not JSON ({err}), expected torchrun's error.json") from err
    extra: dict[str, Any] = {}
    code: Any = None
    depth = 0
    while isinstance(data, dict) and "message" in data and depth < 8:
        extra = data["extraInfo"] if isinstance(data.get("extraInfo"), dict) else extra
        code = data.get("errorCode", code)
        data, depth = data["message"], depth + 1
    if depth == 0 or not isinstance(data, str):
        raise UnreadableInput('no "message" text in it, expected torchrun\'s error.json')
    stamp = str(extra.get("timestamp", ""))
    kind = re.match(r"[A-Za-z_][\w.]*(?=:|$)", data)
    trace = extra.get("py_callstack")
    return {
        "error": clean_text(data),
        "error_type": kind[0] if kind else None,
        "timestamp": int(float(stamp)) if re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", stamp) else None,
        "traceback": clean_text(trace) if isinstance(trace, str) else None,
        "exitcode": code if isinstance(code, int) else None,
    }
