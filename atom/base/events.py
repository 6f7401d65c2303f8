"""Event log: a file with one JSON object per line, readable while the daemon appends to it."""

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
"""Lines kept in memory while the file cannot be written."""
_SEARCH_BYTES = 1 << 16
"""Bytes read at once in the search for the last newline."""
MAX_LOG_BYTES = 64 << 20
"""Default size at which a log is rotated. Rounds of one second each fill it in about a day."""


class EventSink(Protocol):
    """Receiver of events."""

    def emit(self, kind: str, **fields: Any) -> None:
        """Record one event. Thread-safe.

        Args:
            kind: name of the event.
            fields: JSON-serialisable values.
        """


class EventLog:
    """Event sink that appends each event to a file as one line, unbuffered.

    Each line has the fields `time` (Unix seconds) and `event` (the kind), and the event's own
    fields.

    A log that cannot be written must not stop the program that writes it. The latest lines then
    stay in memory until they can be written; older ones are lost. A full log is renamed to
    `older_log`, replacing the previous one.

    Args:
        path: the file; created by the first event.
        max_bytes: size in bytes at which the file is rotated.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event, or keep it for the next call if the file cannot be written."""
        line = json.dumps(_nulls_for_nan({"time": round(time.time(), 3), "event": kind, **fields}))
        with self._lock:
            self._waiting.append(line.encode() + b"\n")
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """Append all waiting lines or none: half a line would make the next one unreadable.

        Raises:
            OSError: the file cannot be written.
        """
        raw = b"".join(self._waiting)
        with self._path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            end = _end_of_lines(file.fileno(), size)
            if end < size:
                file.truncate(end)
            written = file.write(raw)
            if written == len(raw):
                self._waiting.clear()
            else:
                file.truncate(end)
        if end + len(raw) > self._max_bytes and not self._waiting:
            os.replace(self._path, older_log(self._path))
            self._path.touch()


def _end_of_lines(descriptor: int, size: int) -> int:
    """Return the offset in bytes after the last newline of a file that has `size` bytes.

    A crash may have left half a line or zero bytes at the end. The next event would continue that
    line, and readers of the log would fail there.
    """
    end, step = size, 1
    while end:
        start = max(0, end - step)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, _SEARCH_BYTES
    return 0


def older_log(path: Path) -> Path:
    """Return the path of the rotated log, which may not exist: events.jsonl → events.1.jsonl."""
    return path.with_stem(f"{path.stem}.1")


def _nulls_for_nan(value: Any) -> Any:
    """Replace every number that is not finite by None: JSON has no NaN and no infinity."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: _nulls_for_nan(each) for key, each in value.items()}
        case list() | tuple():
            return [_nulls_for_nan(each) for each in value]
    return value


class EventFan:
    """Event sink that forwards each event to several sinks in order; without sinks, it drops it."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, kind: str, **fields: Any) -> None:
        for sink in self._sinks:
            sink.emit(kind, **fields)
