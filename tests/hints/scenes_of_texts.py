"""Hints about a run's text and its tokenizer."""

import gzip
from pathlib import Path

from atom.models.data.account import Account, check_lost
from atom.models.data.corpus import text_corpus
from atom.models.data.rows import RowText
from atom.models.data.tokenizer_settings import CONFIG, read_settings
from tests.hints.scene import Act, scene

ROWS = b'{"text": "one"}\n' * 1000


def text(files: dict[str, bytes], named: str = "", encoding: str | None = None) -> Act:
    """Reads the folder with these files, or the files in it that a pattern names."""

    def act(folder: Path) -> object:
        place = folder / "text"
        place.mkdir()
        for name, content in files.items():
            (place / name).write_bytes(content)
        path = f"{place}/{named}" if named else place
        return text_corpus([path], rows=RowText(encoding=encoding)).survey()

    return act


def settings(content: str) -> Act:
    def act(folder: Path) -> object:
        (folder / CONFIG).write_text(content)
        return read_settings(folder)

    return act


def lost(characters: int, allowed: float) -> Act:
    account = Account(characters=1000, lost=characters, first_lost="'é', character 1 of a.txt")
    return lambda folder: check_lost(account, allowed)


ONE = {"a.txt": b"one"}
PICTURE = {"a.txt": b"one", "logo.png": b"\x89PNG\0"}
LATIN = {"a.txt": b"one", "b.txt": "café".encode("latin-1")}
TORN = {"a.txt": b"one", "rows.json": b'[{"text": "one"}, {"text": "two'}
OF_TEXTS = {
    "name the files under [data] paths, in the run file or in your peer file": scene(
        text(ONE, "*.md"), text(ONE, "*.txt")
    ),
    'name only text: [data] paths = ["…/*.txt"]; if it is UTF-16: encoding = "utf-16-le"': scene(
        text(PICTURE), text({"a.txt": b"one"}), text(PICTURE, "*.txt")
    ),
    'name the encoding of such files, for example [data] encoding = "windows-1252" (also for '
    "Latin-1), or leave the file out": scene(
        text(LATIN), text(LATIN, encoding="windows-1252"), text({"a.txt": b"one"})
    ),
    "check its path and rights, and that it is complete": scene(
        text({"a.txt.gz": gzip.compress(ROWS)[:-20]}), text({"a.txt.gz": gzip.compress(ROWS)})
    ),
    "get the file again, or leave it out": scene(
        text(TORN), text({"rows.jsonl": ROWS}), text({"a.txt": b"one"})
    ),
    "use a tokenizer that has tokens for them, or allow the loss: [data] lost_text = \"{…} %\"":
        scene(lost(50, 0.001), lost(0, 0.001), lost(50, 0.05)),
    "correct the file, or move the tokenizer.json into a folder of its own": scene(
        settings("{"), settings("{}"), read_settings
    ),
}  # fmt: skip
