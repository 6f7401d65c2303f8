"""Codes that scripts rely on."""

from functools import partial

import pytest

from atom.base import errors
from atom.base.errors import AtomError, UserError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode, exit_code_of
from atom.cli.train.daemons import in_foreground
from atom.daemon.peer.lifecycle import Ending

EXPECTED = {
    errors.ConfigError: 3,
    errors.AddressError: 4,
    errors.PortInUseError: 5,
    errors.StorageError: 6,
    errors.MismatchError: 7,
    errors.DeviceError: 8,
    errors.ModelError: 9,
    errors.ControlError: 10,
    errors.TrustError: 13,
    errors.IdentityError: 15,
    errors.ShortageError: 16,
    errors.AllowanceError: 17,
    errors.UserError: 12,
}


def _tree(kind: type[AtomError]) -> set[type[AtomError]]:
    return {kind}.union(*(_tree(child) for child in kind.__subclasses__()))


def test_numbers_never_change() -> None:
    named = {kind for kind in _tree(UserError) if kind.__module__ == errors.__name__}
    assert {kind: exit_code_of(kind("outcome")) for kind in named} == EXPECTED
    torn = type("TornFile", (errors.StorageError,), {})
    assert exit_code_of(torn("torn")) == ExitCode.STORAGE, "the code of its nearest ancestor"
    ended = {each: in_foreground(partial(lambda end, console: end, each)) for each in Ending}
    late = {Ending.LEFT_LATE: 11, Ending.MONTH_USED: 17}
    assert ended == {each: late.get(each, 0) for each in Ending}


def test_every_code_has_a_meaning_and_the_help_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for code in ExitCode:
        assert f"{code:3d}  {code.meaning}" in shown
