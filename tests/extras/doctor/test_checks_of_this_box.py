"""Each check of this box names its fault with a command or a key, and leaves nothing behind."""

import os
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from atom.base.errors import MismatchError
from atom.base.usable_memory import UsableMemory
from atom.config.load import parse_peer_text
from atom.config.peer_file import Device
from atom.config.places import default_state_directory
from atom.daemon.state_directory import StateDirectory
from atom.extras.doctor import this_box
from atom.extras.doctor.this_box import Finding, Level
from atom.swap import host_kernels, streams
from atom.swarm.router.requests import PortRefused

GIB = 2**30


def told(finding: Finding, level: Level, said: str, fix: str = "") -> None:
    assert finding.level is level, finding
    assert said in finding.said
    assert fix in finding.fix


def test_what_this_box_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_compiled() -> None:
        raise MismatchError("not compiled", "compile")

    monkeypatch.setattr(host_kernels, "host_kernels", not_compiled)
    told(this_box.kernels(), Level.FAILURE, "not compiled", "build_kernels")
    limited = UsableMemory(64 * GIB, 60 * GIB, is_limited=True)
    told(this_box.memory(limited), Level.OK, "64.4 GB of 68.7 GB free: the limit of this container")


@pytest.mark.parametrize(
    ("kind", "card", "level", "said"),
    [
        ("cpu", True, Level.OK, "the peer file says cpu"),
        ("auto", False, Level.OK, "none found; trains on the CPU, many times slower"),
        ("auto", True, Level.WARNING, "none is usable: "),
        ("cuda:0", False, Level.FAILURE, "no usable CUDA GPU"),
    ],
)
def test_without_a_gpu(
    kind: str, card: bool, level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(this_box, "card_seen", lambda: card)
    fixes = {Level.WARNING: "until nvidia-smi lists it", Level.FAILURE: 'use = "cpu"'}
    told(*this_box.gpus(Device(use=(kind,)), False), level, said, fixes.get(level, ""))


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Two usable GPUs of one kind: function of `torch.cuda` → its answer, which may be changed."""
    seen: dict[str, object] = {
        "is_available": True,
        "device_count": 2,
        "mem_get_info": (22 * GIB, 24 * GIB),
        "get_device_name": "A card",
        "is_bf16_supported": False,
        "get_device_capability": (8, 6),
        "get_arch_list": [],
    }
    monkeypatch.setattr(streams, "has_code", lambda *capability: True)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    for name in seen:
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name, **__: seen[name])
    return seen


@pytest.mark.parametrize(
    ("free", "daemon_runs", "level", "said"),
    [
        (22 * GIB, False, Level.OK, "A card, 23.6 GB of 25.8 GB free"),
        (2 * GIB, False, Level.WARNING, "other programs use the rest"),
        (2 * GIB, True, Level.OK, "your daemon is running"),
    ],
)
def test_with_a_gpu(
    free: int, daemon_runs: bool, level: Level, said: str, cards: dict[str, object]
) -> None:
    cards["mem_get_info"] = (free, 24 * GIB)
    [finding] = this_box.gpus(Device(), daemon_runs)
    told(finding, level, said, "nvidia-smi" if level is Level.WARNING else "")
    assert "no bfloat16" in finding.said


def test_with_several_gpus(cards: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.level for each in this_box.gpus(Device(use=("all",)), False)] == [Level.OK] * 2
    [finding] = this_box.gpus(Device(use=("cuda:1", "cuda:2")), False)
    told(finding, Level.FAILURE, "no GPU 2; number of GPUs: 2")
    monkeypatch.setattr(
        torch.cuda,
        "get_device_capability",
        lambda device: (8, 9 * device.index if isinstance(device, torch.device) else 0),
    )
    [finding] = this_box.gpus(Device(use=("all",)), False)
    told(finding, Level.FAILURE, "(compute capabilities: cuda:0 8.0, cuda:1 8.9)", "each is a peer")


def test_a_card_on_the_bus_is_seen_whatever_drives_it(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x040300"), ("b", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not this_box.card_seen(tmp_path, tmp_path / "none"), "its sound, and another's screen"
    (tmp_path / "a" / "class").write_text("0x030200\n")
    assert this_box.card_seen(tmp_path, tmp_path / "none")


def test_the_disk_is_tried_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(this_box.disk(tmp_path / "not" / "there"), Level.OK, f"free in {tmp_path}")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(this_box, "LEAST_DISK_BYTES", 2**70)
    told(this_box.disk(tmp_path), Level.FAILURE, "free in", "[state] directory")
    monkeypatch.setattr(StateDirectory, "kept_bytes", 2**70)
    told(this_box.disk(tmp_path), Level.OK, "free in")
    told(this_box.disk(Path("/proc/1")), Level.FAILURE, "/proc/1: ", "--state DIR")


def test_a_port_in_use_is_seen_unless_our_own_daemon_has_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        text = f'[network]\nlisten = "127.0.0.1:{number}"\n[metrics]\nport = 0\nhost = "::1"\n'
        peer = parse_peer_text(text, tmp_path)
        listen, data, metrics = this_box.ports(peer, is_ours=False)
        assert {finding.level for finding in this_box.ports(peer, is_ours=True)} == {Level.OK}
    told(listen, Level.FAILURE, f"port {number} of 127.0.0.1 is in use", "[network] listen")
    told(data, Level.OK, "any free port")
    told(metrics, Level.OK, "any free port")
    told(this_box.port("[network] listen", "127.0.0.1", number, False), Level.OK, "is free")


def test_a_daemon_of_ours_is_seen_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    for root in (tmp_path, default_state_directory("other")):
        assert not this_box.daemon_runs(tmp_path)
        daemon = StateDirectory(root)
        daemon.lock()
        assert this_box.daemon_runs(tmp_path)
        daemon.unlock()


@pytest.mark.parametrize(
    ("found", "level", "said"),
    [
        (("PCP", "11.22.33.44"), Level.OK, "it supports PCP: --map-ports would open"),
        (("UPnP", "0.0.0.0"), Level.OK, "it supports UPnP: --map-ports would open"),
        (("UPnP", "100.64.0.9"), Level.OK, "your provider uses NAT: other peers must be"),
        (PortRefused("no router answers"), Level.UNCHECKED, "no router answers"),
    ],
)
def test_the_router_may_open_ports(
    found: tuple[str, str] | PortRefused, level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> tuple[str, str]:
        if isinstance(found, PortRefused):
            raise found
        return found

    text = '[network]\nlisten = "192.168.1.2:31337"\ndata_port = 31338\n'
    finding = this_box.router(parse_peer_text(text, Path()), find)
    told(finding, level, said)
    assert ("31337 and 31338" in finding.said) == ("--map-ports" in said)


def test_a_machine_with_a_public_address_needs_no_router() -> None:
    peer = parse_peer_text('[network]\nlisten = "11.22.33.44:0"\n', Path())
    finding = this_box.router(peer, lambda: pytest.fail("the router was asked"))
    assert (finding.level, "not private" in finding.said) == (Level.OK, True)
