"""Documents in lines and rows: JSON lines, packed or not, and parquet."""

import gzip
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from atom.models.data import json_lines
from atom.models.data.cache import cached_tokens
from atom.models.data.corpus import BLOCK_BYTES, Corpus, DataError, Limits
from atom.models.data.files import text_corpus
from atom.models.data.tokenizer import ByteTokenizer
from atom.models.installing import install_extra

TEXTS = ["one", "zwei\nlines é", "", "x" * (BLOCK_BYTES + 3), "last"]


def lines(texts: list[str | None], field: str = "text") -> bytes:
    return b"".join(json.dumps({"id": 1, field: text}).encode() + b"\n" for text in texts)


def contents(corpus: Corpus) -> list[bytes]:
    return [b"".join(text.blocks) for text in corpus.texts()]


def in_containers(root: Path) -> list[Path]:
    """The same texts in every form, each in a folder of its own."""
    raw = lines([*TEXTS, None])
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, "zstd") as stream:
        stream.write(raw)
    table = pa.table({"id": [1] * len(TEXTS), "text": TEXTS})
    coded = table.set_column(1, "text", table["text"].dictionary_encode())
    for name, content in {
        "plain.jsonl": raw,
        "upper.NDJSON": b"\n" + raw.replace(b"\n", b"\r\n").rstrip(),
        "packed.jsonl.gz": gzip.compress(raw[:9]) + gzip.compress(raw[9:]),
        "packed.jsonl.zst": packed.getvalue().to_pybytes(),
    }.items():
        (root / name[:2] / name[-3:]).mkdir(parents=True)
        (root / name[:2] / name[-3:] / name).write_bytes(content)
    views = table.set_column(1, "text", table["text"].cast(pa.string_view()))
    for folder, rows in (("rows", table), ("coded", coded), ("views", views)):
        (root / folder).mkdir()
        parquet.write_table(rows, root / folder / "t.parquet", row_group_size=2)
    (root / "files").mkdir()
    for index, text in enumerate(TEXTS):
        (root / "files" / str(index)).write_text(text)
    return [path.parent for path in sorted(root.rglob("*")) if path.is_file()]


def test_equal_texts_are_equal_in_every_container(tmp_path: Path) -> None:
    folders = set(in_containers(tmp_path / "in"))
    assert len(folders) == 8
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
    parquet.write_table(pa.table({"content": ["row"]}), tmp_path / "c.parquet")
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
        ("a.jsonl.zst", b"no zstd", "a.jsonl.zst cannot be read", "rights"),
        ("a.parquet", b"no parquet", "a.parquet is not a parquet file", "fetch it again"),
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


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [("body", ["x"], "no column \"text\"; it has 'body'"), ("text", [1], "holds int64, not text")],
)
def test_a_wrong_column_is_named(
    tmp_path: Path, column: str, values: list[object], said: str
) -> None:
    parquet.write_table(pa.table({column: values}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet") as caught:
        contents(text_corpus([tmp_path]))
    assert said in caught.value.message
    assert "text_field" in caught.value.hint


def test_a_column_is_taken_by_its_whole_name(tmp_path: Path) -> None:
    nested = pa.table({"a": [{"b": "not this"}], "a.b": ["this"]})
    parquet.write_table(nested, tmp_path / "a.parquet")
    assert contents(text_corpus([tmp_path], Limits(), "a.b")) == [b"this"]
    twice = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["a.b", "a.b"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r'2 columns are called "a\.b"'):
        contents(text_corpus([tmp_path], Limits(), "a.b"))


def test_a_page_that_is_not_what_was_written_is_no_text(tmp_path: Path) -> None:
    path, plain = tmp_path / "a.parquet", {"compression": "none", "use_dictionary": False}
    parquet.write_table(pa.table({"text": ["hello"]}), path, write_page_checksum=True, **plain)
    assert contents(text_corpus([tmp_path])) == [b"hello"]
    path.write_bytes(path.read_bytes().replace(b"hello", b"hellO"))
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: .*checksum"):
        contents(text_corpus([tmp_path]))


def test_what_the_library_cannot_unpack_is_no_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, *given: object, **more: object) -> None:
        raise pa.ArrowNotImplementedError("Support for codec 'lzo' not built")

    parquet.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", refuse)
    with pytest.raises(DataError, match="cannot read it: Support for codec 'lzo'") as caught:
        contents(text_corpus([tmp_path]))
    assert "zstd" in caught.value.hint


def test_without_the_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet.write_table(pa.table({"text": ["x"]}), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="needs the package `pyarrow`") as caught:
        contents(text_corpus([tmp_path]))
    assert install_extra("data") in caught.value.hint
