"""Files as people have them: encodings, packed files, files that are no text, and the account."""

import codecs
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pyarrow
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from atom.base.errors import ConfigError
from atom.models.data.account import Account, doubt_about
from atom.models.data.corpus import Corpus, Reading, text_corpus
from atom.models.data.documents import BLOCK_BYTES
from atom.models.data.rows import RowText
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import ByteTokenizer, byte_level_tokenizer, load_tokenizer

TEXT = "Zwei é „und“\r\nmehr\x85\u2028€.\r"
"""Text whose line ends must stay as they are."""


def contents(corpus: Corpus) -> list[str]:
    return [b"".join(blocks).decode() for blocks in Reading(corpus).texts()]


def corpus_of(path: Path, raw: bytes, encoding: str | None = None) -> Corpus:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return text_corpus([path.parent], rows=RowText(encoding=encoding))


def account_of(corpus: Corpus) -> Account:
    return corpus.survey().account


ZSTD = pyarrow.Codec("zstd")


@pytest.mark.parametrize(
    ("name", "raw", "encoding"),
    [
        ("a.txt", TEXT.encode(), None),
        ("a.txt", codecs.BOM_UTF8 + TEXT.encode(), None),
        ("a.txt", codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), None),
        ("a.txt", codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), None),
        ("a.txt", codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), None),
        ("a.txt", TEXT.encode("utf-16-le"), "utf-16-le"),
        ("a.txt", TEXT.encode(), "windows-1251"),
        ("a.md.gz", gzip.compress(TEXT.encode()), None),
        ("a.txt.ZST", ZSTD.compress(TEXT.encode(), asbytes=True), None),
        ("no suffix", TEXT.encode("gb18030"), "gb18030"),
    ],
)
def test_text_is_read_as_it_was_written(
    tmp_path: Path, name: str, raw: bytes, encoding: str | None
) -> None:
    assert contents(corpus_of(tmp_path / "in" / name, raw, encoding)) == [TEXT]


@pytest.mark.parametrize(
    ("raw", "place", "encoding"),
    [
        ("café".encode("latin-1"), "byte 3 is 0xe9", "windows-1252"),
        ("“quoted”".encode("windows-1252"), "byte 0 is 0x93", "windows-1252"),
        ("x é ".encode() * BLOCK_BYTES + b"\xe9", f"byte {5 * BLOCK_BYTES:,} is 0xe9", "latin-1"),
        ("тест".encode("koi8-r"), "byte 0 is 0xd4", "koi8-r"),
        ("日本".encode("shift_jis"), "byte 0 is 0x93", "shift_jis"),
        (codecs.BOM_UTF8 + b"abc\xff", "byte 6 is 0xff", None),
        (codecs.BOM_UTF16_LE + b"a\0b", "byte 4 is 0x62", None),
        ("cut é".encode()[:-1], "byte 4 is 0xc3", "windows-1252"),
    ],
)
def test_bytes_that_are_not_utf_8_are_refused_by_place_until_their_encoding_is_named(
    tmp_path: Path, raw: bytes, place: str, encoding: str | None
) -> None:
    path = tmp_path / "in" / "bad.txt"
    with pytest.raises(ConfigError, match=rf"bad\.txt is not UTF-.* text: {place}(\n|$)") as caught:
        corpus_of(path, raw).survey()
    assert '[data] encoding = "windows-1252"' in caught.value.hint
    if encoding is not None:
        assert contents(corpus_of(path, raw, encoding)) == [raw.decode(encoding)]


def in_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return packed.getvalue()


def in_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("word/document.xml", "text")
    return packed.getvalue()


NOT_TEXT = {
    "logo.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "p.pdf": b"%PDF-1.4\nstream of text",
    "report.docx": in_zip(),
    "a.tar.gz": in_tar(),
    "w.safetensors": b"\x40\0\0\0\0\0\0\0{}",
    "m.pt": b"PK\x03\x04\0\0",
    "no-mark.txt": "Text".encode("utf-16-le"),
}


@pytest.mark.parametrize("tokenizer", ["bytes", "words"])
def test_files_that_are_not_text_are_refused_by_name(tmp_path: Path, tokenizer: str) -> None:
    for name, raw in (NOT_TEXT | {"good.md": b"text"}).items():
        (tmp_path / name).write_bytes(raw)
    for name in NOT_TEXT:
        with pytest.raises(ConfigError, match=f"{name} is not text") as caught:
            text_corpus([tmp_path / name]).survey()
    with pytest.raises(ConfigError, match=r"a\.tar\.gz is not text"):
        text_corpus([tmp_path]).survey()
    assert '[data] paths = ["…/*.txt"]' in caught.value.hint
    assert 'encoding = "utf-16-le"' in caught.value.hint
    assert contents(text_corpus([str(tmp_path / "*.md")])) == ["text"]


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, cut: bool) -> None:
    whole = b"".join(b"%d " % number for number in range(99999))
    packed = gzip.compress(whole) if name.endswith("gz") else ZSTD.compress(whole, asbytes=True)
    with pytest.raises(ConfigError, match=rf"{name} cannot be read"):
        corpus_of(tmp_path / "in" / name, packed[:-99] if cut else b"nonsense").survey()


def test_bytes_as_they_are(tmp_path: Path) -> None:
    for name, raw in NOT_TEXT.items():
        (tmp_path / name).write_bytes(raw)
    corpus = text_corpus([tmp_path], rows=RowText(encoding="bytes"))
    found = [b"".join(blocks) for blocks in Reading(corpus).texts()]
    assert found == [NOT_TEXT[name] for name in sorted(NOT_TEXT)]


def test_the_account_has_every_part_and_why_it_is_omitted(tmp_path: Path) -> None:
    for name in ("a.txt", "b/.hidden", ".git/x", "empty.txt", "far/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else "zwei é")
    (tmp_path / "utf-16.txt").write_bytes("zwei é".encode("utf-16"))
    rows = [{"text": "eins"}, {"text": None}, {"text": ""}, {"text": "drei"}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "link").symlink_to(tmp_path / "far")
    corpus = text_corpus([tmp_path, tmp_path / "a.txt"])
    account = cached_tokens(corpus, ByteTokenizer(), tmp_path / ".cache").account
    assert (account.files, account.documents, account.characters) == (4, 5, 26)
    assert account.tokens == 29 + 4
    first = {reason: Path(where).name for reason, (_, where) in account.omitted.items()}
    assert first == {
        "hidden file or folder": ".git",
        "link to a folder": "link",
        "file named twice": "a.txt",
        "empty file": "empty.txt",
        "row with null": "rows.json, row 2",
        "empty row": "rows.json, row 3",
        "file converted from utf-16-le": "utf-16.txt",
    }
    assert account.omitted["hidden file or folder"][0] == 2
    lines = list(account.lines())
    assert lines[0] == "4 files, 5 documents, 26 characters, 33 tokens"
    assert any(line.startswith("1 omitted (row with null), the first is") for line in lines)
    assert "text after max_bytes" in account_of(text_corpus([tmp_path], 3)).omitted


# ---- characters that the tokenizer has no token for


def words(path: Path) -> Path:
    vocabulary = {"[UNK]": 0, "hello": 1, "world": 2}
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    return saved(built, path)


def letters(path: Path) -> Path:
    """A tokenizer of some letters, which drops all others without a trace."""
    return saved(Tokenizer(models.BPE({c: i for i, c in enumerate("helo wrd")}, [])), path)


def accents(path: Path) -> Path:
    built = Tokenizer.from_file(str(letters(path)))
    built.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    return saved(built, path)


def pieces(path: Path) -> Path:
    scores = [("<unk>", 0.0), *((letter, -1.0) for letter in "▁helowrd")]
    built = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=False))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    return saved(built, path)


def half_bytes(path: Path) -> Path:
    """A byte-level tokenizer without tokens for bytes above 127."""
    content = json.loads(byte_level_tokenizer())
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {sign: n for sign, n in vocabulary.items() if n < 128}
    path.write_text(json.dumps(content))
    return path


def saved(built: Tokenizer, path: Path) -> Path:
    built.save(str(path))
    return path


@pytest.mark.parametrize(
    ("make", "strange", "lost"),
    [
        (words, " wörld", 5),
        (letters, "€", 1),
        (letters, "日本", 2),
        (accents, "\u0301", 1),
        (pieces, "é", 1),
        (half_bytes, "ß", 1),
    ],
)
def test_lost_characters_stop_the_start_until_they_are_allowed(
    tmp_path: Path, make, strange: str, lost: int
) -> None:
    coder = load_tokenizer(make(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("hello world " * 40)
    (tmp_path / "b.txt").write_text("hello world" + strange + " hello")
    corpus, cache = text_corpus([tmp_path / "*.txt"]), tmp_path / "cache"
    place = rf"the first is '.', character {12 + (make is words)} of .*b\.txt"
    with pytest.raises(ConfigError, match=rf"no token for {lost} of .*{place}") as caught:
        cached_tokens(corpus, coder, cache)
    assert not list(cache.glob("*.tokens"))
    allowed = float(caught.value.hint.split('"')[1].removesuffix(" %")) / 100
    assert 0.001 < allowed < 0.03
    for _ in range(2):
        account = cached_tokens(corpus, coder, cache, lost_text=allowed).account
        assert account.lost == lost
    assert f"lost characters: {lost}, the first is" in "; ".join(account.lines())
    with pytest.raises(ConfigError, match=r"b\.txt"):  # the tokens are there already
        cached_tokens(corpus, coder, cache)


def test_a_tokenizer_of_all_bytes_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(byte_level_tokenizer())
    strange = "[UNK] <unk> \u200b\u0301\ufffd\ue000 日本 \U0001f600\0 \x1b"
    (tmp_path / "a.txt").write_text("." * BLOCK_BYTES + strange)
    corpus = text_corpus([tmp_path / "a.txt"])
    coder = load_tokenizer(tmp_path / "t.json")
    assert cached_tokens(corpus, coder, tmp_path, lost_text=0).account.lost == 0


def test_the_unknown_token_as_text_is_not_lost(tmp_path: Path) -> None:
    coder = load_tokenizer(words(tmp_path / "t.json"))
    built = Tokenizer.from_file(str(tmp_path / "t.json"))
    built.add_special_tokens(["[UNK]"])
    coder = load_tokenizer(saved(built, tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text("hello [UNK] world")
    corpus = text_corpus([tmp_path / "a.txt"])
    assert cached_tokens(corpus, coder, tmp_path, lost_text=0).account.lost == 0


# ---- validation text


@pytest.mark.parametrize(
    ("tail", "is_doubtful"),
    [
        ("the mill and the brook {}\n", False),
        ("def f{}(x): return x + 1\n", True),
        ("<td class='a'>{}</td>\n", True),
        ("{}, 0.17, 3.99, 12\n", True),
        ("ZEILE {} GROSS UND LAUT\n", True),
        ("Наш ручей {}\n", True),
    ],
)
def test_a_validation_text_that_is_unlike_the_training_text_is_doubtful(
    tail: str, is_doubtful: bool
) -> None:
    head = "".join(f"the mill and the brook {number}\n" for number in range(900))
    end = "".join(map(tail.format, range(900, 1000)))
    train, held = (torch.tensor(list(text.encode())) for text in (head, end))
    assert bool(doubt_about(train, held)) == is_doubtful
    assert bool(doubt_about(~train, held)) == is_doubtful
    assert doubt_about(train, held[:400]) == ""


def test_tokens_are_mapped_without_a_private_copy(tmp_path: Path) -> None:
    """A private map counts as memory, so that one larger than the memory would be refused."""
    file = cached_tokens(corpus_of(tmp_path / "in" / "a", b"text"), ByteTokenizer(), tmp_path)
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if ".tokens" in line]
    assert [line.split()[1] for line in maps if str(tmp_path) in line] == ["rw-s"]
    assert bytes(file.tokens.tolist()) == b"text"


@pytest.mark.parametrize("raw", [b"\x89PNG\0\xff", b"%PDF-1.7 \xff"])
def test_an_encoding_makes_no_text_of_other_files(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(ConfigError, match="is not text"):
        corpus_of(tmp_path / "in" / "a.txt", raw, "latin-1").survey()
