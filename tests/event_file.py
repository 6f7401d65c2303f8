"""An event log, read again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the events of a log; an unfinished last line (a crash while writing) is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)
