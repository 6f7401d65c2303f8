"""Text of table rows that are conversations (or prompt and completion), and marks for answers.

The tokenizer's own chat template (tokenizer_config.json or chat_template.jinja in the folder of its
tokenizer.json) turns a conversation into text; `transformers` renders it in a sandbox. Such a
document begins with `BREAK`. If the run trains on answers only, its parts are separated by `MARK`:
every second part is an answer. A token of an answer is stored as it is, any other token t as ~t, so
a token file itself records which tokens are targets.

Markup such as <|im_start|> inside a message must not become a turn: it has a `BREAK` after its
first character, and both sides are tokenised separately, so the tokenizer sees plain characters.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate, chain, repeat, takewhile
from operator import eq
from typing import Any

from atom.base.errors import ConfigError
from atom.models.data.tokenizer import JsonTokenizer, Tokenizer, tokens_of
from atom.models.data.tokenizer_settings import special_tokens, templates
from atom.models.source import needs_extra

MARK, BREAK = b"\xff", b"\xfe"
"""Separators of the parts of a document: bytes that never occur in UTF-8."""
_MARK, _BREAK = "\udcff", "\udcfe"
"""The same separators in a str, as "surrogateescape" decodes them."""
MESSAGES, PROMPT, COMPLETION, TOOLS = "messages", "prompt", "completion", "tools"
_ANSWERING = "assistant"
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}\n"
"""Prefix of every template, which fixes today's date so that the text is the same every day.

The date is the default of Llama's templates.
"""
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_NEEDS_ITS_OWN = (
    "conversations need the model's own tokenizer and its chat template",
    'name it: [data] tokenizer = "FOLDER/tokenizer.json"',
)
_HINT = "put its tokenizer_config.json or chat_template.jinja into its tokenizer.json's folder"
_BEGIN = 16
"""Number of tokens of a document that are compared with those that begin a document."""
_TRIAL = "Plain words"
LAST_ONLY = "the chat template rewrites earlier answers: only the last answer is trained on"
CHARACTERS = "a message contains markup of the tokenizer, which stays plain characters"
LEFT_OUT = "the chat template leaves out a message, or changes its text"


class ChatTemplate:
    """Chat template of a tokenizer's folder."""

    def __init__(self, coder: Tokenizer, remarks: dict[str, str] | None = None) -> None:
        """Prepare without a template: rows of prompts and completions need none.

        Args:
            coder: the tokenizer.
            remarks: gets the rows that were written in an unexpected way: remark → first row.

        Raises:
            ConfigError: the tokenizer has no folder.
        """
        if not isinstance(coder, JsonTokenizer):
            raise ConfigError(*_NEEDS_ITS_OWN)
        self._coder, self._remarks = coder, {} if remarks is None else remarks
        self._end = "".join(map(coder.token, coder.end))
        self._templates = templates(coder.settings)
        self._added, written = coder.added_tokens(), "".join(self._templates.values())
        self._special = _any_of(text for text, (_, special) in self._added.items() if special)
        self._markup = _any_of(
            t for t, (_, special) in self._added.items() if special or (t.strip() and t in written)
        )

    def document(self, row: Mapping[str, Any], where: str, marked: bool) -> bytes:
        """Return the text of one row as UTF-8 with separators.

        Args:
            row: values of `MESSAGES`, or of `PROMPT` and `COMPLETION`, and perhaps of `TOOLS`.
            where: name of the row in errors.
            marked: True: separate answers from other text by `MARK`, and end the text with the
                end-of-text token; the result is empty if the row has no answer.

        Raises:
            ConfigError: the template does not fit the row; the message names `where`.
            UnicodeEncodeError: a text has half a character (a surrogate).
        """
        if (messages := row.get(MESSAGES)) is None:
            prompt, completion = (self._plain(row[name], where) for name in (PROMPT, COMPLETION))
            if isinstance(prompt, str) and isinstance(completion, str):
                return self._joined([prompt, completion, ""] if completion else [prompt], 1, marked)
            messages = _listed(prompt) + _listed(completion)
        tools = self._plain(_parsed(row.get(TOOLS) or [], list), where, self._markup)
        tools = [_parsed(tool, dict) for tool in _listed(tools)]
        render = partial(self._render, tools or None, where)
        chat = self._chat(messages, where)
        parts = self._parts(render, chat, where) if marked else [render(chat)[0]]
        written = "".join(parts)
        needed = [_answer(m) or (_text(m, where) or "").strip() for m in chat]
        if not all(text in written for text in chain(needed, *map(_called, chat))):
            self._remarks.setdefault(LEFT_OUT, where)
        document = self._joined(parts, -1, marked)
        return document and BREAK + document

    def answer_end(self) -> int | None:
        """Return the token with which the template ends an answer; None: it writes none."""
        trial = [{"role": role, "content": _TRIAL} for role in ("user", _ANSWERING)]
        with suppress(ConfigError):
            *_, answer, after = self._parts(partial(self._render, None, ""), trial, "")
            found = self._special.findall(answer)[-1:] or self._special.findall(after)[:1]
            return self._added[found[0]][0] if found else None
        return None

    def _joined(self, parts: list[str], end: int, marked: bool) -> bytes:
        """Join the parts; if `marked`, by MARK, with the end-of-text token added to `parts[end]`.

        A single part has no answer, so that marked text is empty then.
        """
        if marked and len(parts) == 1:
            return b""
        if marked and not "".join(parts).rstrip().endswith(self._end):
            parts[end] += self._end
        return (_MARK if marked else "").join(parts).encode("utf-8", "surrogateescape")

    def _chat(self, messages: Any, where: str) -> list[dict[str, Any]]:
        """Return the messages in the form that the template takes. Raises: ConfigError."""
        if not isinstance(messages, Sequence) or not all(isinstance(m, Mapping) for m in messages):
            raise ConfigError(f"{where} is not a list of messages", "each has a role and a content")
        chat = list[dict[str, Any]]()
        for number, each in enumerate(messages, 1):
            # An answer may hold markup that is no turn, such as that of a thought.
            markup = self._special if each.get("role") == _ANSWERING else self._markup
            content = _text(each, place := f"{where}, message {number}")
            # Joined before markup is searched, because markup may be spread over parts.
            given = {key: value for key, value in each.items() if value is not None}
            message = self._plain(_with_calls(given) | {"content": content}, place, markup)
            if content is not None and not self._takes_text:
                message["content"] = [{"type": "text", "text": message["content"]}]
            chat.append(message)
        return chat

    def _plain(self, value: Any, where: str, markup: re.Pattern[str] | None = None) -> Any:
        """Return a value of a row with a BREAK in each markup.

        Raises:
            UnicodeEncodeError: a text has half a character (a surrogate).
        """
        if isinstance(value, Mapping):
            return {
                self._plain(key, where, markup): self._plain(each, where, markup)
                for key, each in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [self._plain(each, where, markup) for each in value]
        if not isinstance(value, str):
            return value
        value.encode()  # half a character could be taken for a separator
        if markup is None:
            return value
        if found := markup.search(value):
            self._remarks.setdefault(CHARACTERS, f"{where}: {found[0]}")
        return markup.sub(lambda found: found[0][:1] + _BREAK + found[0][1:], value)

    def _parts(self, render: "_Render", chat: list[Any], where: str) -> list[str]:
        """Return the conversation as alternating parts: other text, answer, other text, …

        Answers are where the template says so ({% generation %}), else where it continues the
        preceding messages.
        """
        text, spans = render(chat)
        marked = "".join(text[start:end] for start, end in spans)
        # The library finds a wrong place for a mark within a macro.
        if not all(_answer(message) in marked for message in chat):
            spans = []
        parts, at = list[str](), 0
        for start, end in spans or self._continued(render, chat, text, where):
            parts += [text[at:start], text[start:end]]
            at = end
        return [*parts, text[at:]]

    def _continued(
        self, render: "_Render", chat: list[Any], text: str, where: str
    ) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each answer within the text of the whole conversation.

        A template may write an earlier answer differently, such as without its thinking. Such an
        answer is no target.
        """
        answers = [n for n, message in enumerate(chat, 1) if message.get("role") == _ANSWERING]
        for number in answers:
            (before, _), (through, _) = render(chat[: number - 1], True), render(chat[:number])
            start, least = len(before), 0
            if not through.startswith(before):
                # The header of an answer may open a thought, which the answer itself may lack.
                start = sum(takewhile(bool, map(eq, before, through)))
                least = len(render(chat[: number - 1])[0]) if number > 1 else 0
            if text.startswith(through) and start >= least:
                yield start, len(through)
            elif number < answers[-1]:
                self._remarks.setdefault(LAST_ONLY, where)
            else:
                raise ConfigError(
                    f"{where}: the chat template writes message {number} differently when "
                    "more messages follow, so its tokens cannot be found",
                    "keep one answer in each row, at its end, or change the template",
                )

    def _render(
        self, tools: Any, where: str, chat: list[Any], answer_follows: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """Render messages as text.

        Args:
            tools: descriptions of tools; None: there are none.
            where: name of the row in errors.
            chat: the messages.
            answer_follows: True: append the header of the next answer.

        Returns:
            The text, and (start, end) of each answer if the template marks answers.

        Raises:
            ConfigError: the template does not fit the messages.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if (template := self._templates.get(name)) is None:
            what = f"the tokenizer in {self._coder.path.parent} has no chat template"
            raise ConfigError(what, _HINT)
        library = self._library
        try:
            (text,), spans = library.render_jinja_template(
                [chat],
                tools=tools,
                chat_template=_SAME_DAY + template,
                return_assistant_tokens_mask=bool(_GENERATION.search(template)),
                add_generation_prompt=answer_follows,
                **special_tokens(self._coder.settings),
            )
        except Exception as error:  # a template may raise any exception
            what = f"{where}: the chat template cannot write the conversation: {error}"
            raise ConfigError(what, "check its roles: they may have to alternate") from error
        return str(text), [*chain(*spans)]

    @cached_property
    def _library(self) -> Any:
        """The library's module that renders templates, in a sandbox."""
        with needs_extra("hf", "a chat template"):
            from transformers.utils import chat_template_utils
        return chat_template_utils

    @cached_property
    def _takes_text(self) -> bool:
        """True if the template takes contents as text, False if it needs lists of parts."""
        with suppress(ConfigError):
            return _TRIAL in self._render(None, "", [{"role": "user", "content": _TRIAL}])[0]
        return True


_Render = Callable[..., tuple[str, list[tuple[int, int]]]]
"""`ChatTemplate._render` with the tools and the name of a row."""


class RowTokenizer:
    """`Tokenizer` of the documents of a table, which may have separators of parts."""

    def __init__(self, inner: JsonTokenizer, answers: bool) -> None:
        """Wrap a tokenizer.

        Args:
            inner: the tokenizer.
            answers: True: complement all tokens outside answers.
        """
        self._inner, self.complements = inner, answers
        self.vocabulary_size, self.digest = inner.vocabulary_size, inner.digest
        self.content, self.packed = inner.content, inner.packed
        self.end, self.ends, self.encodings = inner.end, inner.ends, inner.encodings

    def border(
        self, before: Sequence[int] | None, piece: "_Marked", tokens: Sequence[int]
    ) -> list[int]:
        """Return the tokens between two documents, of which a template may have written some."""
        written = self._inner.begin if piece.rendered else [max(t, ~t) for t in tokens[:_BEGIN]]
        # In a run that learns answers, each document already ends with the end-of-text token.
        found = self._inner.border(None if self.complements else before, piece, written)
        return [~token for token in found] if self.complements else found

    def pieces(self, blocks: Iterable[bytes]) -> Iterator["_Marked"]:
        """Yield a document with separators as one piece, any other one in pieces.

        Raises:
            ValueError: the document is not UTF-8.
        """
        content = b"".join(blocks)
        if content.startswith(BREAK) or self.complements:
            parts = content.removeprefix(BREAK).decode("utf-8", "surrogateescape").split(_MARK)
            yield _Marked(parts, content.startswith(BREAK))
        else:
            yield from (_Marked([text]) for text in self._inner.pieces([content]))

    def encode(self, pieces: Sequence["_Marked"]) -> Iterator[Sequence[int]]:
        """Yield the tokens of each piece; tokens outside answers are complemented if wanted.

        A token that overlaps an answer, if only by one character, belongs to the answer.

        Raises:
            ConfigError: the tokenizer has no token for some text.
        """
        encodings = iter(self.encodings([s for piece in pieces for s in piece.stretches]))
        for piece in pieces:
            tokens, spans, at = list[int](), list[tuple[int, int]](), 0
            for stretch in piece.stretches:
                found = next(encodings)
                ids, offsets = found.ids, found.offsets
                if at:
                    ids, offsets = self._continued(stretch, ids, offsets)
                tokens += ids
                spans += [(at + start, at + end) for start, end in offsets]
                at += len(stretch)
            answers = piece.answers(spans) if self.complements else repeat(True, len(tokens))
            yield [t if target else ~t for t, target in zip(tokens, answers, strict=True)]

    def _continued(self, text: str, ids: Any, offsets: Any) -> tuple[Any, Any]:
        """Return the tokens of text that continues a line, without a space that begins a text."""
        newline = tokens_of(self._inner, "\n")
        (found,) = self.encodings(["\n" + text])
        if not newline or found.ids[: len(newline)] != newline:
            return ids, offsets
        moved = [(start - 1, end - 1) for start, end in found.offsets[len(newline) :]]
        return found.ids[len(newline) :], moved

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of all tokens, in answers and outside."""
        return self._inner.decode([max(token, ~token) for token in tokens])


class _Marked:
    """Document text with the places of its answers, in stretches that are tokenised separately."""

    def __init__(self, parts: Sequence[str], rendered: bool = False) -> None:
        self.rendered = rendered
        """True if a chat template wrote the text, with the tokens that begin it."""
        self.stretches = "".join(parts).split(_BREAK)
        self.text = "".join(self.stretches)
        self._ends = list(accumulate(len(part) - part.count(_BREAK) for part in parts))

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


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the longest of these texts that occurs at a place."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def _listed(value: Any) -> list[Any]:
    """Return a list as it is, and any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def _parsed(value: Any, kind: type) -> Any:
    """Return the value of a JSON text if it is of this kind, else the value itself."""
    with suppress(ValueError, RecursionError):
        if isinstance(value, str) and isinstance(parsed := json.loads(value), kind):
            return parsed
    return value


def _with_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose calls of tools, and their arguments, are not JSON text.

    Tables often hold them as JSON text, because they differ between rows.
    """
    calls = _parsed(message.get("tool_calls"), list)
    if not isinstance(calls, list):
        return dict(message)
    whole = list[Any]()
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and "arguments" in function:
            arguments = _parsed(function["arguments"], dict)
            call = {**call, "function": {**function, "arguments": arguments}}
        whole.append(call)
    return {**message, "tool_calls": whole}


def _called(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the tools that a message calls."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            yield function["name"]


def _text(message: Mapping[str, Any], where: str) -> str | None:
    """Return the content of a message as text, or None. Raises: ConfigError: it has other parts."""
    if (content := message.get("content")) is None:
        return None
    parts: list[Any] = [p.get("text") if isinstance(p, Mapping) else p for p in _listed(content)]
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{where}: a part of its content is not text", "remove that part")
    return "".join(parts)


def _answer(message: Mapping[str, Any]) -> str:
    """Return the text of an answer after its thought; empty if the message is none."""
    text = _text(message, "") if message.get("role") == _ANSWERING else None
    return (text or "").rpartition("</think>")[-1].strip()
