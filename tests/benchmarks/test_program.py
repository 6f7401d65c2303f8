"""Parts of all benchmark programs: options, the table, and run files."""

import json

import pytest

from benchmarks.shared.program import Timing, parser_of, publish, table

MODEL = {"layers": 2, "heads": 2, "model_dim": 16, "sequence_tokens": 8}


def test_types_of_options_follow_from_their_defaults() -> None:
    parser = parser_of("doc", peers=[2], pass_seconds=0.5, quick=False, codec={"default": "int4"})
    options = parser.parse_args(["--peers", "3", "4", "--pass-seconds", "2", "--quick"])
    assert vars(options) == {"peers": [3, 4], "pass_seconds": 2.0, "quick": True, "codec": "int4"}


def test_absent_figures_are_empty_cells_and_words_stay() -> None:
    rows = [{"side": "ours", "s": 1.25}, {"side": "theirs", "s": "absent"}, {"side": "none"}]
    lines = table(rows, {"side": "", "s": ".1f"}).splitlines()
    assert [line.split() for line in lines] == [
        ["side", "s"], ["ours", "1.2"], ["theirs", "absent"], ["none"]
    ]  # fmt: skip


def test_the_table_goes_to_stderr_and_all_figures_to_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"side": "ours", "seconds": Timing((1.0, 3.0, 2.0)), "load": 4}
    publish("toy", [row], {"side": "", "seconds": ".2f"}, members=2)
    captured = capsys.readouterr()
    body = json.loads(captured.out)
    assert "2.00" in captured.err
    assert "load" not in captured.err
    assert (body["benchmark"], body["members"]) == ("toy", 2)
    assert (body["rows"][0]["load"], body["rows"][0]["seconds"]["median_s"]) == (4, 2.0)
