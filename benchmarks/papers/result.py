"""Result of one case of a row: fields of the table, and further figures for the JSON."""

from typing import Any

MEGABYTE = 10**6
NO_FIGURE = "no figure"

Result = dict[str, Any]
"""`case`, `ours` and `theirs` are columns of the table; `theirs` is the paper's figure."""


def result(case: str, ours: str, theirs: str = NO_FIGURE, **more: Any) -> Result:
    return {"case": case, "ours": ours, "theirs": theirs, **more}
