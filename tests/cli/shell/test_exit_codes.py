import pytest

from atom.base import errors
from atom.base.errors import AtomError, UserError
from atom.cli.app import main
from atom.cli.shell.failures import ExitCode, exit_code_of

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
    errors.UserError: 12,
}


def _tree(kind: type[AtomError]) -> set[type[AtomError]]:
    return {kind}.union(*(_tree(child) for child in kind.__subclasses__()))


@pytest.mark.parametrize(("kind", "code"), EXPECTED.items())
def test_numbers_never_change(kind: type[UserError], code: int) -> None:
    assert exit_code_of(kind("what happened")) == code


def test_every_user_error_of_the_tree_is_in_the_table() -> None:
    named = {kind for kind in _tree(UserError) if kind.__module__ == errors.__name__}
    assert named == set(EXPECTED)


def test_a_subclass_has_the_code_of_its_nearest_named_ancestor() -> None:
    class TornFile(errors.StorageError):
        pass

    assert exit_code_of(TornFile("torn")) == ExitCode.STORAGE


def test_every_code_has_a_meaning_and_the_help_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for code in ExitCode:
        assert f"{code:3d}  {code.meaning}" in shown
