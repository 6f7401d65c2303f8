"""A timeline as three lines of characters, for terminals. Pure."""

from collections.abc import Sequence

from atom.plan.gantt import LANES, Bar

MARKS = {"load": "▒", "forward": "█", "backward": "▓", "gradients": "▒", "values": "▒", "idle": " "}


def strips(bars: Sequence[Bar], columns: int) -> dict[str, str]:
    """Per lane, what it does in each of `columns` equal parts of the pass.

    A column has one mark. What does not get it is owed to later columns, so that a lane which is
    busy a third of the time shows marks in a third of its columns, however short its pieces are.
    """
    seconds = max((bar.end_s for bar in bars), default=0.0)
    width = seconds / columns if seconds else 1.0
    return {lane: _strip([b for b in bars if b.lane == lane], columns, width) for lane in LANES}


def _strip(bars: Sequence[Bar], columns: int, width: float) -> str:
    owed = {"idle": -width / 2}  # in doubt, what happens
    marks = []
    for share in _shares(bars, columns, width):
        for kind, seconds in share.items():
            owed[kind] = owed.get(kind, 0.0) + seconds
        most = max(share, key=lambda kind: owed[kind])
        owed[most] -= width
        marks.append(MARKS[most])
    return "".join(marks)


def _shares(bars: Sequence[Bar], columns: int, width: float) -> list[dict[str, float]]:
    """Per column, the seconds of each kind in it; the rest is idle."""
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for bar in bars:
        if bar.kind == "idle":
            continue
        first, last = int(bar.start_s / width), int(bar.end_s / width)
        for column in range(first, min(last, columns - 1) + 1):
            begin, end = max(bar.start_s, column * width), min(bar.end_s, (column + 1) * width)
            if end > begin:
                shares[column][bar.kind] = shares[column].get(bar.kind, 0.0) + end - begin
    for share in shares:
        share["idle"] = max(0.0, width - sum(share.values()))
    return shares
