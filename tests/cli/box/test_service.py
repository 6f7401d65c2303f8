"""The unit in `peers/`: it agrees with the command line, exit codes and documentation."""

import configparser
import re
import shlex
from pathlib import Path

import typer

from atom.cli.app import app
from atom.cli.shell.failures import ExitCode
from atom.daemon.peer.lifecycle import LEAVE_S

ROOT = Path(__file__).parents[3]
UNIT = (ROOT / "peers" / "atom@.service").read_text(encoding="utf-8")
VOLUNTEER = ROOT / "docs" / "volunteer.md"


IN_VAIN = {
    ExitCode.USAGE, ExitCode.CONFIG, ExitCode.MISMATCH, ExitCode.DEVICE, ExitCode.MODEL,
    ExitCode.LEFT_LATE, ExitCode.TRUST, ExitCode.IDENTITY, ExitCode.STORAGE, ExitCode.ALLOWANCE,
}  # fmt: skip
"""After these, starting the same command again does not help: a person has to change something.
The others may pass: a network that is not there yet, a port in use, memory that other programs
took. A full disk stops no running daemon; one that cannot start would read its state for ever."""


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, delimiters="=")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT)
    assert unit.sections() == ["Unit", "Service", "Install"]
    return unit["Service"]


def codes_in(text: str) -> set[int]:
    return {int(word) for word in re.findall(r"\d+", text)}


def test_it_runs_a_command_that_there_is() -> None:
    assert all(line == line.strip() for line in UNIT.splitlines())
    _, name, *given = shlex.split(service()["ExecStart"])
    group = typer.main.get_command(app)
    group.commands[name].make_context(name, given)  # type: ignore[attr-defined]


def test_it_starts_again_where_that_may_help() -> None:
    assert codes_in(service()["RestartPreventExitStatus"]) == IN_VAIN
    assert service()["Restart"] == "on-failure"
    assert not IN_VAIN & {ExitCode.OK, ExitCode.FAULT, ExitCode.ADDRESS, ExitCode.PORT}
    page = VOLUNTEER.read_text(encoding="utf-8").partition("## As a service")[2]
    (again, never) = re.search(
        r"exit code ([\d, or]+), or was killed.*?After ([\d, and]+) it does not", page, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert codes_in(never) == IN_VAIN
    ended_by_signal = {ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.TERMINATED}
    assert codes_in(again) == set(ExitCode) - IN_VAIN - ended_by_signal - {ExitCode.OK}
    assert codes_in(service()["SuccessExitStatus"]) == ended_by_signal


def test_leaving_is_given_its_time() -> None:
    assert float(service()["TimeoutStopSec"]) > LEAVE_S
    assert service()["KillMode"] == "mixed"


def test_it_is_bounded_and_in_a_sandbox_that_still_shows_gpus() -> None:
    """`systemd-analyze security --offline=true` says 2.6 of it, and 9.6 of the unit without these
    lines. That program is not on every machine, so the lines are compared here."""
    unit = dict(service())
    assert unit["User"] == "%i"
    assert unit["CapabilityBoundingSet"] == ""
    assert unit["ProtectSystem"] == "strict"
    assert unit["ProtectHome"] == "read-only", "strict alone leaves /home writable"
    assert unit["UMask"] == "0077"
    assert unit["SystemCallFilter"] == "@system-service"
    assert unit["SystemCallErrorNumber"] == "EPERM", "a call that is refused must not kill"
    assert set(unit["RestrictAddressFamilies"].split()) == {
        "AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"
    }  # fmt: skip
    switches = (
        "NoNewPrivileges", "PrivateTmp", "RestrictSUIDSGID", "RestrictNamespaces",
        "RestrictRealtime", "LockPersonality", "ProtectControlGroups", "ProtectKernelTunables",
    )  # fmt: skip
    assert {unit[name] for name in switches} == {"yes"}
    assert unit["MemoryHigh"].endswith("%")
    assert int(unit["TasksMax"]) >= 1024
    assert unit["LimitNOFILE"] == "65536"
    assert not unit.keys() & {"PrivateDevices", "DeviceAllow", "MemoryDenyWriteExecute"}


def test_it_may_write_where_a_daemon_keeps_things() -> None:
    """The folders of `base_folder`, for a user whose home is where homes usually are."""
    writable = service()["ReadWritePaths"].split()
    assert writable == ["/home/%i/.local/share/atom", "/home/%i/.cache"]
    page = VOLUNTEER.read_text(encoding="utf-8").partition("## As a service")[2]
    assert "mkdir -p ~/.local/share/atom ~/.cache" in page, "one that is missing ends the start"
