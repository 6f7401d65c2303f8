import pytest
import typer

from atom.cli.shell.arguments import gather_addresses, parse_deadline, with_home

A, B = "/ip4/10.0.0.5/tcp/1/p2p/Qm1", "/dns4/example.org/tcp/2/p2p/Qm2"
FLAG = "--initial-peers"


@pytest.mark.parametrize(
    ("given", "gathered"),
    [
        ([], []),
        (["start", "run.toml", FLAG, A], ["start", "run.toml", FLAG, A]),
        (["start", FLAG, A, B, "/home/run.toml"], ["start", FLAG, A, FLAG, B, "/home/run.toml"]),
        (["start", FLAG, f"{A},{B}"], ["start", FLAG, A, FLAG, B]),
        (["start", FLAG, A, FLAG, B, "r"], ["start", FLAG, A, FLAG, B, "r"]),
        (["start", FLAG], ["start", FLAG]),
        (["start", FLAG, "nonsense"], ["start", FLAG, "nonsense"]),
        (["join", A], ["join", A]),
    ],
)
def test_addresses_follow_one_flag(given: list[str], gathered: list[str]) -> None:
    assert gather_addresses(given) == gathered


def test_a_home_after_an_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    given = ["set", "--state=~/x", "--out=~", "--out=~you/x", "a.b=~/x", "~/x"]
    written = ["set", "--state=/home/me/x", "--out=/home/me", "--out=~you/x", "a.b=~/x", "~/x"]
    assert with_home(given) == written


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, None), ("30 s", 30.0), ("2 min", 120.0), ("45", 45.0)]
)
def test_a_deadline(text: str | None, seconds: float | None) -> None:
    assert parse_deadline(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3 s", "0", "3 GiB", "1.2.3"])
def test_no_deadline(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_deadline(text)
