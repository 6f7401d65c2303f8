"""Events: one JSON object per line, appended, readable while the daemon writes."""

import contextlib
import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

_MAX_WAITING = 1000
_LOOK_BYTES = 1 << 16
MAX_LOG_BYTES = 64 << 20
"""Rounds of a second each fill that in a day or so."""


class EventSink(Protocol):
    """Takes `kind` and JSON-serialisable fields; must be safe to call from any thread."""

    def emit(self, kind: str, **fields: Any) -> None: ...


class EventLog:
    """Appends events to a file, one line each, flushed at once. `time` is Unix seconds.

    A log that cannot be written is no reason to stop what it reports on. Its last lines wait for
    room on the disk; older ones are lost. A log that is full is set aside as `older_log`, in the
    place of the one before.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)

    def emit(self, kind: str, **fields: Any) -> None:
        line = json.dumps(_finite({"time": round(time.time(), 3), "event": kind, **fields}))
        with self._lock:
            self._waiting.append(line.encode() + b"\n")
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """All lines or none: half of one would make the next unreadable."""
        raw = b"".join(self._waiting)
        with self._path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            before = _end_of_lines(file.fileno(), size)
            if before < size:
                file.truncate(before)
            written = file.write(raw)
            if written == len(raw):
                self._waiting.clear()
            else:
                file.truncate(before)
        if before + len(raw) > self._max_bytes and not self._waiting:
            os.replace(self._path, older_log(self._path))
            self._path.touch()


def _end_of_lines(descriptor: int, size: int) -> int:
    """Of a file of that size. A crash may have left half a line behind it, or blank bytes: what
    came next would stand in the same line, and whoever reads the log would stop there."""
    end, step = size, 1
    while end:
        start = max(0, end - step)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, _LOOK_BYTES
    return 0


def older_log(path: Path) -> Path:
    """events.jsonl → events.1.jsonl: what was written before it, if that is kept."""
    return path.with_stem(f"{path.stem}.1")


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not finite is written as null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


class EventFan:
    """Tells several sinks, in order; none: for those who keep no log."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, kind: str, **fields: Any) -> None:
        for sink in self._sinks:
            sink.emit(kind, **fields)
