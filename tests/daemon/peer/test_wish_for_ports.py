"""Wish that the router opens ports: from the settings, or from one question on the terminal."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atom.config.peer_file import Network
from atom.daemon.peer.setup import wants_ports, with_open_ports
from atom.daemon.state_directory import StateDirectory
from atom.swarm.router.ports import PortMapping
from atom.swarm.router.requests import PortRequest, PublicPort
from tests.daemon.silence import Notes


class Owner(Notes):
    """Console with an owner that gives one answer."""

    def __init__(self, answer: bool | None) -> None:
        super().__init__()
        self.answer, self.questions = answer, 0

    def ask(self, question: str, default: bool) -> bool | None:
        assert not default, "an owner who only presses Enter has not agreed"
        self.questions += 1
        return self.answer


class Router:
    """Keeper of ports whose router opens all of them."""

    def __init__(self) -> None:
        self.opened = list[int]()

    def open(self, ports: tuple[int, ...]) -> list[PortMapping]:
        self.opened += ports
        requests = [PortRequest(port, port, 600) for port in ports]
        return [PortMapping("PCP", r, PublicPort("11.22.33.44", r.inside, 600)) for r in requests]

    def start(self) -> None:
        pass

    close = start


@dataclass
class PlayedBox:
    """Side of a peer that belongs to its machine."""

    peer: Any
    state: StateDirectory
    console: Owner
    ports: Router


def box_of(folder: Path, answer: bool | None, **network: Any) -> Any:
    settings = SimpleNamespace(network=Network(**network))
    settings.model_copy = lambda update: SimpleNamespace(**update)
    console, state = Owner(answer), StateDirectory(folder)
    return PlayedBox(settings, state, console, Router())


@pytest.mark.parametrize("answer", [True, False])
def test_the_owner_is_asked_once_and_the_answer_is_kept(tmp_path: Path, answer: bool) -> None:
    box = box_of(tmp_path, answer)
    assert [wants_ports(box, is_private=True) for _ in range(2)] == [answer, answer]
    assert box.console.questions == 1
    returned = box_of(tmp_path, None)
    assert wants_ports(returned, is_private=True) == answer
    assert returned.console.questions == 0
    settled = box_of(tmp_path, None, map_ports=not answer)
    assert wants_ports(settled, is_private=True) != answer, "the settings decide"


def test_without_an_answer_nothing_is_opened_and_the_next_start_asks(tmp_path: Path) -> None:
    assert not wants_ports(box_of(tmp_path, None), is_private=True)
    asked = box_of(tmp_path, True)
    assert wants_ports(asked, is_private=True)
    assert asked.console.questions == 1


@pytest.mark.parametrize(
    ("is_private", "network"),
    [(False, {}), (True, {"map_ports": False}), (True, {"map_ports": True})],
)
def test_there_is_no_question_without_need(
    tmp_path: Path, is_private: bool, network: dict[str, Any]
) -> None:
    box = box_of(tmp_path, True, **network)
    assert wants_ports(box, is_private) == bool(network.get("map_ports"))
    assert box.console.questions == 0
    assert not box.state.map_ports.exists()


def test_the_owner_reads_what_was_opened_and_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atom.daemon.peer.setup.own_hosts", lambda host: ["192.168.1.2"])
    box = box_of(tmp_path, True, listen="127.0.0.1:31337", data_port=31338)
    callbacks: Any = SimpleNamespace(callback=lambda close: None)
    with_open_ports(box, callbacks)
    assert box.ports.opened == [31337, 31338]
    assert len(box.console.notes) == 2
    for port, note in zip((31337, 31338), box.console.notes, strict=True):
        assert f"(PCP): 11.22.33.44:{port} leads to port {port} of this machine" in note
        assert "is renewed while Atom runs" in note


def test_a_public_machine_is_not_asked(tmp_path: Path) -> None:
    box = box_of(tmp_path, True, listen="127.0.0.1:31337")
    callbacks: Any = SimpleNamespace()
    assert with_open_ports(box, callbacks) is box
    assert box.console.questions == 0
