import errno
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom.base.errors import ConfigError
from atom.models.data import token_file
from atom.models.data.corpus import SURVEYING, Corpus, silent, text_corpus
from atom.models.data.rows import RowText
from atom.models.data.samples import Cut, Piece, Samples, Text, Windows, token_samples
from atom.models.data.token_file import LOCK, TOKENISING, TokenFile, cached_tokens
from atom.models.data.tokenizer import ByteTokenizer

RAW = RowText(encoding="bytes")


class NumberTokenizer:
    """One token per byte, `offset` higher, for vocabularies that need wider types."""

    content = packed = b""
    complements = False

    def border(self, before, piece, tokens):
        return []

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.vocabulary_size = offset + 256
        self.digest = str(offset)

    def pieces(self, blocks):
        return iter(blocks)

    def encode(self, pieces):
        for piece in pieces:
            yield [byte + self.offset for byte in piece]


def left_in(folder: Path) -> list[Path]:
    """Return the files in a cache, except its lock."""
    return sorted(path for path in folder.iterdir() if path.name != LOCK)


def corpus_of(tmp_path: Path, *texts: bytes) -> Corpus:
    folder = tmp_path / "text"
    folder.mkdir(parents=True, exist_ok=True)
    for index, text in enumerate(texts):
        (folder / f"{index}").write_bytes(text)
    return text_corpus([folder], rows=RAW)


def dataset_of(tmp_path: Path, text: bytes, **changes: object) -> Samples:
    corpus_of(tmp_path, text)
    seed = changes.pop("seed", 7)
    cut = {"validation_fraction": 0.25, "sequence_tokens": 4, "piece_bytes": 32} | changes
    coder = ByteTokenizer()
    file = cached_tokens(text_corpus([tmp_path / "text"], rows=RAW), coder, tmp_path / "cache")
    return token_samples([Text(file)], coder, Cut(**cut), seed)


@pytest.mark.parametrize(
    ("offset", "dtype"), [(0, torch.uint8), (1000, torch.uint16), (70_000, torch.int32)]
)
def test_tokens_come_back_in_the_narrowest_type(
    tmp_path: Path, offset: int, dtype: torch.dtype
) -> None:
    corpus = corpus_of(tmp_path, bytes(range(200)))
    tokens = cached_tokens(corpus, NumberTokenizer(offset), tmp_path / "cache").tokens
    assert tokens.dtype == dtype
    assert tokens.to(torch.int64).tolist() == [offset + i for i in range(200)]


def test_text_is_tokenised_once(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, b"abc", b"defg")
    progress: list[tuple[str, int, int]] = []
    for _ in range(2):
        cached_tokens(corpus, ByteTokenizer(), tmp_path / "c", lambda *p: progress.append(p))
    read = [(SURVEYING, 3, 7), (SURVEYING, 7, 8), (SURVEYING, 7, 7)]
    assert progress == [*read, (TOKENISING, 7, 7), *read]
    (tmp_path / "text" / "0").write_bytes(b"xyz")
    changed = cached_tokens(text_corpus([tmp_path / "text"]), ByteTokenizer(), tmp_path / "c")
    assert bytes(changed.tokens.tolist()) == b"xyz\ndefg"
    assert len(left_in(tmp_path / "c")) == 2


@pytest.mark.parametrize("broken", [b"text" * 99, b"tex!" + b"text" * 99, b""])
def test_a_damaged_cache_is_written_again(tmp_path: Path, broken: bytes) -> None:
    corpus = corpus_of(tmp_path, b"text" * 100)
    cached_tokens(corpus, ByteTokenizer(), tmp_path / "c")
    [path] = left_in(tmp_path / "c")
    whole = path.read_bytes()
    path.write_bytes(broken)
    again = cached_tokens(corpus, ByteTokenizer(), tmp_path / "c")
    assert bytes(again.tokens.tolist()) == b"text" * 100
    assert path.read_bytes() == whole


def test_a_full_disk_passes_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        cached_tokens(corpus_of(tmp_path, b"abc"), ByteTokenizer(), tmp_path / "c")
    assert caught.value.errno == errno.ENOSPC
    assert left_in(tmp_path / "c") == []


def test_of_two_at_once_one_tokenises_and_the_other_waits(tmp_path: Path) -> None:
    corpus, folder = corpus_of(tmp_path, b"abc"), tmp_path / "c"
    begun, may_end, told = threading.Event(), threading.Event(), []

    def slowly(what: str, done_bytes: int, total_bytes: int) -> None:
        if what == TOKENISING:
            begun.set()
            assert may_end.wait(30)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached_tokens, corpus, ByteTokenizer(), folder, slowly)
        assert begun.wait(30)
        second = pool.submit(
            cached_tokens, corpus, ByteTokenizer(), folder, lambda what, *_: told.append(what)
        )
        with pytest.raises(TimeoutError):
            second.result(0.3)
        may_end.set()
        assert first.result(30).digest == second.result(30).digest
    assert TOKENISING not in told
    assert [path.suffix for path in left_in(folder)] == [".tokens"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Tokens are written under a temporary name until they are complete."""
    text, folder, seen = corpus_of(tmp_path, b"abc" * 100), tmp_path / "c", list[str]()

    def note(what: str, done_bytes: int, total_bytes: int) -> None:
        if what == TOKENISING:
            seen.extend(path.suffix for path in left_in(folder))

    cached_tokens(text, ByteTokenizer(), folder)
    [complete] = left_in(folder)
    name = complete.name.partition(".")[0]
    complete.rename(folder / f"{name}.partial")
    (folder / "of-another-text.partial").write_bytes(b"x")
    found = cached_tokens(text, ByteTokenizer(), folder, note)
    assert bytes(found.tokens.tolist()) == b"abc" * 100
    assert seen == [".partial"]
    assert [path.suffix for path in left_in(folder)] == [".tokens"]


def test_a_text_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, b"one text")

    class Unsteady(Corpus):
        def survey(self, on_progress=silent):
            told = super().survey(on_progress)
            [file] = (path for path in (tmp_path / "text").rglob("*") if path.is_file())
            file.write_bytes(b"another.")
            return told

    with pytest.raises(ConfigError, match="changed while it was tokenised"):
        cached_tokens(Unsteady(corpus.read), ByteTokenizer(), tmp_path / "c")
    assert left_in(tmp_path / "c") == []


def test_a_text_that_the_tokenizer_knows_nothing_of_is_refused(tmp_path: Path) -> None:
    class Deaf(ByteTokenizer):
        def encode(self, pieces):
            return [b"" for _ in pieces]

    with pytest.raises(ConfigError, match="turns the text into no tokens"):
        cached_tokens(corpus_of(tmp_path, b"good"), Deaf(), tmp_path / "c")
    assert not left_in(tmp_path / "c")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    class Strict(ByteTokenizer):
        def pieces(self, blocks):
            return iter([b"".join(blocks).decode("utf-8").encode()])

    with pytest.raises(ValueError, match=r"text/1 is not UTF-8"):
        cached_tokens(corpus_of(tmp_path, b"good", b"\xff"), Strict(), tmp_path / "c")


def test_windows_shift_targets_by_one() -> None:
    windows = Windows(torch.arange(10, dtype=torch.uint8), range(10), 100, 3)
    assert len(windows) == 3
    tokens, targets = windows.batch([2, 0]).values()
    assert tokens.tolist() == [[6, 7, 8], [0, 1, 2]]
    assert targets.tolist() == [[7, 8, 9], [1, 2, 3]]
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.is_contiguous()
    assert targets.is_contiguous()


@given(
    tokens=st.integers(0, 400), start=st.integers(0, 100), piece=st.integers(7, 50),
    sequence=st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_windows_cross_no_piece(tokens: int, start: int, piece: int, sequence: int) -> None:
    stretch = range(min(start, tokens), tokens)
    windows = Windows(torch.arange(tokens, dtype=torch.int32), stretch, piece, sequence)
    begun = []
    for row in range(len(windows)):
        batch = windows.batch([row])
        [first, *_], last = batch["tokens"][0].tolist(), int(batch["targets"][0, -1])
        assert windows.pieces([row]) == {Piece(0, first // piece)} == {Piece(0, last // piece)}
        assert first in stretch
        assert last in stretch
        begun.append(first)
    cuts = [stretch.start, *(at for at in stretch if at % piece == 0), stretch.stop]
    parts = [range(a, b) for a, b in itertools.pairwise(sorted({*cuts}))]
    assert begun == [at for part in parts for at in part[:-sequence:sequence]], "all that fit"


def test_a_sequence_longer_than_a_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a sequence of 32 .* a piece .* holds 32") as refused:
        dataset_of(tmp_path, bytes(200), sequence_tokens=32)
    assert "31 at most" in refused.value.hint
    assert len(dataset_of(tmp_path, bytes(200), sequence_tokens=31).train[""]) == 4


def test_equal_text_gives_equal_batches_and_another_digest_says_what_differs(
    tmp_path: Path,
) -> None:
    text = bytes(range(256)) * 2
    one, two = dataset_of(tmp_path / "1", text), dataset_of(tmp_path / "2", text, seed=7)
    assert one.digest == two.digest
    assert one.vocabulary_size == 256
    positions = [0, 5, len(one.train[""]), 3 * len(one.train[""]) + 1]
    mine, theirs = one.batch(positions), two.batch(positions)
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    others = [
        dataset_of(tmp_path / "1", text, validation_fraction=0.5).digest,
        dataset_of(tmp_path / "1", text, sequence_tokens=5).digest,
        dataset_of(tmp_path / "1", text, piece_bytes=64).digest,
        dataset_of(tmp_path / "d", text[:-1] + b"x").digest,
    ]
    assert len({one.digest, *others}) == 5
    assert dataset_of(tmp_path / "1", text, seed=8).digest == one.digest


def test_validation_batches_are_fixed_and_never_trained_on(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, bytes(range(200)))
    other_seed = dataset_of(tmp_path, bytes(range(200)), seed=99)
    count = len(dataset.validation[""])
    assert count == 2 + 7 + 1, "of three pieces"
    seen = []
    batches, others = (each.validation_batches("", 11, 3) for each in (dataset, other_seed))
    for batch, other in zip(batches[:4], others[:4], strict=True):
        tokens, targets = batch.values()
        assert torch.equal(tokens, other["tokens"])
        assert min(tokens.min(), targets.min()).item() >= 150
        seen += tokens[:, 0].tolist()
    assert len(set(seen)) == count
    assert torch.equal(batches[10]["tokens"], batches[0]["tokens"])


def test_too_little_text_is_said_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training text has 4 tokens.*sequence of 4"):
        dataset_of(tmp_path / "a", b"12345", validation_fraction=0.2)
    with pytest.raises(ValueError, match="validation text has 2 tokens"):
        dataset_of(tmp_path / "b", bytes(20), validation_fraction=0.1)
    none = dataset_of(tmp_path / "c", bytes(20), validation_fraction=0.0)
    assert not none.validation
    short = replace(Text(none.files[0], "low"), file=TokenFile(torch.arange(4), ""))
    with pytest.raises(ConfigError, match="the training text of low has 4 tokens"):
        token_samples([short], ByteTokenizer(), Cut(0.0, 4, 1 << 12), 1)


# ---- several texts


def mixed(tmp_path: Path, **changes: int) -> Samples:
    """Return three texts: bytes of `low` are below 100, of `high` 100 to 199, of `exam` above."""
    weights = {"high": 3, "low": 1, "exam": 0} | changes
    texts, coder = (
        {"low": range(100), "high": range(100, 200), "exam": range(200, 250)},
        ByteTokenizer(),
    )
    files = {
        name: cached_tokens(corpus_of(tmp_path / name, bytes(text)), coder, tmp_path / "cache")
        for name, text in texts.items()
    }
    told = [Text(files[name], name, weight) for name, weight in weights.items()]
    return token_samples(told, coder, Cut(0.2, 4, 32), 7)


def test_texts_are_mixed_by_weight_and_each_holds_its_end_back(tmp_path: Path) -> None:
    dataset = mixed(tmp_path)
    assert dataset.sampler.weights == (3, 1)
    firsts = dataset.batch(range(40))["tokens"][:, 0]
    assert [int((firsts < 100).sum()), int((firsts >= 100).sum())] == [10, 30]
    assert int(firsts.max()) < 180
    assert set(dataset.validation) == {"high", "low", "exam"}
    for name, least, most in ("low", 80, 100), ("high", 180, 200), ("exam", 200, 250):
        (held,) = dataset.validation_batches(name, 1, 20)
        assert least <= int(held["tokens"].min())
        assert int(held["targets"].max()) < most
    assert dataset.epochs(40) == {"high": round(30 / 17, 3), "low": round(10 / 17, 3)}
    assert dataset.amount.tokens == 160
    assert dataset.amount.held_back == 20 + 20 + 50


def test_pieces_of_a_mixture_name_their_file(tmp_path: Path) -> None:
    asked: list[set[Piece]] = []
    dataset = replace(mixed(tmp_path), need=asked.append)
    assert [len(file.tokens) for file in dataset.files] == [100, 100, 50]
    for name, number in ("high", 0), ("low", 1), ("exam", 2):
        dataset.validation_batches(name, 1, 20)
        assert {piece.file for piece in asked.pop()} == {number}
    tokens = dataset.batch(range(8))["tokens"][:, 0].tolist()
    wanted = {Piece(int(token < 100), token % 100 // 32) for token in tokens}
    assert asked == [wanted] == [dataset.pieces(range(8))]
    assert {*dataset.pieces_from(3)} == {Piece(file, n) for file in (0, 1) for n in range(3)}


def test_the_digest_of_a_mixture_is_of_names_and_weights(tmp_path: Path) -> None:
    kinds = [mixed(tmp_path), mixed(tmp_path, high=2), mixed(tmp_path, exam=1)]
    assert len({dataset.digest for dataset in kinds}) == 3
    assert mixed(tmp_path).digest == kinds[0].digest


@pytest.mark.parametrize(
    ("cap", "digest"),
    [
        (None, "47d171cc60cce886ae8e98bf3b15fa5f8ccc2a2db55fe841f312cf405129099c"),
        (902, "64ca64912b579a0966045fb464475a5b84f7076a8a35dd1f4c89950eb8802f1f"),
    ],
)
def test_the_digest_of_plain_text_is_fixed(tmp_path: Path, cap: int | None, digest: str) -> None:
    (tmp_path / "a.txt").write_text("first\n" * 50)
    (tmp_path / "b.md").write_text("zweite Zeile é €\n" * 50)
    corpus = text_corpus([tmp_path], cap)
    file = cached_tokens(corpus, ByteTokenizer(), tmp_path / ".cache")
    dataset = token_samples([Text(file)], ByteTokenizer(), Cut(0.25, 4, 4 << 20), 7)
    assert dataset.digest == digest


def test_targets_of_all_texts_weigh_the_same() -> None:
    def text(name: str, weight: int, share: float) -> Text:
        return Text(TokenFile(torch.arange(100), name), name, weight, share)

    texts = [text("a", 3, 0.25), text("b", 1, 1.0), text("c", 0, 0.5)]
    made = token_samples(texts, ByteTokenizer(), Cut(0.5, 4, 1 << 12), 0)
    for part in made.train.values():
        assert part.batch([0, 1])["target_share"].tolist() == [(3 * 0.25 + 1) / 4] * 2


def test_validation_is_the_mean_of_its_own_targets() -> None:
    """The target share is counted in the validation batches, not in the text to train on."""
    tokens = torch.tensor([*range(50), *([~1, ~2, ~3, 4] * 20)])
    text = Text(TokenFile(tokens, ""), target_share=0.9)
    made = token_samples([text], ByteTokenizer(), Cut(0.6, 4, 1 << 12), 0)
    batches = made.validation_batches("", 3, 2)
    assert [batch["target_share"].tolist() for batch in batches] == [[0.25] * 2] * 3
    none = replace(text, file=TokenFile(torch.where(tokens == 4, ~4, tokens), ""))
    made = token_samples([none], ByteTokenizer(), Cut(0.6, 4, 1 << 12), 0)
    assert made.validation_batches("", 1, 2)[0]["target_share"].tolist() == [1.0] * 2
