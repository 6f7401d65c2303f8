"""The looks at a box: what they see is plausible, and nothing is left behind."""

import os
import shutil
import socket
from pathlib import Path

import pytest
import torch

from atom.base.errors import AddressError
from atom.config.load import parse_peer_text, parse_run_text
from atom.config.peer_file import PeerFile
from atom.config.places import default_state_directory
from atom.daemon.doctor import capacity, examination, gathering
from atom.daemon.doctor.examination import DoctorRequest, box_of, state_of
from atom.daemon.doctor.facts import Gpu
from atom.daemon.doctor.swarm_side import NO_OTHER, NOT_A_PEER, NOT_YET, clock_offset_s, reached_of
from atom.daemon.state_directory import StateDirectory
from atom.graph.ir import ParameterLayout
from atom.models.gpt3 import GPT2_VOCABULARY, GPT3Config, parameter_shapes
from atom.swarm.identity import Identity
from atom.swarm.records.lease import Reached
from tests.daemon.model.kept_runs import folder_in
from tests.daemon.tiny_run import GPT3, run_text


def test_this_box_can_run_its_own_tests() -> None:
    seen = gathering.software()
    assert seen.kernels is None
    assert all(package.fits for package in seen.packages), seen.packages
    memory = gathering.memory(PeerFile())
    assert memory.cap_bytes is None
    assert 0 < memory.available_bytes <= memory.total_bytes
    assert memory.adamw_per_s is not None
    assert memory.adamw_per_s > 0


def test_the_disk_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    seen = gathering.disk(tmp_path / "not" / "there")
    assert (seen.folder, seen.problem) == (str(tmp_path), "")
    assert seen.free_bytes > 0
    assert os.listdir(tmp_path) == []


def test_a_port_in_use_is_seen(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        text = f'[network]\nlisten = "127.0.0.1:{number}"\n[metrics]\nport = 0\nhost = "::1"\n'
        listen, data, metrics = gathering.ports(parse_peer_text(text, tmp_path), tmp_path)
    assert (listen.key, listen.number) == ("listen", number)
    assert listen.problem == "another program listens there"
    assert (data.key, data.number, data.problem) == ("data_port", 0, "")
    assert (metrics.key, metrics.host, metrics.number) == ("metrics", "::1", 0)
    (only,) = gathering.ports(parse_peer_text('[network]\nreachable = "no"\n', tmp_path), tmp_path)
    assert only.key == "listen"


def test_a_port_of_our_own_daemon_is_no_fault(tmp_path: Path) -> None:
    daemon = StateDirectory(tmp_path)
    daemon.lock()
    try:
        assert all(port.is_ours for port in gathering.ports(PeerFile(), tmp_path))
    finally:
        daemon.unlock()
    assert not any(port.is_ours for port in gathering.ports(PeerFile(), tmp_path))


def test_a_daemon_of_ours_is_seen_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    for root in (tmp_path, default_state_directory("other")):
        assert not gathering.daemon_runs(tmp_path)
        daemon = StateDirectory(root)
        daemon.lock()
        assert gathering.daemon_runs(tmp_path)
        daemon.unlock()


def test_the_run_that_our_daemon_trains_is_its_state_directory_s(tmp_path: Path) -> None:
    with folder_in(tmp_path) as folder:
        member = folder.found(GPT3)
        daemon = StateDirectory(tmp_path / "a")
        assert not gathering.trains(daemon.root, member.run_id), "it rests"
        daemon.lock()
        assert gathering.trains(daemon.root, member.run_id)
        assert not gathering.trains(daemon.root, b"another")
        daemon.unlock()
    assert not gathering.trains(tmp_path / "nowhere", member.run_id)


def test_what_a_peer_keeps_already_is_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 8, 1000))
    state = StateDirectory(tmp_path / "state")
    for folder, size in ((state.snapshots, 9000), (state.results, 5000), (state.tokens, 70_000)):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(os.urandom(size))
    taken = sum(
        os.lstat(path).st_blocks * 512
        for path in (*state.snapshots.iterdir(), *state.results.iterdir())
    )
    assert taken >= 14_000
    run = parse_run_text(run_text("tiny", f"{GPT3}\nvocabulary_size = 256"))
    for root, room in ((tmp_path / "new", 1000), (state.root, 1000 + taken)):
        fit = capacity.fit_of(run, "tiny", PeerFile(), torch.device("cpu"), root)
        assert fit.disk_have_bytes == room
    assert gathering.disk(state.root).kept_bytes == taken


@pytest.mark.parametrize(
    ("kind", "wants", "has_reason"),
    [("cpu", False, False), ("auto", False, True), ("cuda:99", True, True)],
)
def test_a_gpu_that_is_not_there_has_a_reason(
    kind: str, wants: bool, has_reason: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seen = gathering.machine(parse_peer_text(f'[device]\nkind = "{kind}"\n', tmp_path))
    assert (seen.gpu, seen.wants_gpu) == (None, wants)
    assert bool(seen.gpu_problem) == has_reason


def test_a_card_on_the_bus_is_seen_whatever_drives_it(tmp_path: Path) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x040300"), ("b", "0x8086", "0x030000")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not gathering._card_seen(tmp_path, tmp_path / "none"), "its sound, and another's screen"
    (tmp_path / "a" / "class").write_text("0x030200\n")
    assert gathering._card_seen(tmp_path, tmp_path / "none")


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_a_container_is_known_by_its_mark(mark: str, tmp_path: Path) -> None:
    assert not gathering._in_container(tmp_path)
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    assert gathering._in_container(tmp_path)


def test_the_youngest_lease_tells_the_time() -> None:
    assert clock_offset_s([]) is None
    low, high = clock_offset_s([0.3, 1.9, 7.0]) or (0.0, 0.0)
    assert low < 0 < high
    ahead = clock_offset_s([9.0, 10.5])
    assert ahead is not None
    assert ahead[0] > 3
    behind = clock_offset_s([-6.0])
    assert behind is not None
    assert behind[1] < -3


def test_our_own_peer_knows_whether_it_is_reached() -> None:
    alive = {"a": Reached.YES, "b": Reached.NO, "c": Reached.UNKNOWN}
    assert reached_of(alive, None) == NOT_A_PEER
    assert reached_of(alive, "gone") == NOT_A_PEER
    assert [reached_of(alive, peer) for peer in alive] == ["yes", "no", NOT_YET]
    assert reached_of({"c": Reached.UNKNOWN}, "c") == NO_OTHER


@pytest.mark.parametrize(
    ("memory", "largest", "larger"),
    [("3 GiB", "gpt3 small in float32", "gpt3 medium"), ("1 GiB", None, "gpt3 small")],
)
def test_the_largest_model_is_one_that_fits(
    memory: str, largest: str | None, larger: str, tmp_path: Path
) -> None:
    peer = parse_peer_text(f'[host]\nmemory = "{memory}"\n[device]\nmemory = "2 GiB"\n', tmp_path)
    cpu = torch.device("cpu")
    fit, next_larger = capacity.largest_of_family(peer, cpu, "float32", "exact", tmp_path)
    assert (fit.title if fit else None) == largest
    assert next_larger is not None
    assert next_larger.title.startswith(larger)
    assert next_larger.host_bytes > next_larger.host_have_bytes
    assert fit is None or fit.fits_memory
    small = GPT3Config.build(vocabulary_size=GPT2_VOCABULARY, size="small")
    elements = ParameterLayout.of(parameter_shapes(small)).total_elements
    assert fit is None or fit.host_bytes == 24 * elements, "shapes say what the graph says"


def test_a_device_that_is_too_small_is_said(tmp_path: Path) -> None:
    text = '[host]\nmemory = "3 GiB"\n[device]\nmemory = "1 MiB"\n'
    fit, small = capacity.largest_of_family(
        parse_peer_text(text, tmp_path), torch.device("cpu"), "float32", "exact", tmp_path
    )
    assert fit is None
    assert small is not None
    assert "device memory" in small.device_problem


def test_without_a_gpu_no_device_memory_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "usable_device_bytes", lambda device, left_bytes: 2000)
    run = parse_run_text(run_text("tiny", f"{GPT3}\nvocabulary_size = 256"))
    fit = capacity.fit_of(run, "tiny", PeerFile(), torch.device("cpu"), tmp_path)
    assert fit.device_problem == (
        "beside its state, 2.0 KiB of host memory are too little to compute in"
    )


def test_what_fits_is_reckoned_for_the_card_that_is_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[torch.device] = []

    def largest(peer: PeerFile, device: torch.device, *_: object) -> tuple[None, None]:
        asked.append(device)
        return None, None

    monkeypatch.setattr(examination, "largest_of_family", largest)
    peer = parse_peer_text('[device]\nkind = "cuda:1"\n', tmp_path)
    for gpu in (None, Gpu("A card", "570.1", 2**34, 2**34, True, None, None)):
        examination._capacity(peer, gpu, tmp_path, None)
    assert asked == [torch.device("cpu"), torch.device("cuda", 1)]


@pytest.mark.parametrize(
    ("gpu", "best"), [(None, "float32"), (True, "bfloat16"), (False, "float16")]
)
def test_the_precision_that_the_device_has(gpu: bool | None, best: str) -> None:
    assert capacity.precision_for(gpu)[0] == best


def test_with_an_address_it_looks_where_join_keeps_its_state(tmp_path: Path) -> None:
    """There is the peer id that a run's owner may have listed."""
    identity = Identity.create().peer_id
    address = f"/ip4/127.0.0.1/tcp/9/p2p/{identity}/run/words"
    asked = DoctorRequest(address)
    assert state_of(asked, PeerFile()) == default_state_directory("words")
    kept = parse_peer_text('[state]\ndirectory = "kept"\n', tmp_path)
    assert state_of(asked, kept) == tmp_path / "kept"
    assert state_of(DoctorRequest(address, state=tmp_path), kept) == tmp_path
    assert state_of(DoctorRequest(), PeerFile()) == default_state_directory("words").parent
    with pytest.raises(AddressError):
        state_of(DoctorRequest("nowhere", state=tmp_path), kept)


def test_it_looks_with_the_caps_that_join_would_have(tmp_path: Path) -> None:
    """`atom set` keeps them in the state directory, unless there is a peer file."""
    (tmp_path / "peer.toml").write_text('[network]\nupload = "1 Mbit/s"\n')
    peer, folder = box_of(DoctorRequest(state=tmp_path))
    assert (peer.network.upload_bits_per_s, folder) == (1e6, tmp_path)
    (tmp_path / "other.toml").write_text("")
    peer, _ = box_of(DoctorRequest(peer_file=tmp_path / "other.toml", state=tmp_path))
    assert peer.network.upload_bits_per_s is None
