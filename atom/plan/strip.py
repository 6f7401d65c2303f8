"""A timeline as three lines of characters, for terminals. Pure."""

from collections.abc import Sequence

from atom.plan.gantt import LANES, Bar

MARKS = {"load": "▒", "forward": "█", "backward": "▓", "gradients": "▒", "idle": " "}


def strips(bars: Sequence[Bar], columns: int) -> dict[str, str]:
    """Per lane, what it does most in each of `columns` equal parts of the pass."""
    seconds = max((bar.end_s for bar in bars), default=0.0)
    width = seconds / columns if seconds else 1.0
    return {lane: _strip([b for b in bars if b.lane == lane], columns, width) for lane in LANES}


def _strip(bars: Sequence[Bar], columns: int, width: float) -> str:
    shares: list[dict[str, float]] = [{"idle": width / 2} for _ in range(columns)]
    for bar in bars:
        if bar.kind == "idle":
            continue
        first, last = int(bar.start_s / width), int(bar.end_s / width)
        for column in range(first, min(last, columns - 1) + 1):
            begin, end = max(bar.start_s, column * width), min(bar.end_s, (column + 1) * width)
            shares[column][bar.kind] = shares[column].get(bar.kind, 0.0) + max(0.0, end - begin)
    return "".join(MARKS[max(share, key=share.__getitem__)] for share in shares)
