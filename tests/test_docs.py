"""The documentation names everything that the code does, and its links lead somewhere."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
import typer

from atom.base.errors import Reason
from atom.cli.app import app
from atom.cli.shell.failures import ExitCode
from atom.config.load import keys_of
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.section import Section
from atom.swarm.chain.messages import KINDS
from atom.swarm.records.view import SwarmView
from atom.training.round.round_state import RoundPatience
from tests.swarm.swarm_samples import a_lease

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
PLACES = ROOT, ROOT / "atom"

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_EVENT = re.compile(r'\b(?:emit|_emit|report)\(\s*"([a-z][a-z_-]*)"')


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section_of(page: str, heading: str) -> str:
    """The text below the heading, up to the next one of any level; empty if it is missing."""
    _, _, below = text_of(page).partition(f"\n{heading}\n")
    return re.split(r"^#{1,4} ", below, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text: str) -> set[str]:
    """Return the words in backquotes in the first column of tables."""
    cells = re.findall(r"^\| ([^|]*)\|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize(("page", "model"), [("owner.md", RunFile), ("reference.md", PeerFile)])
def test_every_key_of_a_file_is_documented_and_no_other(page: str, model: type[Section]) -> None:
    for section, keys in keys_of(model).items():
        assert first_cells(section_of(page, f"### [{section}]")) == set(keys), f"[{section}]"


def test_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", section_of("reference.md", "## Exit codes"), re.M)
    assert rows == [
        (str(int(code)), meaning) for code, meaning in ((code, code.meaning) for code in ExitCode)
    ]


def test_reasons() -> None:
    documented = first_cells(section_of("protocol.md", "## Named reasons"))
    assert documented == {reason.value for reason in Reason}


def test_round_messages() -> None:
    documented = first_cells(section_of("protocol.md", "## Messages"))
    assert documented == {re.sub(r"(?<=.)([A-Z])", r"_\1", kind.__name__).lower() for kind in KINDS}


def test_patience() -> None:
    text = section_of("protocol.md", "## Time limits")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([0-9.]+) s \|", text, re.M))
    defaults = RoundPatience()
    assert {name: float(seconds) for name, seconds in rows.items()} == {
        field.name: getattr(defaults, field.name) for field in fields(RoundPatience)
    }


def test_commands_and_their_options() -> None:
    rows = [
        line
        for line in section_of("volunteer.md", "## Commands").splitlines()
        if line.startswith("| `atom ")
    ]
    documented = {row.split("`")[1].split()[1]: row for row in rows}
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(documented) == set(commands)
    for name, command in commands.items():
        options = [option for p in command.params for option in (*p.opts, *p.secondary_opts)]
        wanted = {option for option in options if option.startswith("--")}
        named = set(re.findall(r"(?<!-)--[a-z][a-z-]*", documented[name]))  # an anchor may have ---
        assert named == wanted - {"--help"}, name


def returned_keys(path: str, function: str) -> set[object]:
    """The literal keys of the dictionary that a function returns."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function)
    returned = next(n.value for n in ast.walk(found) if isinstance(n, ast.Return))
    assert isinstance(returned, ast.Dict)
    return {key.value for key in returned.keys if isinstance(key, ast.Constant)}


def test_keys_of_info() -> None:
    """Compare the keys of the peer, and of the status and the reach whose keys it includes."""
    sources = (("peer", "info"), ("reach", "info"), ("reach", "figures"))
    found = (returned_keys(f"atom/daemon/peer/{file}.py", name) for file, name in sources)
    keys = set[object]().union(*found)
    assert first_cells(section_of("reference.md", "## Keys of `atom info --json`")) == keys


def test_keys_of_contributions() -> None:
    peer = returned_keys("atom/cli/look/status.py", "contributions")
    text = section_of("volunteer.md", "### Contributions")
    assert peer | {"share", "peer_id"} <= set(re.findall(r"`(\w+)`", text))


def test_keys_of_status() -> None:
    shown = SwarmView("run", 1, 8, 2, 0.5, "", 4.0, (a_lease(),), 9.0).to_json()
    text = section_of("reference.md", "## Keys of `atom status --json`")
    named = set(re.findall(r"`(\w+)`", text))
    assert named == set(shown) | set(shown["peers"][0])


def test_every_event_is_documented() -> None:
    sources = [p for p in (ROOT / "atom").rglob("*.py") if ROOT / "atom/cli" not in p.parents]
    emitted = {
        kind for path in sources for kind in _EVENT.findall(path.read_text(encoding="utf-8"))
    }
    assert "round" in emitted, "the pattern finds no events any more"
    documented = first_cells(section_of("reference.md", "## events.jsonl"))
    assert emitted - {"round"} <= documented


def anchors_of(path: Path) -> set[str]:
    """The anchors that headings get: lower case, blanks to hyphens, punctuation dropped."""
    headings = re.findall(r"^#{1,6} (.+)$", _FENCE.sub("", path.read_text(encoding="utf-8")), re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors_of(path), f"{page.name}: {link}"


def test_every_file_that_is_named_is_there() -> None:
    """A path in backquotes; `atom/` may be left out."""
    pattern, lost = re.compile(r"`((?:\w+/)+[\w.-]*)`"), list[str]()
    for page in PAGES:
        for name in pattern.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
            if is_ours(name) and not any((place / name).exists() for place in PLACES):
                lost.append(f"{page.name}: {name}")
    assert lost == []


def is_ours(name: str) -> bool:
    """Whether a path has the suffix of our files, or begins with one of our folders.

    Paths in `program/` are of a state directory.
    """
    folder = name.partition("/")[0]
    if folder == "program":
        return False
    return name.endswith((".py", ".toml", ".md")) or any((p / folder).is_dir() for p in PLACES)


def test_pictures_are_small() -> None:
    for picture in (DOCS / "img").iterdir():
        assert picture.stat().st_size < 200_000, picture.name
