"""Rows of data files, packed or not, as text: JSON lines and arrays, CSV, TSV, Parquet and Arrow.

Only the wanted columns of a row are used, so the other columns may differ between files and rows.
Rows are read one after the other, so that a file may be larger than the memory; only a `.json` file
is read as a whole.

| columns | a row becomes |
|---|---|
| the text column | its text |
| messages | a conversation |
| conversations (from and value, as in ShareGPT) | a conversation |
| prompt and completion | a text and its continuation |
| instruction, input, output (as in Alpaca) | a user's message and the answer |
"""

import csv
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any

from atom.base.errors import ConfigError
from atom.models.data.conversations import COMPLETION, MESSAGES, PROMPT, TOOLS, ChatTemplate
from atom.models.data.documents import (
    BYTES,
    UTF_8,
    Document,
    Omission,
    characters,
    codec_of,
    inner_suffix,
    load_pyarrow,
    open_file,
    text_errors,
)
from atom.models.data.tokenizer import load_tokenizer

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
Rows = Iterator[Any]
"""Rows in their order: a mapping of columns to values, or the ValueError of a row that is damaged.

Anything else is a JSON value that is no row.
"""
_ROWS_PER_READ = 256
_PARQUET, _ARROW = ".parquet", ".arrow"
_INCOMPLETE = "get the file again, or leave it out"


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
            ConfigError: the file is damaged, or a row cannot become text.
        """
        with text_errors(path):
            for number, row in enumerate(rows_of(path, self.encoding, self.wanted), start=1):
                where = f"{path}, row {number}"
                self._remarks.clear()
                try:
                    content = self._content(row, where)
                except ConfigError as error:
                    if not error.message.startswith(where):  # about the tokenizer, not this row
                        raise
                    if not self.skips_bad_rows:
                        hint = f"{error.hint}; {_SKIP}".lstrip("; ")
                        raise ConfigError(error.message, hint) from error
                    yield Omission("row that cannot be used", where)
                    continue
                yield from starmap(Omission, self._remarks.items())
                if content:
                    yield Document(where, partial(iter, (content,)), str(path))
                elif content is None:
                    yield Omission("row with null", where)
                else:
                    yield Omission("row without an answer" if self.answers else "empty row", where)

    def _content(self, row: Any, where: str) -> bytes | None:
        """Return the text of a row as UTF-8, empty if it has none; None: a column is null.

        Raises:
            ConfigError: the row cannot become text; the message begins with `where`.
        """
        if row is None:
            return b""
        if isinstance(row, str):
            row = {self.text_field: row}
        if not isinstance(row, Mapping):
            problem = row if isinstance(row, ValueError) else "is not an object with columns"
            raise ConfigError(f"{where}: {problem}")
        forms = [form for form in self._forms if set(form) <= row.keys()]
        if not forms:
            lacks = "no answers" if self.answers else f'no column "{self.text_field}"'
            has = ", ".join(map(repr, list(row)[:8]))
            raise ConfigError(f"{where}: {lacks}; it has {has}", _NAME_THE_TEXT)
        form = next((form for form in forms if None not in [row[name] for name in form]), None)
        if form is None:
            return None
        try:
            if form == (self.text_field,) and not self.answers:
                return _text_in(row, self.text_field, where).encode()
            return self._template.document(_chat(form, row, where), where, self.answers)
        except RecursionError as error:
            raise ConfigError(f"{where}: its values are nested too deeply") from error
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{where}: {error.object[error.start]!r} is half a character"
            ) from error


def _text_in(row: Mapping[str, Any], column: str, where: str) -> str:
    if not isinstance(text := row[column], str):
        what = f'"{column}" holds {type(text).__name__}, not a text'
        raise ConfigError(f"{where}: {what}", _NAME_THE_TEXT)
    return text


def _chat(form: tuple[str, ...], row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the columns of a conversation for `ChatTemplate.document`. Raises: ConfigError."""
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
            raise ConfigError(f"{where}: {what}", "write the row as messages")
        messages = [{"role": "user", "content": question}, {"role": _ANSWERING, "content": answer}]
    if row.get("system"):
        messages.insert(0, {"role": "system", "content": row["system"]})
    return {MESSAGES: messages} | tools


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(each, Mapping) and each.get("role") == "system" for each in messages)


def _message(turn: Any, where: str) -> dict[str, Any]:
    """Return a message of from and value as one of role and content. Raises: ConfigError."""
    if not isinstance(turn, Mapping):
        raise ConfigError(f"{where}: a turn of the conversation has no columns from and value")
    speaker = turn.get("from", turn.get("role"))
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise ConfigError(f"{where}: a message from {speaker!r}; known are {', '.join(_ROLES)}")
    others = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {**others, "role": _ROLES[speaker], "content": turn.get("value", turn.get("content"))}


# ---- rows of one file


def is_data_file(path: Path) -> bool:
    """Return True for a file whose name says that it contains rows."""
    return inner_suffix(path) in (*_READERS, _PARQUET, _ARROW)


def rows_of(path: Path, encoding: str | None, wanted: Collection[str]) -> Rows:
    """Yield the rows of a data file.

    Args:
        path: the file.
        encoding: encoding of JSON and CSV files that are not UTF-8; None: there are none.
        wanted: columns to read; if a Parquet or Arrow file has none of them, all of its columns.

    Raises:
        ConfigError: the file is damaged, so that its later rows cannot be found.
        OSError: the file cannot be read.
    """
    suffix = inner_suffix(path)
    if suffix in (_PARQUET, _ARROW):
        yield from _arrow_rows(path, wanted)
        return
    codec = codec_of(path, encoding)
    texts = characters(path, UTF_8 if codec in (None, BYTES) else codec)
    row = 1
    try:
        for value in _READERS[suffix](texts):
            yield value
            row += 1
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        what = f"{path}, row {row} cannot be read: {error}"
        raise ConfigError(what, _INCOMPLETE) from error


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends; only "\\n" ends a line, unlike in `str.splitlines`."""
    held = list[str]()
    for text in texts:
        first, *others = text.split("\n")
        held.append(first)
        for line in others:
            yield "".join(held) + "\n"
            held = [line]
    if last := "".join(held):
        yield last


def _json_lines(texts: Iterable[str]) -> Rows:
    for line in _lines(texts):
        try:
            yield json.loads(line) if line.strip() else None
        except (ValueError, RecursionError) as error:
            yield ValueError(f"not JSON: {error}")


def _json(texts: Iterable[str]) -> Rows:
    """Yield the elements of a JSON array, the values of JSON lines, or the only object."""
    text = "".join(texts)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        return _json_lines([text])
    return iter(value if isinstance(value, list) else [value])


def _csv(texts: Iterable[str], separator: str = ",") -> Rows:
    """Yield the rows of a table whose first line names the columns."""
    csv.field_size_limit(sys.maxsize)
    for row in csv.DictReader(_lines(texts), delimiter=separator, strict=True):
        is_even = None not in row and None not in row.values()
        yield row if is_even else ValueError("another number of fields than in the first line")


def _arrow_rows(path: Path, wanted: Collection[str]) -> Rows:
    pyarrow = load_pyarrow(path)
    try:
        with open_file(path) as file:
            if inner_suffix(path) == _PARQUET:
                table = pyarrow.parquet.ParquetFile(file)
                columns = _wanted(table.schema_arrow.names, wanted)
                batches = table.iter_batches(_ROWS_PER_READ, columns=columns)
            else:
                table = pyarrow.ipc.open_stream(file)
                columns = _wanted(table.schema.names, wanted)
                batches = (batch.select(columns) for batch in table)
            for batch in batches:
                for row in batch.to_pylist():
                    yield {name: _without_nulls(value) for name, value in row.items()}
    except pyarrow.ArrowException as error:
        what = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{path} cannot be read: {what}", _INCOMPLETE) from error


def _without_nulls(value: Any) -> Any:
    """Return a value without nulls in its objects: Arrow files fill missing keys with them."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _wanted(names: list[str], wanted: Collection[str]) -> list[str]:
    """Return the wanted columns, or all if there are none, so that the error can name them."""
    return [name for name in names if name in wanted] or names


_READERS: dict[str, Callable[[Iterable[str]], Rows]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, separator="\t"),
}
