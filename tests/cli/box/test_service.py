"""The unit that `atom service` prints: systemd reads it, and it agrees with the exit codes."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atom.base.errors import UserError
from atom.cli.app import main
from atom.cli.box.service import STOP_S, quoted, unit_text
from atom.cli.shell.exit_codes import IN_VAIN, ExitCode
from atom.daemon.peer.leaving import LEAVE_S

PEER = "12D3KooWGRUaMpSxHC6zS3FfG3mVYmXsBdTKZvNTT7J3rc7FLMbw"
ENTRANCE = f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}"
ADDRESS = f"{ENTRANCE}/run/words/owner/{PEER}"
VOLUNTEER = Path(__file__).parents[3] / "docs" / "volunteer.md"
SAMPLE = ("/opt/my box/python", "-m", "atom", "join"), Path("/a 1%"), {"A": "b c", "D": "e"}


def read(text: str) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=False, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit


def codes_in(text: str) -> set[int]:
    return {int(word) for word in re.findall(r"\d+", text)}


def by_systemd(unit: str, folder: Path) -> None:
    path = folder / "atom.service"
    path.write_text(unit, encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(path)],
        capture_output=True, text=True, timeout=60, env={"XDG_RUNTIME_DIR": str(folder)},
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")


def by_hand(unit: str, folder: Path) -> None:
    assert read(unit).sections() == ["Unit", "Service", "Install"]
    assert all(line == line.strip() for line in unit.splitlines())


CHECKS = [by_hand, by_systemd] if shutil.which("systemd-analyze") else [by_hand]


@pytest.mark.parametrize("check", CHECKS)
def test_it_is_a_unit(
    check: Callable[[str, Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", "join", ADDRESS]) == 0
    check(capsys.readouterr().out, tmp_path)


def test_it_starts_again_where_that_may_help() -> None:
    service = read(unit_text(*SAMPLE))["Service"]
    assert codes_in(service["RestartPreventExitStatus"]) == IN_VAIN
    assert service["Restart"] == "on-failure"
    assert not IN_VAIN & {ExitCode.OK, ExitCode.FAULT, ExitCode.ADDRESS, ExitCode.PORT}
    page = VOLUNTEER.read_text(encoding="utf-8").partition("## As a service")[2]
    (again, never) = re.search(
        r"exit code ([\d, or]+), or was killed.*?After ([\d, and]+) it does not", page, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert codes_in(never) == IN_VAIN
    ended_by_signal = {ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    assert codes_in(again) == set(ExitCode) - IN_VAIN - ended_by_signal - {ExitCode.OK}
    assert codes_in(service["SuccessExitStatus"]) == ended_by_signal


def test_leaving_is_given_its_time() -> None:
    assert STOP_S > LEAVE_S
    assert read(unit_text(*SAMPLE))["Service"]["KillMode"] == "mixed"


def test_what_is_given_means_the_same_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", "/data 100%")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = ["join", ADDRESS, "--peer", "my 100% $box.toml", "--state", "../s"]
    assert main(["service", *given]) == 0
    said = capsys.readouterr()
    service = read(said.out)["Service"]
    assert service["WorkingDirectory"] == str(tmp_path)
    expected = [sys.executable, "-m", "atom", *given]
    words = [
        word.replace("$$", "$").replace("%%", "%") for word in shlex.split(service["ExecStart"])
    ]
    assert words == expected
    assert "XDG_DATA_HOME=/data 100%%" in said.out
    for line in ("TZ=Europe/Berlin", "CUDA_VISIBLE_DEVICES="):
        assert f"Environment={line}\n" in said.out
    assert "systemctl --user enable" in said.err


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["status", ADDRESS], ExitCode.OTHER, "join, start, bootstrap"),
        (["join"], ExitCode.USAGE, "ADDRESS"),
        (["join", ADDRESS, "--pear", "x"], ExitCode.USAGE, "--pear"),
        ([], ExitCode.USAGE, "COMMAND"),
    ],
)
def test_what_would_end_at_once_is_no_service(
    given: list[str], code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["service", *given]) == code
    seen = capsys.readouterr()
    assert said in seen.err
    assert seen.out == ""


def test_words_that_systemd_would_read_otherwise() -> None:
    assert quoted("/plain/way-1.toml") == "/plain/way-1.toml"
    assert quoted('a "b" \\') == '"a \\"b\\" \\\\"'
    assert quoted("50%") == "50%%"
    with pytest.raises(UserError, match="cannot stand in a unit"):
        quoted("a\nb")
