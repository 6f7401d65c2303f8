"""`atom plan` as people and programs read it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from atom.cli.app import main
from atom.cli.exit_codes import ExitCode
from atom.cli.plan_text import MAX_STEPS, schedule_chart
from atom.cli.terminal import THEME
from atom.daemon.pass_steps import pass_steps
from atom.swap.schedule import Shape, training_pass

PEERS = Path(__file__).parents[2] / "peers"
DEMO = str(PEERS / "demo.toml")


def lines_of(shape: Shape) -> list[str]:
    console = Console(width=100, theme=THEME, file=io.StringIO())
    with console.capture() as capture:
        console.print(schedule_chart(pass_steps(training_pass(shape), shape), shape.slots))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_chart_is_the_schedule() -> None:
    assert lines_of(Shape(3, 2)) == [
        "step   slot 0   slot 1   computes",
        "       ░░ 0              waits for the load",
        "   0   ██ 0     ░░ 1     forward of 0 x 2",
        "   1   ░░ 2     ██ 1     forward of 1 x 2",
        "   2   ██ 2     ·· 1     forward and backward of 2 x 2, gradients out",
        "   3   ░░ 0     ██ 1     backward of 1 x 2, gradients out",
        "   4   ██ 0     ·· 1     backward of 0 x 2, gradients out",
    ]


def test_a_long_schedule_is_cut() -> None:
    lines = lines_of(Shape(40, 1))
    assert lines[-1] == f"and {2 * 40 - 1 - MAX_STEPS} more steps"
    assert len(lines) == 1 + 1 + MAX_STEPS + 1


def test_the_text_tells_all(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", DEMO, "--link", "24 GB/s", "--compute", "90 TFLOP/s"])
    assert code == ExitCode.OK
    text = capsys.readouterr().out
    for words in ("834,304 parameters", "24 bytes per parameter", "6 layers in 6 sub-models",
                  "a pass of 8 micro-batches of 8 x 64 tokens: 4,096 tokens", "waits for the load",
                  "loads hide behind computing from", "forward and backward of 5 x 8"):  # fmt: skip
        assert words in text, words


def test_json_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--peer", str(PEERS / "cpu.toml"), "--json"]
    assert main(["plan", DEMO, *arguments]) == ExitCode.OK
    plan = json.loads(capsys.readouterr().out)
    assert set(plan) == {
        "run", "model", "parameters", "host", "device", "sub_models", "pass",
        "tokens_that_hide_loads",
    }  # fmt: skip
    assert plan["tokens_that_hide_loads"] is None
    assert plan["host"]["total_bytes"] == sum(plan["host"]["arenas"].values())
    assert plan["device"]["fits"] is True
    assert plan["device"]["budget_bytes"] == 2 * 2**30
    assert {"index", "first_layer", "last_layer", "load_bytes"} <= set(plan["sub_models"][0])
    assert plan["pass"]["steps"][0]["loads"] == [0]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nowhere.toml"], ExitCode.CONFIG, "no such file"),
        ([DEMO, "--peer", DEMO], ExitCode.CONFIG, "unknown section"),
        ([DEMO, "--link", "24 GB/s"], ExitCode.USAGE, "give both"),
        ([DEMO, "--link", "24 GB", "--compute", "9 TFLOP/s"], ExitCode.USAGE, "is no rate"),
        ([DEMO, "--link", "24 GB/s", "--compute", "9 XFLOP/s"], ExitCode.USAGE, "is no rate"),
    ],
)
def test_errors_in_words(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: ExitCode, words: str
) -> None:
    assert main(["plan", *arguments]) == code
    error = capsys.readouterr().err
    assert "error:" in error
    assert words in error


def test_a_layer_too_large_ends_with_the_devices_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = tmp_path / "peer.toml"
    peer.write_text('[device]\nkind = "cpu"\nmemory = "100 kB"\n')
    assert main(["plan", DEMO, "--peer", str(peer)]) == ExitCode.DEVICE
    assert "needs" in capsys.readouterr().err
