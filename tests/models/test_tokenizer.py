import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from atom.base.errors import ConfigError
from atom.models.data import tokenizer as module
from atom.models.data.tokenizer import ByteTokenizer, JsonTokenizer, load_tokenizer


def word_file(path: Path, *special: str) -> Path:
    """A tokenizer.json of a few words; all others are 0."""
    words = ["[UNK]", "hello", "world", "é", *special]
    built = tokenizers.Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.save(str(path))
    return path


def numbers(coder: module.Tokenizer, *blocks: bytes) -> list[int]:
    return [number for run in coder.encode(list(coder.pieces(blocks))) for number in run]


def test_bytes_are_their_own_tokens() -> None:
    assert numbers(ByteTokenizer(), b"a\xff", b"\x00") == [97, 255, 0]
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)


def test_a_json_file_gives_its_own_numbers(tmp_path: Path) -> None:
    coder = load_tokenizer(word_file(tmp_path / "t.json", "<|endoftext|>"))
    assert coder.vocabulary_size == 5
    assert coder.end == (4,)
    assert numbers(coder, b"hello \xc3", b"\xa9\nworld nobody") == [1, 3, 2, 0]


def test_what_a_file_says_of_batches_leaves_out_no_text(tmp_path: Path) -> None:
    path = word_file(tmp_path / "t.json")
    built = tokenizers.Tokenizer.from_file(str(path))
    built.enable_truncation(2)
    built.enable_padding(length=9, pad_id=3)
    built.save(str(path))
    tokenizer = load_tokenizer(path)
    assert numbers(tokenizer, b"hello world hello") == [1, 2, 1]


def test_a_text_has_the_same_tokens_every_time(tmp_path: Path) -> None:
    words = {"a": 0, "b": 1, "ab": 2}
    built = tokenizers.Tokenizer(models.BPE(words, [("a", "b")], dropout=0.5))
    built.save(str(tmp_path / "t.json"))
    assert numbers(load_tokenizer(tmp_path / "t.json"), b"ab" * 200) == [2] * 200


def test_pieces_lose_nothing_however_the_blocks_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_CHARACTERS", 4)
    monkeypatch.setattr(module, "_LINE_CHARACTERS", 10)
    text = "ab\ncdef\n" + "x" * 25 + "\nend"
    one = list(module._pieces([text]))
    assert "".join(one) == text
    assert one[:2] == ["ab\ncdef\n", "x" * 10]
    assert list(module._pieces(list(text))) == one


def test_text_that_is_no_text_is_refused(tmp_path: Path) -> None:
    coder = load_tokenizer(word_file(tmp_path / "t.json"))
    with pytest.raises(UnicodeDecodeError):
        numbers(coder, b"hello \xff")
    with pytest.raises(UnicodeDecodeError):
        numbers(coder, b"cut \xc3")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[1, 2]"])
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"t\.json is not a tokenizer"):
        load_tokenizer(path)
    with pytest.raises(ValueError, match=r"gone\.json cannot be read"):
        load_tokenizer(tmp_path / "gone.json")


def changed(path: Path, **parts: object) -> Path:
    """`word_file` with other parts."""
    path.write_text(json.dumps(json.loads(word_file(path).read_text()) | parts))
    return path


UNIGRAM = {"type": "Unigram", "unk_id": None, "vocab": [["hello", -1.0]], "byte_fallback": False}
PANICS = {"type": "FixedLength", "length": 0}


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"model": UNIGRAM}, "`unk_id` is missing"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}}, "Missing"),
        ({"pre_tokenizer": PANICS}, "must be non-zero"),
    ],
)
def test_a_text_that_has_no_tokens_is_no_bug_of_ours(
    tmp_path: Path, parts: dict[str, object], said: str
) -> None:
    coder = load_tokenizer(changed(tmp_path / "t.json", **parts))
    with pytest.raises(ConfigError, match=rf"t\.json cannot encode the text: .*{said}") as caught:
        numbers(coder, b"hello unknown")
    assert "unknown" in caught.value.hint


def test_whoever_interrupts_is_heard(tmp_path: Path) -> None:
    coder = JsonTokenizer(word_file(tmp_path / "t.json"))

    class Interrupted:
        def encode_batch(self, pieces: object, add_special_tokens: bool) -> None:
            raise KeyboardInterrupt

    coder._tokenizer = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        list(coder.encode(["hello"]))


def test_where_the_library_panics_the_file_is_named(tmp_path: Path) -> None:
    normalizer = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path = changed(tmp_path / "t.json", normalizer=normalizer)
    with pytest.raises(ConfigError, match=r"t\.json is not a tokenizer\.json: Precompiled"):
        load_tokenizer(path)
