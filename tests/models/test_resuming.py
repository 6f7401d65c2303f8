"""Tokenising that was interrupted goes on where it was, and gives the same file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atom.models.data import token_writer
from atom.models.data.cache import cached_tokens
from atom.models.data.corpus import Corpus, DataError, silent
from atom.models.data.files import text_corpus
from atom.models.data.token_writer import TOKENISING
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.data.unfinished import remove_abandoned

LINES = 40


class Counting(ByteTokenizer):
    """Counts what it encodes."""

    encoded = 0

    def encode(self, pieces):
        self.encoded += len(pieces)
        return pieces


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_writer, "CHECKPOINT_BYTES", 20)
    monkeypatch.setattr(token_writer, "_GROUP_PIECES", 1)


def corpus_in(folder: Path) -> Corpus:
    folder.mkdir(exist_ok=True)
    text = "".join(f'{{"text": "document {number:02}"}}\n' for number in range(LINES))
    (folder / "t.jsonl").write_text(text)
    return text_corpus([folder])


def interrupted(corpus: Corpus, cache: Path, after: int) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        if what == TOKENISING and done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_tokens(corpus, ByteTokenizer(), cache, interrupt)


def files(cache: Path) -> list[str]:
    return sorted(path.suffix for path in cache.iterdir())


def whole(corpus: Corpus, cache: Path) -> bytes:
    cached_tokens(corpus, ByteTokenizer(), cache)
    [path] = cache.iterdir()
    return path.read_bytes()


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    corpus, cache, progress = corpus_in(tmp_path / "t"), tmp_path / "c", []
    for after in (100, 300):
        interrupted(corpus, cache, after)
        assert files(cache) == [".journal", ".partial"]
    coder = Counting()
    cached_tokens(corpus, coder, cache, lambda *told: progress.append(told))
    tokenised = [told for told in progress if told[0] == TOKENISING]
    assert tokenised[0][1] >= 264
    assert coder.encoded <= LINES - 22
    assert tokenised[-1] == (TOKENISING, LINES * 11, LINES * 11)
    assert [path.read_bytes() for path in cache.iterdir()] == [whole(corpus, tmp_path / "other")]


def test_a_killed_process_is_gone_on_from(tmp_path: Path) -> None:
    corpus, cache = corpus_in(tmp_path / "t"), tmp_path / "c"
    program = f"""
import os, signal
from pathlib import Path
from atom.models.data import token_writer
from atom.models.data.cache import cached_tokens
from atom.models.data.files import text_corpus
from atom.models.data.tokenizer import ByteTokenizer
token_writer.CHECKPOINT_BYTES, token_writer._GROUP_PIECES = 20, 1
def kill(what, done, total):
    if what == "tokenising" and done > 200:
        os.kill(os.getpid(), signal.SIGKILL)
cached_tokens(text_corpus([{str(tmp_path / "t")!r}]), ByteTokenizer(), Path({str(cache)!r}), kill)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert files(cache) == [".journal", ".partial"]
    coder = Counting()
    cached_tokens(corpus, coder, cache)
    assert coder.encoded <= LINES - 16
    assert [path.read_bytes() for path in cache.iterdir()] == [whole(corpus, tmp_path / "other")]


@pytest.mark.parametrize("damage", ["tokens", "short", "journal", "format"])
def test_what_is_not_as_the_journal_says_is_not_used(tmp_path: Path, damage: str) -> None:
    corpus, cache = corpus_in(tmp_path / "t"), tmp_path / "c"
    interrupted(corpus, cache, 200)
    [journal], [partial] = cache.glob("*.journal"), cache.glob("*.partial")
    content, told = bytearray(partial.read_bytes()), journal.read_text()
    content[260] ^= 1
    if damage in ("tokens", "short"):
        partial.write_bytes(content if damage == "tokens" else content[:280])
    else:
        journal.write_text(told[:-5] if damage == "journal" else told.replace("journal-1", "old"))
    coder = Counting()
    cached_tokens(corpus, coder, cache)
    assert coder.encoded == LINES
    assert [path.read_bytes() for path in cache.iterdir()] == [whole(corpus, tmp_path / "other")]


def test_another_text_is_begun_anew(tmp_path: Path) -> None:
    corpus, cache = corpus_in(tmp_path / "t"), tmp_path / "c"
    interrupted(corpus, cache, 200)
    path = tmp_path / "t" / "t.jsonl"
    path.write_text(path.read_text().replace("document 00", "Document 00"))
    coder = Counting()
    tokens = cached_tokens(text_corpus([tmp_path / "t"]), coder, cache).tokens
    assert bytes(tokens[:11].tolist()) == b"Document 00"
    assert coder.encoded == LINES


@pytest.mark.parametrize("resumed", [False, True])
def test_a_text_that_changes_meanwhile_is_refused(tmp_path: Path, resumed: bool) -> None:
    corpus, cache = corpus_in(tmp_path / "t"), tmp_path / "c"
    path = tmp_path / "t" / "t.jsonl"

    class Unsteady(Corpus):
        def survey(self, on_progress=silent):
            told = super().survey(on_progress)
            path.write_text(path.read_text().replace("document 00", "Document 00"))
            return told

    if resumed:
        interrupted(corpus, cache, 200)
    with pytest.raises(DataError, match="changed while it was tokenised"):
        cached_tokens(Unsteady(corpus.read), ByteTokenizer(), cache)
    assert list(cache.iterdir()) == []


def test_two_at_once_write_a_file_each(tmp_path: Path) -> None:
    corpus, cache = corpus_in(tmp_path / "t"), tmp_path / "c"
    inner = []

    def meanwhile(what: str, done: int, total: int) -> None:
        if what == TOKENISING and not inner:
            inner.append(done)
            cached_tokens(corpus, ByteTokenizer(), cache)

    cached_tokens(corpus, ByteTokenizer(), cache, meanwhile)
    assert [path.read_bytes() for path in cache.iterdir()] == [whole(corpus, tmp_path / "other")]


def test_what_nobody_goes_on_with_is_removed_after_a_week(tmp_path: Path) -> None:
    interrupted(corpus_in(tmp_path / "t"), tmp_path, 200)
    [journal] = tmp_path.glob("*.journal")
    os.utime(journal, (1000, 1000))
    for days, left in ((6, 2), (8, 0)):
        remove_abandoned(tmp_path, 1000.0 + days * 86400)
        assert len([path for path in tmp_path.iterdir() if path.is_file()]) == left
