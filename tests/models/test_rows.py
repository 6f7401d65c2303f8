"""Tables as people have them: kinds of files, odd columns, forms of rows, and bad rows."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from atom.base.errors import ConfigError
from atom.models.data.corpus import Corpus, Reading, text_corpus
from atom.models.data.rows import RowText, rows_of
from atom.models.data.stored_dataset import StoredDataset
from tests.models.chat_tokenizer import CHATML, chat_tokenizer

TEXTS = ["one", 'zwei é, "quoted"\nand a second line', "x" * 200_000, "end; last"]
ROWS = [{"id": number, "text": text} for number, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
QUOTED = [text.replace('"', '""') for text in TEXTS]


def separated(sign: str) -> bytes:
    rows = "".join(f'{number}{sign}"{text}"\n' for number, text in enumerate(QUOTED))
    return f"id{sign}text\n{rows}".encode()


def packed(rows: list[dict[str, Any]], name: str) -> bytes:
    table, sink = pyarrow.Table.from_pylist(rows), pyarrow.BufferOutputStream()
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, sink)
    else:
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    return sink.getvalue().to_pybytes()


FILES = {
    "a.jsonl": LINES.encode(),
    "a.ndjson": LINES.replace("\n", "\n\n").encode(),
    "mark.jsonl": "\ufeff".encode() + LINES.encode(),
    "a.jsonl.gz": gzip.compress(LINES.encode()),
    "a.json": json.dumps(ROWS, indent=1, ensure_ascii=False).encode(),
    "lines.json": LINES.encode("utf-16"),
    "texts.json": json.dumps(TEXTS).encode(),
    "long.jsonl": LINES.replace("\n", " " * (1 << 21) + "\n").encode(),
    "a.csv": separated(","),
    "a.tsv": separated("\t"),
    "excel.csv": "\ufeff".encode() + separated(","),
    "a.csv.zst": pyarrow.Codec("zstd").compress(separated(","), asbytes=True),
    "a.parquet": packed(ROWS, "a.parquet"),
    "a.arrow": packed(ROWS, "a.arrow"),
}


def documents(corpus: Corpus) -> list[str]:
    """Return the texts without the separators of their parts, which are not UTF-8."""
    return [b"".join(blocks).decode(errors="ignore") for blocks in Reading(corpus).texts()]


def table(
    folder: Path, files: dict[str, bytes | str | list[Any]], rows: RowText | None = None
) -> Corpus:
    """Return the table of a folder with these files; a list is written as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return StoredDataset(str(folder), rows or RowText()).corpus()


@pytest.mark.parametrize("name", FILES)
def test_all_kinds_of_files_have_the_same_rows(tmp_path: Path, name: str) -> None:
    assert documents(table(tmp_path / "in", {name: FILES[name]})) == TEXTS
    assert documents(StoredDataset(str(tmp_path / "in" / name)).corpus()) == TEXTS
    (tmp_path / "in" / "z.txt").write_text("plain")
    assert documents(text_corpus([tmp_path / "in"])) == [*TEXTS, "plain"]


TEXT, NEST = {"text": "one"}, {"a": {"b": [1]}}


@pytest.mark.parametrize(
    "files",
    [
        {"a.jsonl": [TEXT | {"meta": 1}], "b.jsonl": [TEXT | {"id": "x"}]},
        {"a.jsonl": [TEXT | {"meta": NEST}], "b.jsonl": [TEXT | {"meta": "s"}]},
        {"a.jsonl": [TEXT | {"meta": 1}, TEXT | {"meta": "s"}]},
        {"a.jsonl": [*[TEXT | {"note": None}] * 5000, TEXT | {"note": "s"}]},
        {"a.jsonl": [TEXT | {"date": "2024-01-01"}, TEXT | {"date": "no date"}]},
        {"a.jsonl": [TEXT | {"n": 1}, TEXT | {"n": 2**70}, TEXT | {"n": 0.5}, TEXT]},
        {"a.json": '[{"text": "one", "m": {}}, {"m": [], "text": "one"}]'},
        {"a.json": json.dumps(TEXT | {"m": 1}, indent=1), "b.json": '{"text": "one"}'},
        {"a.csv": "text,m\none,1\n", "b.csv": "m,other,text\nx,,one\n"},
        {
            "a.parquet": packed([TEXT | {"meta": 1}], "a.parquet"),
            "b.parquet": packed([TEXT | {"meta": NEST}], "b.parquet"),
        },
    ],
)
def test_other_columns_do_not_matter(tmp_path: Path, files: dict[str, Any]) -> None:
    assert set(documents(table(tmp_path / "in", files))) == {"one"}


def chat(*turns: str) -> str:
    """Return a conversation as the tokenizer's template writes it."""
    roles = [turn.partition(": ") for turn in turns]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, _, text in roles)


SHARE_GPT = [
    {"from": "system", "value": "Brief."},
    {"from": "human", "value": "One?"},
    {"from": "gpt", "value": "Two."},
    {"from": "observation", "value": "3"},
]
ASKED = chat("user: One?", "assistant: Two.")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"conversations": SHARE_GPT[1:3]}, ASKED),
        ({"conversations": SHARE_GPT}, chat("system: Brief.") + ASKED + chat("tool: 3")),
        ({"conversations": SHARE_GPT[1:3], "system": "Brief."}, chat("system: Brief.") + ASKED),
        ({"conversations": [{"role": "user", "content": "One?"}]}, chat("user: One?")),
        ({"instruction": "One?", "input": "", "output": "Two."}, ASKED),
        ({"instruction": "One?", "output": "Two.", "history": []}, ASKED),
        (
            {"instruction": "Add", "input": "1, 2", "output": "3"},
            chat("user: Add\n1, 2", "assistant: 3"),
        ),
        ({"messages": [{"role": "user", "content": "One?"}], "text": None}, chat("user: One?")),
        ({"prompt": "1+1=", "completion": "2", "instruction": "x", "output": "y"}, "1+1=2"),
        (
            {
                "prompt": [{"role": "user", "content": "One?"}],
                "completion": [{"role": "assistant", "content": "Two."}],
            },
            ASKED,
        ),
        ({"text": "plain", "messages": []}, "plain"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_forms_of_the_field(tmp_path: Path, row: dict[str, Any], text: str, kind: str) -> None:
    tokenizer = chat_tokenizer(tmp_path / "tokenizer")
    form = RowText(tokenizer=str(tokenizer))
    content = json.dumps([row, row]) if kind == "json" else packed([row, row], "a.parquet")
    assert documents(table(tmp_path / "in", {f"a.{kind}": content}, form)) == [text] * 2


DEEP = f'{{"messages": [{{"role": "user", "content": "a", "x": {"[" * 700}{"]" * 700}}}]}}'


@pytest.mark.parametrize(
    ("name", "bad", "said"),
    [
        ("a.jsonl", '{"text": 5}', '"text" holds int, not a text'),
        ("a.jsonl", '{"text": ["a", "b"]}', '"text" holds list, not a text'),
        ("a.jsonl", '{"body": "x"}', "no column \"text\"; it has 'body'"),
        ("a.jsonl", '{"text": "cut', "not JSON: Invalid control character"),
        ("a.jsonl", "[1, 2]", "is not an object with columns"),
        ("a.jsonl", '{"text": "\\ud83d"}', r"'\ud83d' is half a character"),
        ("a.jsonl", '{"text": ' + "[" * 100_000, "not JSON: maximum recursion"),
        ("a.jsonl", "\0\0\0", "not JSON: Expecting value"),
        ("a.csv", "one,two", "another number of fields than in the first line"),
        ("a.jsonl", '{"conversations": [{"from": "narrator", "value": "x"}]}', "from 'narrator'"),
        ("a.jsonl", '{"conversations": [{"from": ["human"], "value": "x"}]}', "from ['human']"),
        ("a.jsonl", '{"conversations": [{"from": null}]}', "from None"),
        ("a.jsonl", '{"conversations": [7]}', "no columns from and value"),
        ("a.jsonl", '{"conversations": 5}', "no columns from and value"),
        ("a.jsonl", DEEP, "nested too deeply"),
        ("a.jsonl", '{"instruction": 1, "output": "x"}', '"instruction" holds int'),
        ("a.jsonl", '{"instruction": "", "output": "x", "history": [["a", "b"]]}', "has a history"),
        ("a.jsonl", '{"messages": "x"}', "is not a list of messages"),
        ("a.jsonl", '{"messages": ["x"]}', "is not a list of messages"),
        ("a.jsonl", '{"prompt": 3, "completion": "c"}', "is not a list of messages"),
        ("a.jsonl", '{"prompt": {"a": 1}, "completion": ["c"]}', "is not a list of messages"),
        (
            "a.jsonl",
            '{"messages": [{"role": "user", "content": "a\\udcffb"}]}',
            r"'\udcff' is half a character",
        ),
        ("a.jsonl", '{"prompt": "a\\udcffb", "completion": ""}', r"'\udcff' is half a character"),
    ],
)
def test_a_bad_row_stops_the_start_until_it_may_be_omitted(
    tmp_path: Path, name: str, bad: str, said: str
) -> None:
    good = "good" if name == "a.csv" else '{"text": "good"}'
    lines = [*(["text"] if name == "a.csv" else []), good, bad, good]
    tokenizer = str(chat_tokenizer(tmp_path / "tokenizer"))
    files = {name: "\n".join(lines)}
    with pytest.raises(ConfigError) as caught:
        table(tmp_path / "in", files, RowText(tokenizer=tokenizer)).survey()
    assert caught.value.message.startswith(f"{tmp_path}/in/{name}, row 2")
    assert said in caught.value.message
    assert '[data] bad_rows = "skip"' in caught.value.hint
    skipping = table(tmp_path / "in", files, RowText(tokenizer=tokenizer, skips_bad_rows=True))
    omitted = skipping.survey().account.omitted
    assert documents(skipping) == ["good", "good"]
    assert omitted == {"row that cannot be used": (1, f"{tmp_path}/in/{name}, row 2")}


QUESTION = {"role": "user", "content": "One?"}


@pytest.mark.parametrize(
    ("row", "template", "said"),
    [
        ({"text": "x" * 99}, CHATML, "row 1: no answers; it has 'text'"),
        ({"messages": [QUESTION, QUESTION | {"role": "assistant"}]}, None, "has no chat template"),
        ({"messages": [QUESTION]}, CHATML, "all empty"),
    ],
)
def test_rows_without_answers_to_train_on_are_named(
    tmp_path: Path, row: dict[str, Any], template: str | None, said: str
) -> None:
    form = RowText(tokenizer=str(chat_tokenizer(tmp_path / "tokenizer", template)), answers=True)
    with pytest.raises(ConfigError, match=said):
        table(tmp_path / "in", {"a.jsonl": [row]}, form).survey()


@pytest.mark.parametrize(("answers", "text"), [(True, "12<|endoftext|>"), (False, "12")])
def test_rows_of_null_are_left_out(tmp_path: Path, answers: bool, text: str) -> None:
    form = RowText(tokenizer=str(chat_tokenizer(tmp_path / "tokenizer")), answers=answers)
    rows = [
        {"prompt": prompt, "completion": completion}
        for prompt, completion in (("1", "2"), (None, "3"), ("2", None))
    ]
    found = table(tmp_path / "in", {"a.jsonl": [*rows, {"messages": None}]}, form)
    assert documents(found) == [text]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '[{"text": "one"}, {"text"', "row 1 cannot be read: Expecting ':'"),
        ("a.json", '[{"text": "one"}] {}', "row 1 cannot be read: Extra data"),
        ("a.csv", 'text\none\n"cut', "row 2 cannot be read: unexpected end of data"),
        ("a.csv", 'text\n"a" b\n', "row 1 cannot be read: ',' expected after"),
        ("a.jsonl", b'{"text": "one"}\n{"text": "f\xe9"}\n', "not UTF-8 text: byte 27 is 0xe9"),
        ("a.parquet", packed(ROWS, "a.parquet")[:-9], "cannot be read: Parquet magic bytes"),
        ("a.arrow", b"ARROW1", "cannot be read: "),
    ],
)
def test_a_damaged_table_stops_the_start_whatever_may_be_omitted(
    tmp_path: Path, name: str, content: bytes | str, said: str
) -> None:
    with pytest.raises(ConfigError, match="in/a") as caught:
        table(tmp_path / "in", {name: content}, RowText(skips_bad_rows=True)).survey()
    assert f"{name}" in caught.value.message
    assert said in caught.value.message


def test_a_conversation_in_a_folder_of_text_is_refused_with_the_way_to_read_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "alpaca.json").write_text(json.dumps([{"instruction": "a", "output": "b"}]))
    with pytest.raises(ConfigError, match=r"alpaca\.json, row 1: no column \"text\"") as caught:
        text_corpus([tmp_path], rows=RowText(converses=False)).survey()
    assert '[data] source = "datasets" and path = "FOLDER"' in caught.value.hint


def test_files_outside_the_split_are_counted(tmp_path: Path) -> None:
    files: dict[str, Any] = {"train.jsonl": [TEXT], "test.jsonl": [TEXT], "more.csv": "text\nx\n"}
    omitted = table(tmp_path / "in", files).survey().account.omitted
    assert omitted == {"file that is not in the split": (2, f"{tmp_path}/in/more.csv")}


def test_a_file_that_is_not_text_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(ConfigError, match=r"logo\.png is not text"):
        StoredDataset(str(tmp_path / "logo.png")).corpus().survey()


def test_padding_of_arrow_files_is_removed_and_nulls_of_json_stay(tmp_path: Path) -> None:
    rows = [{"a": {"b": None, "c": [{"d": 1, "e": None}]}}, {"a": {"b": 1, "c": None}}]
    (tmp_path / "a.parquet").write_bytes(packed(rows, "a.parquet"))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = {"a"}
    assert [*rows_of(tmp_path / "a.parquet", None, wanted)] == [
        {"a": {"c": [{"d": 1}]}},
        {"a": {"b": 1}},
    ]
    assert [*rows_of(tmp_path / "a.jsonl", None, wanted)] == rows


def test_a_system_column_begins_a_conversation(tmp_path: Path) -> None:
    tokenizer = str(chat_tokenizer(tmp_path / "tokenizer"))
    row = {"messages": [{"role": "user", "content": "a"}], "system": "Be terse"}
    own = row | {"messages": [{"role": "system", "content": "Own"}, *row["messages"]]}
    rows = {"a.jsonl": [row, own]}
    found = documents(table(tmp_path / "in", rows, RowText(tokenizer=tokenizer)))
    assert found == [chat("system: Be terse", "user: a"), chat("system: Own", "user: a")]
