"""The tokenizer's own folder decides which tokens begin and end documents and answers."""

import json
from pathlib import Path

import pytest
import transformers

from atom.base.errors import ConfigError
from atom.models.data import tokenizer_settings
from atom.models.data.conversations import ChatTemplate
from atom.models.data.corpus import text_corpus
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import ByteTokenizer, JsonTokenizer, borders
from tests.models.chat_tokenizer import FAMILIES, Family, tokenizer_folder


def loaded(tmp_path: Path, family: Family) -> JsonTokenizer:
    named = family.tokens, family.config, family.around, family.files
    return JsonTokenizer(tokenizer_folder(tmp_path / "model", *named))


@pytest.mark.parametrize("name", FAMILIES)
def test_documents_and_answers_end_as_the_folder_declares(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    coder = loaded(tmp_path, family)
    assert (coder.begin, coder.end) == (family.begin, family.end)
    written = ChatTemplate(coder).answer_end()
    ends = [*dict.fromkeys([end for end in (written, *coder.ends) if end is not None])]
    assert ends[:1] == ([] if family.answer is None else [family.answer])
    if name != "added bos":  # transformers takes a tokenizer.json as it is
        library = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "model"))
        around = library("a")["input_ids"]
        assert around[: len(family.begin)] == [*family.begin, 97][: len(family.begin)]
        assert len(library) == coder.vocabulary_size
        assert library.eos_token_id in (None, *coder.ends)
    text = tmp_path / "text"
    text.mkdir()
    for each in "ab":
        (text / f"{each}.txt").write_text(each)
    found = cached_tokens(text_corpus([text]), coder, tmp_path / "cache").tokens.tolist()
    assert found == [*family.begin, 97, *family.end, *family.begin, 98]
    line = borders(coder, ends)
    assert ("nothing stands between" in line) == (not family.end)
    assert all(coder.token(number) in line for number in (*family.begin, *family.end, *ends[:1]))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_settings_travel_with_the_tokenizer(tmp_path: Path, name: str) -> None:
    here = loaded(tmp_path, FAMILIES[name])
    (tmp_path / "joiner").mkdir()
    (tmp_path / "joiner" / "tokenizer.json").write_bytes(here.packed)
    there = JsonTokenizer(tmp_path / "joiner" / "tokenizer.json")
    assert (there.digest, there.settings, there.content) == (
        here.digest,
        here.settings,
        here.content,
    )
    assert (there.begin, there.end, there.ends) == (here.begin, here.end, here.ends)
    config = tmp_path / "model" / "tokenizer_config.json"
    if config.exists():
        raw = json.loads(config.read_text())
        config.write_text(
            json.dumps(raw | {"auto_map": {"A": "b.py"}, "vocab_file": "x"}, indent=9)
        )
        assert JsonTokenizer(tmp_path / "model" / "tokenizer.json").digest == here.digest
        config.write_text(json.dumps(raw | {"pad_token": "<a>"}))
        assert JsonTokenizer(tmp_path / "model" / "tokenizer.json").digest != here.digest


def test_a_document_has_each_end_once(tmp_path: Path) -> None:
    coder = loaded(tmp_path, FAMILIES["mistral"])
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("<s>a</s>")
    (text / "b.txt").write_text("b")
    found = cached_tokens(text_corpus([text]), coder, tmp_path / "cache").tokens.tolist()
    assert found == [256, 97, 257, 256, 98]
    assert borders(ByteTokenizer(), ()).startswith("documents end with a newline")


@pytest.mark.parametrize(
    "settings",
    [
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"../../x.jinja": "a"}',
        b'{"additional_chat_templates/../x.jinja": "a"}',
        b'{"tokenizer_config.json": "text"}',
        b'{"chat_template.jinja": {}}',
        b'{"generation_config.json": {"a": NaN}}',
        b'{"tokenizer_config.json": {"added_tokens_decoder": {"x": 1}}}',
        b'{"tokenizer_config.json": {"added_tokens_decoder": [1]}}',
        b'{"tokenizer_config.json": {"eos_token": {"content": "x", "special": "no"}}}',
        b'{"chat_template.jinja": "' + b"x" * tokenizer_settings.MOST_BYTES + b'"}',
    ],
    ids=lambda settings: settings[:40].decode(),
)
def test_settings_of_strangers_are_checked(tmp_path: Path, settings: bytes) -> None:
    path = tokenizer_folder(tmp_path, ["<a>"])
    path.write_bytes(path.read_bytes() + b"\0" + settings)
    with pytest.raises(ConfigError, match=r"tokenizer's settings|tokens that cannot be added"):
        JsonTokenizer(path)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_damaged_file_beside_the_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    path = tokenizer_folder(tmp_path, ["<a>"])
    beside = tmp_path / "generation_config.json"
    beside.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match="tokenizer's settings"):
        JsonTokenizer(path)


@pytest.mark.parametrize("value", [None, "2", [1.5, True, -1, "x"], {"a": 1}, [10**30]])
def test_only_tokens_end_an_answer(tmp_path: Path, value: object) -> None:
    path = tokenizer_folder(
        tmp_path, ["<a>"], files={"generation_config.json": {"eos_token_id": value}}
    )
    assert JsonTokenizer(path).ends == ()


@pytest.mark.parametrize(
    "template", [[{"name": [], "template": "x"}], {"default": 7}, [{"name": "a"}], 7, "\ud800"]
)
def test_a_malformed_template_of_a_stranger_is_refused(template: object) -> None:
    packed = tokenizer_settings.pack(b"{}", {"tokenizer_config.json": {"chat_template": template}})
    with pytest.raises(ConfigError, match="settings"):
        tokenizer_settings.unpack(packed, "stranger")
