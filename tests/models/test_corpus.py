import errno
import os
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.models.data.corpus import Corpus, Reading, stdlib_corpus, text_corpus
from atom.models.data.documents import Document


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(corpus: Corpus, root: Path) -> list[str]:
    reading = Reading(corpus)
    return [Path(reading.where).relative_to(root).as_posix() for _ in reading.texts()]


def contents(corpus: Corpus) -> list[bytes]:
    return [b"".join(blocks) for blocks in Reading(corpus).texts()]


def test_folders_are_read_in_the_order_of_relative_paths(tmp_path: Path) -> None:
    write(tmp_path, b__z="1", b__a="2", a_dot_txt="3", c="4", _dot_hidden="5", b___dot_git__x="6")
    corpus = text_corpus([tmp_path])
    assert names(corpus, tmp_path) == ["a.txt", "b/a", "b/z", "c"]
    assert corpus.survey().done_bytes == 4


def test_entries_keep_their_order_and_a_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path, x_dot_txt="xx", y_dot_txt="yyy", z_dot_md="z")
    os.symlink(tmp_path / "x.txt", tmp_path / "w.txt")
    corpus = text_corpus([tmp_path / "z.md", str(tmp_path / "*.txt"), tmp_path / "y.txt"])
    assert names(corpus, tmp_path) == ["z.md", "w.txt", "y.txt"]


def test_what_may_not_be_looked_at_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, open__a="seen", closed__b="not seen")
    listed = os.scandir

    def guarded(folder: str) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
        return listed(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    assert contents(text_corpus([tmp_path / "open"])) == [b"seen"]
    for entry in (tmp_path, tmp_path / "closed"):
        with pytest.raises(ConfigError, match="closed cannot be read: Permission denied"):
            text_corpus([entry])
    with pytest.raises(ConfigError, match="x cannot be read: File name too long"):
        text_corpus([tmp_path / ("x" * 300)])
    (tmp_path / "open" / "b").symlink_to(tmp_path / "gone")
    for entry in (tmp_path / "open", tmp_path / "open" / "*", tmp_path / "open" / "b"):
        with pytest.raises(ConfigError, match="b is a dangling link"):
            text_corpus([entry])


def test_the_digest_names_contents_not_places(tmp_path: Path) -> None:
    first = text_corpus([write(tmp_path / "1", a="one", b="two")])
    moved = text_corpus([write(tmp_path / "2", c="one", d="two")])
    glued = text_corpus([write(tmp_path / "3", a="onetwo")])
    assert first.survey().digest() == moved.survey().digest() != glued.survey().digest()


def test_a_cap_cuts_the_last_file_between_characters(tmp_path: Path) -> None:
    write(tmp_path, a="abc", b="dé€", c="never")
    for cap, text in ((5, "abcd"), (6, "abcdé"), (8, "abcdé"), (9, "abcdé€"), (3, "abc")):
        corpus = text_corpus([tmp_path], cap)
        content = b"".join(contents(corpus))
        assert content.decode() == text
        assert corpus.survey().done_bytes == len(content)
    write(tmp_path / "four", a="a", b="\U0001f600b")
    for cap in range(1, 6):
        expected = [b"a"] if cap < 5 else [b"a", "\U0001f600".encode()]
        assert contents(text_corpus([tmp_path / "four"], cap)) == expected


def test_what_lies_behind_the_limit_is_not_asked_for() -> None:
    def endless() -> Iterator[Document]:
        for text in ("ab", "", "c"):
            yield Document("a row", partial(iter, (text.encode(),)))
        raise ConfigError("more was asked for")

    assert contents(Corpus(endless, 3)) == [b"ab", b"c"]


def test_no_file_and_no_text_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\*.*matches no file"):
        text_corpus([str(tmp_path / "nothing*")])
    with pytest.raises(ValueError, match="all empty"):
        text_corpus([write(tmp_path, a="")]).survey()


def test_the_standard_library_has_text_and_no_tests() -> None:
    corpus = stdlib_corpus()
    root = Path(sysconfig.get_path("stdlib"))
    listed = names(corpus, root)
    assert "argparse.py" in listed
    assert corpus.survey().done_bytes > 2_000_000
    folders = {part for name in listed for part in Path(name).parts[:-1]}
    assert not folders & {"test", "tests", "site-packages", "encodings", "__pycache__"}
    assert all(name.endswith(".py") for name in listed)
    assert stdlib_corpus(50_000).survey().done_bytes == 50_000


def test_what_distributions_package_apart_changes_no_text(tmp_path: Path) -> None:
    """`apt install python3-tk` on one of a run's machines, after it began."""
    write(tmp_path, argparse_dot_py="parse", turtles_dot_py="slow")
    before = stdlib_corpus(root=tmp_path).survey().digest()
    apart = ("tkinter", "idlelib", "turtledemo", "lib2to3", "distutils", "ensurepip")
    for place in (*(f"{folder}/__init__.py" for folder in apart), "turtle.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("more")
        assert stdlib_corpus(root=tmp_path).survey().digest() == before, place


def test_a_python_without_source_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize_link.py").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match="no source"):
        stdlib_corpus(root=tmp_path)
