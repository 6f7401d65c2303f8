"""Text of table rows in the forms that the field uses: plain text, conversations, instructions.

| columns | a row becomes |
|---|---|
| the text column | its text |
| messages | a conversation |
| conversations (from and value, as in ShareGPT) | a conversation |
| prompt and completion | a text and its continuation |
| instruction, input, output (as in Alpaca) | a user's message and the answer |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from atom.models.data.conversations import COMPLETION, MESSAGES, PROMPT, TOOLS, ChatTemplate
from atom.models.data.documents import Document, Omission, row_document, text_errors
from atom.models.data.rows import rows_of
from atom.models.data.tokenizer import load_tokenizer
from atom.models.source import DataError

TEXT_FIELD = "text"
_SHARE_GPT, _ALPACA = ("conversations",), ("instruction", "output")
_FORMS = ((MESSAGES,), _SHARE_GPT, (PROMPT, COMPLETION), _ALPACA)
"""Sets of columns that make a row a conversation, in order of preference."""
_ANSWERING = "assistant"
_FURTHER = ("input", "system", "history", TOOLS)
"""Columns that belong to a conversation if they exist."""
_NAMES_OF_ROLES = {
    "user": ("user", "human"),
    _ANSWERING: ("assistant", "gpt", "chatgpt", "model"),
    "system": ("system",),
    "tool": ("tool", "observation", "function_response"),
}
_ROLES = {name: role for role, names in _NAMES_OF_ROLES.items() for name in names}
"""Names of roles in ShareGPT's form → roles of chat templates."""
_NAME_THE_TEXT = (
    'name the column that holds the text: [data] text_field = "…", or leave the file out; to read '
    'conversations: [data] source = "datasets" and path = "FOLDER", with a column messages, or '
    "columns prompt and completion"
)
_SKIP = 'correct the row, or omit all such rows: [data] bad_rows = "skip"'


@dataclass(frozen=True)
class RowText:
    """Rules by which the rows of data files become documents."""

    text_field: str = TEXT_FIELD
    """Column that holds the text."""
    tokenizer: str = "bytes"
    """Path of the tokenizer.json whose chat template writes conversations, or "bytes"."""
    answers: bool = False
    """True: rows are conversations, and their answers are to be marked."""
    skips_bad_rows: bool = False
    """True: a row that cannot become text is omitted; False: it is an error."""
    encoding: str | None = None
    """Encoding of files that are not UTF-8; None: there are none."""
    converses: bool = True
    """True: rows may be conversations; False: they must have the text column."""
    _remarks: dict[str, str] = field(default_factory=dict, init=False, compare=False)
    """Changes by the chat template to the row that is read: kind of change → its place."""

    @cached_property
    def _forms(self) -> tuple[tuple[str, ...], ...]:
        """Sets of columns that can become text, in order of preference."""
        text = () if self.answers else ((self.text_field,),)
        return text + (_FORMS if self.converses else ())

    @cached_property
    def wanted(self) -> frozenset[str]:
        """Columns that can be used."""
        return frozenset(chain(*self._forms, _FURTHER))

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(load_tokenizer(self.tokenizer), self._remarks)

    def of_file(self, path: Path) -> Iterator[Document | Omission]:
        """Yield the documents of a data file, one for each row.

        Raises:
            DataError: the file is damaged, or a row cannot become text.
        """
        with text_errors(path):
            for number, row in enumerate(rows_of(path, self.encoding, self.wanted), start=1):
                where = f"{path}, row {number}"
                self._remarks.clear()
                try:
                    content = self._content(row, where)
                except DataError as error:
                    if not error.message.startswith(where):  # about the tokenizer, not this row
                        raise
                    if not self.skips_bad_rows:
                        hint = f"{error.hint}; {_SKIP}".lstrip("; ")
                        raise DataError(error.message, hint) from error
                    yield Omission("row that cannot be used", where)
                    continue
                yield from starmap(Omission, self._remarks.items())
                if content:
                    yield row_document(where, content, str(path))
                elif content is None:
                    yield Omission("row with null", where)
                else:
                    yield Omission("row without an answer" if self.answers else "empty row", where)

    def _content(self, row: Any, where: str) -> bytes | None:
        """Return the text of a row as UTF-8, empty if it has none; None: a column is null.

        Raises:
            DataError: the row cannot become text; the message begins with `where`.
        """
        if row is None:
            return b""
        if isinstance(row, str):
            row = {self.text_field: row}
        if not isinstance(row, Mapping):
            problem = row if isinstance(row, ValueError) else "is not an object with columns"
            raise DataError(f"{where}: {problem}")
        forms = [form for form in self._forms if set(form) <= row.keys()]
        if not forms:
            lacks = "no answers" if self.answers else f'no column "{self.text_field}"'
            has = ", ".join(map(repr, list(row)[:8]))
            raise DataError(f"{where}: {lacks}; it has {has}", _NAME_THE_TEXT)
        form = next((form for form in forms if None not in [row[name] for name in form]), None)
        if form is None:
            return None
        try:
            if form == (self.text_field,) and not self.answers:
                return _text_in(row, self.text_field, where).encode()
            return self._template.document(_chat(form, row, where), where, self.answers)
        except RecursionError as error:
            raise DataError(f"{where}: its values are nested too deeply") from error
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: {error.object[error.start]!r} is half a character"
            ) from error


def _text_in(row: Mapping[str, Any], column: str, where: str) -> str:
    if not isinstance(text := row[column], str):
        what = f'"{column}" holds {type(text).__name__}, not a text'
        raise DataError(f"{where}: {what}", _NAME_THE_TEXT)
    return text


def _chat(form: tuple[str, ...], row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the columns of a conversation for `ChatTemplate.document`. Raises: DataError."""
    tools = {name: row[name] for name in (TOOLS,) if row.get(name)}
    if form == (PROMPT, COMPLETION):
        return {name: row[name] for name in form} | tools
    if form == (MESSAGES,):
        messages = row[MESSAGES]
        if not row.get("system") or not isinstance(messages, list) or _has_system(messages):
            return {MESSAGES: messages} | tools
        messages = [*messages]
    elif form == _SHARE_GPT:
        turns = row[form[0]]
        messages = [_message(turn, where) for turn in (turns if isinstance(turns, list) else [0])]
    else:
        question, answer = (_text_in(row, name, where) for name in form)
        if row.get("input"):
            question = f"{question}\n{_text_in(row, 'input', where)}"
        if row.get("history"):
            what = "has a history, which this form does not take"
            raise DataError(f"{where}: {what}", "write the row as messages")
        messages = [{"role": "user", "content": question}, {"role": _ANSWERING, "content": answer}]
    if row.get("system"):
        messages.insert(0, {"role": "system", "content": row["system"]})
    return {MESSAGES: messages} | tools


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(each, Mapping) and each.get("role") == "system" for each in messages)


def _message(turn: Any, where: str) -> dict[str, Any]:
    """Return a message of from and value as one of role and content. Raises: DataError."""
    if not isinstance(turn, Mapping):
        raise DataError(f"{where}: a turn of the conversation has no columns from and value")
    speaker = turn.get("from", turn.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise DataError(f"{where}: a message from {speaker!r}; known are {', '.join(_ROLES)}")
    others = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {**others, "role": _ROLES[speaker], "content": turn.get("value", turn.get("content"))}
