"""Rows of a table that are conversations, or a prompt and its completion, as text; and which tokens
of it are answers.

The tokenizer's own chat template, in tokenizer_config.json or chat_template.jinja beside its
tokenizer.json, writes a conversation; `transformers` renders it, in a sandbox. Where answers count
alone, a document is UTF-8 text cut by `MARK`: every second part is an answer. Their tokens are as
they are, any other token t is stored as ~t, so a file of tokens says itself what is a target.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from atom.models.data.token_file import TokenFile
from atom.models.data.tokenizer import JsonTokenizer, Tokenizer
from atom.models.installing import install_extra
from atom.models.source import DataError

MARK = b"\xff"
"""A byte that is nowhere in UTF-8."""
MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
COLUMNS = ((MESSAGES,), (PROMPT, COMPLETION))
_ANSWERING = "assistant"
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}\n"
"""Before a template, so that it writes the same text every day: the date that Llama's write where
they know none."""
_COUNTED_AT_ONCE = 1 << 24
_NEEDS_ITS_OWN = (
    "conversations need the model's own tokenizer, and its chat template",
    'name it: [data] tokenizer = "FOLDER/tokenizer.json"',
)
_BESIDE = "its tokenizer_config.json, or chat_template.jinja, belongs beside its tokenizer.json"


class ChatTemplate:
    """Of a tokenizer.json's folder, read when a conversation comes."""

    def __init__(self, tokenizer: str) -> None:
        """`tokenizer`: a path. Raises: DataError for "bytes"."""
        if tokenizer == "bytes":
            raise DataError(*_NEEDS_ITS_OWN)
        self._path = Path(tokenizer)
        self._end = JsonTokenizer(self._path).separator_text or ""
        self._writer: Any = None

    def document(self, row: Mapping[str, Any], where: str, marked: bool) -> bytes:
        """`row` has one of `COLUMNS`. `marked`: cut by `MARK`, and closed by the token that ends a
        text; empty if nothing of it is an answer. Raises: DataError, naming `where`."""
        if (messages := row.get(MESSAGES)) is None:
            prompt, completion = row[PROMPT], row[COMPLETION]
            if isinstance(prompt, str) and isinstance(completion, str):
                return self._joined([prompt, completion, ""] if completion else [prompt], 1, marked)
            messages = [*prompt, *completion]
        return self._joined(self._parts(messages, where), -1, marked)

    def _joined(self, parts: list[str], end: int, marked: bool) -> bytes:
        """`end`: the part that the end of the text belongs to."""
        if not marked:
            return "".join(parts).encode()
        if len(parts) == 1:
            return b""
        parts[end] += self._end
        return MARK.join(part.encode() for part in parts)

    def _parts(self, messages: Any, where: str) -> list[str]:
        """What is no answer and what is, in turns."""
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise DataError(f"{where} is no list of messages", "each has a role and a content")
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        text, parts, at = self._written(chat, where), list[str](), 0
        for number, message in enumerate(chat):
            if message.get("role") == _ANSWERING:
                before = self._written(chat[:number], where, asks=True)
                through = self._written(chat[: number + 1], where)
                if not (through.startswith(before) and text.startswith(through)):
                    raise DataError(
                        f"{where}: the chat template writes message {number + 1} otherwise once "
                        "others follow, so it is not known which tokens answer",
                        "keep one answer in each row, at its end, or change the template",
                    )
                parts += [text[at : len(before)], text[len(before) : len(through)]]
                at = len(through)
        return [*parts, text[at:]]

    def _written(self, chat: list[Any], where: str, asks: bool = False) -> str:
        """`asks`: with what comes before an answer."""
        self._writer = self._writer or _writer(self._path)
        try:
            template = _SAME_DAY + self._writer.get_chat_template()
            written = self._writer.apply_chat_template(
                chat, chat_template=template, tokenize=False, add_generation_prompt=asks
            )
        except Exception as error:  # a template raises what it likes
            what = f"{where}: the chat template cannot write it: {error}"
            raise DataError(what, "its roles may have to take turns, for example") from error
        return str(written)


class AnswersOnly:
    """A `Tokenizer` of documents with marks: what is no answer is complemented."""

    complements = True
    separator: Sequence[int] = ()
    """Each document has its end."""

    def __init__(self, inner: Tokenizer) -> None:
        """Raises: DataError for "bytes"."""
        if not isinstance(inner, JsonTokenizer):
            raise DataError(*_NEEDS_ITS_OWN)
        self._inner = inner
        self.vocabulary_size, self.digest = inner.vocabulary_size, inner.digest
        self.content = inner.content

    def pieces(self, blocks: Iterable[bytes]) -> Iterator["_Marked"]:
        """The whole document. Raises: ValueError if it is not UTF-8."""
        yield _Marked([part.decode() for part in b"".join(blocks).split(MARK)])

    def encode(self, pieces: Sequence["_Marked"]) -> Iterator[Sequence[int]]:
        """A token that has a part in an answer belongs to it. Raises: DataError."""
        encodings = self._inner.encodings([piece.text for piece in pieces])
        for piece, encoding in zip(pieces, encodings, strict=True):
            answers = piece.answers(encoding.offsets)
            yield [t if told else ~t for t, told in zip(encoding.ids, answers, strict=True)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Answers and all else."""
        return self._inner.decode([max(token, ~token) for token in tokens])


class _Marked:
    def __init__(self, parts: Sequence[str]) -> None:
        self.text = "".join(parts)
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return len(self.text)

    def answers(self, offsets: Sequence[tuple[int, int]]) -> Iterator[bool]:
        """For tokens at these places of the text, in order."""
        spans = list(zip(self._ends[0::2], self._ends[1::2], strict=False))
        for start, end in offsets:
            while spans and spans[0][1] <= start:
                del spans[0]
            yield bool(spans) and spans[0][0] < max(end, start + 1)


def target_share(file: TokenFile) -> float:
    """Of the file's tokens, those that are targets. Raises: DataError if none is."""
    parts = torch.split(file.tokens, _COUNTED_AT_ONCE)
    share = sum(int((part >= 0).sum()) for part in parts) / len(file.tokens)
    if not share:
        raise DataError("no row has an answer", "name another table, or train on all of it")
    return round(share, 6) or share


def _writer(tokenizer: Path) -> Any:
    try:
        import transformers
    except ImportError as error:
        what = f"a chat template needs the package transformers ({error})"
        raise DataError(what, f"`{install_extra('hf')}`") from error
    folder = tokenizer.parent
    try:
        found = transformers.PreTrainedTokenizerFast.from_pretrained(
            str(folder), local_files_only=True
        )
    except Exception as error:  # as many kinds as there are files
        raise DataError(f"{folder} holds no tokenizer: {error}", _BESIDE) from error
    if not found.chat_template:
        raise DataError(f"the tokenizer in {folder} has no chat template", _BESIDE)
    return found
