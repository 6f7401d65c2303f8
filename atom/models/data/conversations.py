"""Text of table rows that are conversations (or prompt and completion), and marks for answers.

The tokenizer's own chat template (tokenizer_config.json or chat_template.jinja in the folder of its
tokenizer.json) turns a conversation into text; `transformers` renders it in a sandbox. If the run
trains on answers only, a document is UTF-8 text separated by `MARK`: every second part is an
answer. A token of an answer is stored as it is, any other token t as ~t, so a token file itself
records which tokens are targets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from atom.models.data.tokenizer import JsonTokenizer, Tokenizer
from atom.models.source import DataError, install_extra

MARK = b"\xff"
"""Separator of parts of a document: a byte that never occurs in UTF-8."""
MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
COLUMNS = ((MESSAGES,), (PROMPT, COMPLETION))
"""Sets of columns that make a row a conversation, in order of preference."""
_ANSWERING = "assistant"
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}\n"
"""Prefix of every template, which fixes today's date so that the text is the same every day.

The date is the default of Llama's templates.
"""
_NEEDS_ITS_OWN = (
    "conversations need the model's own tokenizer and its chat template",
    'name it: [data] tokenizer = "FOLDER/tokenizer.json"',
)
_HINT = "put its tokenizer_config.json or chat_template.jinja into its tokenizer.json's folder"


class ChatTemplate:
    """Chat template in the folder of a tokenizer.json, loaded when first needed."""

    def __init__(self, tokenizer: str) -> None:
        """Remember the tokenizer's path.

        Raises:
            DataError: the tokenizer is "bytes".
        """
        if tokenizer == "bytes":
            raise DataError(*_NEEDS_ITS_OWN)
        self._path = Path(tokenizer)
        self._end = JsonTokenizer(self._path).separator_text or ""
        self._tokenizer: Any = None

    def document(self, row: Mapping[str, Any], where: str, marked: bool) -> bytes:
        """Return the text of one row as UTF-8.

        Args:
            row: values of one of the column sets of `COLUMNS`.
            where: name of the row in errors.
            marked: True: separate answers from other text by `MARK`, and end the text with the
                end-of-text token; the result is empty if the row has no answer.

        Raises:
            DataError: the template does not fit the row; the message names `where`.
        """
        if (messages := row.get(MESSAGES)) is None:
            prompt, completion = row[PROMPT], row[COMPLETION]
            if isinstance(prompt, str) and isinstance(completion, str):
                return self._joined([prompt, completion, ""] if completion else [prompt], 1, marked)
            messages = [*prompt, *completion]
        return self._joined(self._parts(messages, where), -1, marked)

    def _joined(self, parts: list[str], end: int, marked: bool) -> bytes:
        """Join the parts; if `marked`, by MARK, with the end-of-text token added to `parts[end]`.

        A single part has no answer, so that marked text is empty then.
        """
        if not marked:
            return "".join(parts).encode()
        if len(parts) == 1:
            return b""
        parts[end] += self._end
        return MARK.join(part.encode() for part in parts)

    def _parts(self, messages: Any, where: str) -> list[str]:
        """Return the conversation as alternating parts: other text, answer, other text, …"""
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise DataError(f"{where} is not a list of messages", "each has a role and a content")
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        text, parts, at = self._written(chat, where), list[str](), 0
        for number, message in enumerate(chat):
            if message.get("role") == _ANSWERING:
                before = self._written(chat[:number], where, answer_follows=True)
                through = self._written(chat[: number + 1], where)
                if not (through.startswith(before) and text.startswith(through)):
                    raise DataError(
                        f"{where}: the chat template writes message {number + 1} differently when "
                        "more messages follow, so its tokens cannot be found",
                        "keep one answer in each row, at its end, or change the template",
                    )
                parts += [text[at : len(before)], text[len(before) : len(through)]]
                at = len(through)
        return [*parts, text[at:]]

    def _written(self, chat: list[Any], where: str, answer_follows: bool = False) -> str:
        """Render messages as text; `answer_follows` appends the header of the next answer."""
        self._tokenizer = self._tokenizer or _chat_tokenizer(self._path)
        try:
            template = _SAME_DAY + self._tokenizer.get_chat_template()
            written = self._tokenizer.apply_chat_template(
                chat, chat_template=template, tokenize=False, add_generation_prompt=answer_follows
            )
        except Exception as error:  # a template may raise any exception
            what = f"{where}: the chat template cannot write the conversation: {error}"
            raise DataError(what, "check its roles: they may have to alternate") from error
        return str(written)


class AnswersOnly:
    """`Tokenizer` of documents with marks, which complements all tokens outside answers."""

    complements = True
    separator: Sequence[int] = ()
    """Empty separator, because each document already ends with the end-of-text token."""

    def __init__(self, inner: Tokenizer) -> None:
        """Wrap a tokenizer.

        Raises:
            DataError: the tokenizer is the "bytes" tokenizer.
        """
        if not isinstance(inner, JsonTokenizer):
            raise DataError(*_NEEDS_ITS_OWN)
        self._inner = inner
        self.vocabulary_size, self.digest = inner.vocabulary_size, inner.digest
        self.content = inner.content

    def pieces(self, blocks: Iterable[bytes]) -> Iterator["_Marked"]:
        """Yield the whole document as one piece.

        Raises:
            ValueError: the document is not UTF-8.
        """
        yield _Marked([part.decode() for part in b"".join(blocks).split(MARK)])

    def encode(self, pieces: Sequence["_Marked"]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each piece; tokens outside answers are complemented.

        A token that overlaps an answer, if only by one character, belongs to the answer.

        Raises:
            DataError: the tokenizer has no token for some text.
        """
        encodings = self._inner.encodings([piece.text for piece in pieces])
        for piece, encoding in zip(pieces, encodings, strict=True):
            answers = piece.answers(encoding.offsets)
            yield [t if target else ~t for t, target in zip(encoding.ids, answers, strict=True)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of all tokens, in answers and outside."""
        return self._inner.decode([max(token, ~token) for token in tokens])


class _Marked:
    """Document text with the places of its answers."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.text = "".join(parts)
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return len(self.text)

    def answers(self, offsets: Sequence[tuple[int, int]]) -> Iterator[bool]:
        """Yield for each token, given its (start, end) in the text, whether it is in an answer.

        The tokens must be in the order of the text.
        """
        spans = list(zip(self._ends[0::2], self._ends[1::2], strict=False))
        for start, end in offsets:
            while spans and spans[0][1] <= start:
                del spans[0]
            yield bool(spans) and spans[0][0] < max(end, start + 1)


def _chat_tokenizer(tokenizer: Path) -> Any:
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
    except Exception as error:  # the library raises many kinds, depending on the file
        raise DataError(f"{folder} holds no usable tokenizer: {error}", _HINT) from error
    if not found.chat_template:
        raise DataError(f"the tokenizer in {folder} has no chat template", _HINT)
    return found
