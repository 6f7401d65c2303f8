"""Documents in lines: JSON lines, packed or not."""

import gzip
import json
from pathlib import Path

import pytest

from atom.models.data import json_lines
from atom.models.data.corpus import BLOCK_BYTES, Corpus, DataError, Limits
from atom.models.data.files import text_corpus
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import ByteTokenizer

TEXTS = ["one", "zwei\nlines é", "", "x" * (BLOCK_BYTES + 3), "last"]


def lines(texts: list[str | None], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: text}).encode() + b"\n" for text in texts)


def contents(corpus: Corpus) -> list[bytes]:
    return [b"".join(text.blocks) for text in corpus.texts()]


def in_containers(root: Path) -> list[Path]:
    """The same texts in every form, each in a folder of its own."""
    raw = lines([*TEXTS, None])
    for name, content in {
        "plain.jsonl": raw,
        "upper.NDJSON": b"\n" + raw.replace(b"\n", b"\r\n").rstrip(),
        "packed.jsonl.gz": gzip.compress(raw[:9]) + gzip.compress(raw[9:]),
    }.items():
        (root / name[:2] / name[-3:]).mkdir(parents=True)
        (root / name[:2] / name[-3:] / name).write_bytes(content)
    (root / "files").mkdir()
    for index, text in enumerate(TEXTS):
        (root / "files" / str(index)).write_text(text)
    return [path.parent for path in sorted(root.rglob("*")) if path.is_file()]


def test_equal_texts_are_equal_in_every_container(tmp_path: Path) -> None:
    folders = set(in_containers(tmp_path / "in"))
    assert len(folders) == 4
    corpora = [text_corpus([folder]) for folder in folders]
    assert {tuple(contents(corpus)) for corpus in corpora} == {
        tuple(text.encode() for text in TEXTS if text)
    }
    assert len({corpus.survey() for corpus in corpora}) == 1
    digests = {cached_tokens(one, ByteTokenizer(), tmp_path / "c").digest for one in corpora}
    assert len(digests) == 1
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_folder_may_mix_suffixes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('{"text": "as it is"}')
    (tmp_path / "b.jsonl").write_bytes(lines(["line"], "content"))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines(["row"], "content")))
    corpus = text_corpus([tmp_path], Limits(), "content")
    assert contents(corpus) == [b'{"text": "as it is"}', b"line", b"row"]
    assert contents(text_corpus([tmp_path], Limits(23, None), "content"))[1:] == [b"lin"]
    assert len(contents(text_corpus([tmp_path], Limits(None, 2), "content"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "said", "hint"),
    [
        ("a.jsonl", b'{"text": "x"}\nnonsense\n', "a.jsonl, line 2: expected a JSON", ".txt"),
        ("a.jsonl", b'\n["text"]\n', "line 2: expected a JSON object, found list", ".txt"),
        ("a.jsonl", b"[" * 100_000, "line 1: expected a JSON object", ".txt"),
        ("a.jsonl", b'{"body": "x"}', "line 1: no field \"text\"; it has 'body'", "text_field"),
        ("a.jsonl", b'{"text": 3}', 'line 1: "text" holds int, not a text', "text_field"),
        ("a.jsonl", b'{"text": "\\ud800"}', "surrogate", "write"),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: expected a JSON object", ".txt"),
        ("a.jsonl", b'{"text": "' + b"x" * 99 + b'"}', "line 1: longer than", ".txt"),
        ("a.jsonl.gz", gzip.compress(lines(["x"] * 9))[:-9], "packed file is damaged", "again"),
        ("a.jsonl.gz", b"no gzip", "line 1: the packed file is damaged", "fetch it again"),
        ("a.jsonl.zst", b"", "a.jsonl.zst is packed", 'source = "datasets"'),
        ("a.parquet", b"", "a.parquet is packed", 'source = "datasets"'),
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, said: str, hint: str
) -> None:
    if len(content) < 1000:
        monkeypatch.setattr(json_lines, "_MAX_LINE_BYTES", 99)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        contents(text_corpus([tmp_path]))
    assert said in caught.value.message
    assert hint in caught.value.hint
