"""Conversations become the tokens of the tokenizer's own template; answers alone are targets."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers

from atom.base.errors import ConfigError
from atom.models.data.conversations import RowTokenizer
from atom.models.data.rows import RowText
from atom.models.data.samples import Cut, Samples, Text, token_samples
from atom.models.data.stored_dataset import StoredDataset
from atom.models.data.token_file import cached_tokens
from atom.models.data.tokenizer import JsonTokenizer, load_tokenizer
from atom.models.gpt3 import IGNORED
from tests.models.chat_tokenizer import CHATML, STOP, chat_tokenizer

S = 24
CHATS = [
    [("system", "Be brief."), ("user", "One?"), ("assistant", "Zwei é."), ("user", "?")],
    [("user", "Hello"), ("assistant", "Hi"), ("user", "And " * 20), ("assistant", "so on")],
    [("user", "Nobody answers.")],
]
ROWS = [[{"role": role, "content": text} for role, text in chat] for chat in CHATS]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def samples(
    tmp_path: Path, rows: dict[str, Any], answers: bool = True, template: str | None = CHATML
) -> Samples:
    tmp_path.mkdir(exist_ok=True)
    tokenizer = chat_tokenizer(tmp_path / "tokenizer", template)
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "table")
    form = RowText(tokenizer=str(tokenizer), answers=answers)
    stored = StoredDataset(str(tmp_path / "table"), form)
    coder = JsonTokenizer(tokenizer)
    writer = RowTokenizer(coder, answers)
    file = cached_tokens(stored.corpus(), writer, tmp_path / "cache")
    share = file.target_share() if answers else None
    return token_samples([Text(file, target_share=share)], coder, Cut(0.0, S, 1 << 22), seed=0)


def in_file(samples: Samples) -> list[int]:
    (file,) = samples.files
    found: list[int] = file.tokens.tolist()
    return found


def test_tokens_and_targets_are_those_of_transformers(tmp_path: Path) -> None:
    found = in_file(samples(tmp_path, {"messages": ROWS}))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "tokenizer"))
    wanted = list[int]()
    for chat in ROWS[:2]:
        told = tokenizer.apply_chat_template(
            chat, return_dict=True, return_assistant_tokens_mask=True
        )
        pairs = zip(told["input_ids"], told["assistant_masks"], strict=True)
        wanted += [token if counts else ~token for token, counts in pairs]
        wanted.append(~tokenizer.eos_token_id)
    assert found == wanted
    written = tokenizer.decode([max(token, ~token) for token in found])
    coder = RowTokenizer(JsonTokenizer(tmp_path / "tokenizer" / "tokenizer.json"), True)
    assert coder.decode(found) == written


def test_windows_say_what_is_a_target(tmp_path: Path) -> None:
    made = samples(tmp_path, {"messages": ROWS})
    raw = torch.tensor(in_file(made))
    batch = made.train[""].batch([0, 1])
    share = int((raw >= 0).sum()) / len(raw)
    assert batch["target_share"].tolist() == pytest.approx([share] * 2, abs=1e-6)
    for row in (0, 1):
        window = raw[row * S : row * S + S + 1]
        plain = torch.where(window < 0, ~window, window)
        assert torch.equal(batch["tokens"][row], plain[:-1])
        counts = window[1:] >= 0
        assert torch.equal(batch["targets"][row][counts], plain[1:][counts])
        assert set(batch["targets"][row][~counts].tolist()) <= {IGNORED}


def test_a_completion_and_its_end_are_targets(tmp_path: Path) -> None:
    made = samples(tmp_path, {"prompt": ["1+1=", "x" * S, "none"], "completion": ["2", "y", ""]})
    stop = 258
    wanted = [*(~byte for byte in b"1+1="), *b"2", stop, *[~byte for byte in b"x" * S], *b"y", stop]
    assert in_file(made) == wanted


@pytest.mark.parametrize("answers", [True, False])
def test_rows_of_null_are_left_out(tmp_path: Path, answers: bool) -> None:
    pairs = {"prompt": ["1" * S, None, "2"], "completion": ["2", "3", None]}
    byte, stop = (~ord("1"), [258]) if answers else (ord("1"), [])
    assert in_file(samples(tmp_path / "pairs", pairs, answers)) == [*[byte] * S, ord("2"), *stop]
    chats = samples(tmp_path / "chats", {"messages": [None, *ROWS]}, answers)
    assert in_file(chats) == in_file(samples(tmp_path / "whole", {"messages": ROWS}, answers))


def test_a_template_that_writes_the_date_writes_the_same_one_every_day(tmp_path: Path) -> None:
    """Llama's does: the text would be another one tomorrow, and on another machine."""
    dated = "\n{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ day() }} " + CHATML
    made = samples(tmp_path, {"messages": ROWS}, answers=False, template=dated)
    text = load_tokenizer(tmp_path / "tokenizer" / "tokenizer.json").decode(in_file(made))
    assert text.startswith("\n26 Jul 2024 <|im_start|>")


def test_all_of_a_conversation_may_be_targets(tmp_path: Path) -> None:
    found = in_file(samples(tmp_path, {"messages": ROWS}, answers=False))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(str(tmp_path / "tokenizer"))
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in ROWS]
    assert found == tokenizer(STOP.join(texts))["input_ids"]


@pytest.mark.parametrize(
    ("rows", "template", "said"),
    [
        ({"text": ["x" * 99]}, CHATML, "row 1: no answers; it has 'text'"),
        ({"messages": ROWS}, None, "has no chat template"),
        ({"messages": [ROWS[2]]}, CHATML, "all empty"),
        ({"messages": [ROWS[0][:1], ROWS[1]]}, "{{ raise_exception('odd') }}", "row 1: .*odd"),
        ({"messages": [ROWS[1]]}, "{{ messages[-1]['content'] }}", "writes message 4 differently"),
        ({"messages": ["hello"]}, CHATML, "row 1 is not a list of messages"),
    ],
)
def test_what_is_no_conversation_is_named(
    tmp_path: Path, rows: dict[str, Any], template: str | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        samples(tmp_path, rows, template=template)
