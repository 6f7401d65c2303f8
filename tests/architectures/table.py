"""`python -m tests.architectures.table [--write | NAME…]`: the way of every architecture through a
run, or of those named, one after the other, beside its row in docs/compiler.md. Ends with 1 if
one is another. `--write`: puts all rows there instead.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from atom.base.errors import AtomError
from tests.architectures.configs import CONFIGS, REMARKS, config_of
from tests.architectures.walk import BOUND, refusal, walk

PAGE = Path(__file__).parents[2] / "docs" / "compiler.md"
FIRST, LAST = "| `model_type` |", "\n\n"
"""Start of the table on the page, and the text after its end."""
WRONG = "**"


def row(name: str) -> str:
    """Return one line of the table; results that break a promise are between asterisks."""
    remark = REMARKS.get(name, "")
    with tempfile.TemporaryDirectory() as root:
        try:
            seen = walk(Path(root), config_of(name))
        except AtomError as error:
            cells = ["no", "", "", "", refusal(error)]
        else:
            exported = "equal" if seen.logits_equal else f"{WRONG}other logits{WRONG}"
            cells = ["yes", _apart(seen.loss), _apart(seen.weight), exported, remark]
    kind, comma, form = name.partition(",")
    return f"| {' | '.join([f'`{kind}`{comma}{form}', CONFIGS[name][0], *cells])} |"


def _apart(difference: float) -> str:
    if difference <= BOUND:
        return f"{difference:.0e}" if difference else "0"
    return f"{WRONG}{difference:.0e}{WRONG}"


def verdict(line: str) -> list[str]:
    """A row without its two figures: another processor's kernels round otherwise."""
    cells = line.split(" | ")
    return [*cells[:3], *cells[5:]]


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    write = "--write" in arguments
    names = list(CONFIGS) if write else list(arguments) or list(CONFIGS)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(FIRST)
    table, after = rest.split(LAST, 1)
    heads, known = table.splitlines()[:2], {tuple(verdict(line)) for line in table.splitlines()}
    lines, failed = [], False
    for name in names:
        line = row(name)
        new = tuple(verdict(line)) not in known and not write
        failed |= WRONG in line or new
        sys.stdout.write(f"{line}{'  <- the page says otherwise' if new else ''}\n")
        sys.stdout.flush()
        lines.append(line)
    if write:
        rows = "\n".join([*heads, *lines])
        PAGE.write_text(f"{before}{FIRST}{rows}{LAST}{after}", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as own:  # no file is read from, or kept in, a home directory
        os.environ["XDG_CACHE_HOME"] = own
        sys.exit(main(sys.argv[1:]))
