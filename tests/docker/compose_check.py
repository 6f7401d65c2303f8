"""The image, and the swarm of containers, for real: built, trained, left. Run by `make docker`.

$ATOM_DOCKER_BUILD: further words for `docker build`, where the registries are reached otherwise.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IMAGE = "atom:check"
PEERS = ("founder", "peer-1", "peer-2")
BUILD_S, UP_S, TOGETHER_S, STOP_S, CALL_S = 1500.0, 400.0, 400.0, 120.0, 60.0
MOST_BYTES = 1_500_000_000
"""Bound on the size of an image for CPUs; PyTorch alone is half of it."""
BUILT_FROM = (
    "atom/", "peers/", "LICENSE", "README.md", "constraints.txt", "pyproject.toml", "setup.py",
)  # fmt: skip
STRAYS = (
    ".git/config", "second/identity.key", "my-box.toml", "atom/.env", "atom/swap/libold.so",
    "atom/swap/libold.12.partial", "peers/identity.key", "peers/founder/identity.key",
    "peers/.demo.toml.swp",
)  # fmt: skip
"""Files that a checkout in use has in addition to the files in git."""

pytestmark = pytest.mark.timeout(BUILD_S + UP_S + TOGETHER_S + 5 * STOP_S)


def docker(*words: str, within_s: float = CALL_S) -> str:
    """Return the stdout of docker. Raises: CalledProcessError with the output, TimeoutExpired."""
    done = subprocess.run(
        ["docker", *words],
        capture_output=True, text=True, timeout=within_s, check=False, cwd=ROOT,
        env=os.environ | {"DOCKER_BUILDKIT": "1", "ATOM_IMAGE": IMAGE},
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"docker {shlex.join(words)}: {done.stderr[-3000:]}")
    return done.stdout


class Containers:
    """The swarm of docker/compose.yaml under a name of its own."""

    def __init__(self) -> None:
        project = f"atom-check-{os.getpid()}"
        self._compose = ("compose", "--project-name", project, "--file", "docker/compose.yaml")

    def __call__(self, *words: str, within_s: float = CALL_S) -> str:
        return docker(*self._compose, *words, within_s=within_s)

    def inside(self, service: str, *words: str) -> str:
        return self("exec", "--no-TTY", service, *words)

    def info(self, service: str) -> dict[str, Any]:
        return dict(json.loads(self.inside(service, "atom", "info", "--json")))

    def status(self) -> dict[str, Any]:
        """Return the status of the swarm, asked from the home of peer-1."""
        address = self.inside("peer-1", "sed", "-n", "s/^join: //p", "/meeting/founder").strip()
        return dict(json.loads(self.inside("peer-1", "atom", "status", address, "--json")))

    def inspect(self, service: str) -> dict[str, Any]:
        (container,) = self("ps", "--all", "--quiet", service).split()
        return dict(json.loads(docker("inspect", container))[0])


@pytest.fixture(scope="module")
def image() -> str:
    further = shlex.split(os.environ.get("ATOM_DOCKER_BUILD", ""))
    docker(
        "build", "--file", "docker/Dockerfile", "--tag", IMAGE, *further, ".", within_s=BUILD_S
    )  # fmt: skip
    return IMAGE


@pytest.fixture(scope="module")
def containers(image: str) -> Iterator[Containers]:
    swarm = Containers()
    try:
        swarm("up", "--detach", "--no-build", "--wait", within_s=UP_S)
        yield swarm
    finally:
        with suppress(AssertionError):
            sys.stdout.write(swarm("logs", "--no-color", "--tail", "15"))
        swarm("down", "--volumes", "--timeout", "5")


def test_the_image_is_small_and_runs_as_nobody(image: str) -> None:
    (seen,) = json.loads(docker("image", "inspect", image))
    sys.stdout.write(f"{image}: {seen['Size'] / 1e6:,.0f} MB\n")
    assert seen["Size"] < MOST_BYTES
    assert seen["Config"]["User"] == "atom"
    assert seen["Config"]["Healthcheck"]["Test"] == ["CMD", "atom", "info"]
    assert docker("run", "--rm", "--entrypoint", "id", image, "-u").strip() == "10001"
    found = "command -v gcc cc || true"
    assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", found) == ""
    assert docker("run", "--rm", image, "--version").strip()
    demo = "from atom.cli.demo.peer import run_text; print(run_text(), end='')"
    packaged = docker("run", "--rm", "--entrypoint", "python3", image, "-c", demo)
    assert packaged == (ROOT / "peers" / "demo.toml").read_text()


def test_a_checkout_in_use_gives_the_build_its_tracked_files_only(tmp_path: Path) -> None:
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    ours = {name for name in tracked if name.startswith(BUILT_FROM)} - {"peers/atom@.service"}
    checkout, seen = tmp_path / "checkout", tmp_path / "seen"
    for name in (*ours, *STRAYS):
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a stray") if name in STRAYS else shutil.copy(ROOT / name, path)
    every = checkout / "docker" / "Dockerfile"
    every.parent.mkdir()
    every.write_text("FROM scratch\nCOPY . /\n")
    shutil.copy(ROOT / "docker" / "Dockerfile.dockerignore", every.parent)
    docker("build", "--file", str(every), "--output", str(seen), str(checkout))
    assert {str(path.relative_to(seen)) for path in seen.rglob("*") if path.is_file()} == ours


def test_peers_that_cannot_reach_each_other_train_together(containers: Containers) -> None:
    for service in ("bootstrap", *PEERS):
        assert containers.inspect(service)["State"]["Health"]["Status"] == "healthy"
    (home,) = containers.inspect("peer-2")["NetworkSettings"]["Networks"].values()
    dial = f"import socket; socket.create_connection(({home['IPAddress']!r}, 31338), 2)"
    with pytest.raises(AssertionError, match="timed out"):
        containers.inside("peer-1", "python3", "-c", dial)

    seen = _together(containers)
    assert seen["founder"]["reachable"] == "yes"
    status = containers.status()
    sys.stdout.write(f"round {status['round']}, {status['tokens_per_s']:,.0f} tokens/s\n")
    assert status["round"] >= max(each["round"] for each in seen.values())
    assert {each["peer_id"] for each in status["peers"]} == {s["peer_id"] for s in seen.values()}


def test_a_swarm_that_is_restarted_as_a_whole_trains_on(containers: Containers) -> None:
    before = containers.status()["round"]
    containers("restart", within_s=4 * STOP_S)
    seen = _together(containers)
    assert min(each["round"] for each in seen.values()) > before


def _together(containers: Containers) -> dict[str, dict[str, Any]]:
    """Return the info of each peer once all peers train together. Raises: AssertionError if a
    container has ended."""
    deadline = time.monotonic() + TOGETHER_S
    seen: dict[str, dict[str, Any]] = {}
    while not (len(seen) == len(PEERS) and all(_is_one_of_three(each) for each in seen.values())):
        assert time.monotonic() < deadline, seen
        for service in PEERS:
            assert containers.inspect(service)["State"]["Running"], service
            with suppress(AssertionError):  # it still starts
                seen[service] = containers.info(service)
    return seen


def _is_one_of_three(info: dict[str, Any]) -> bool:
    """Return True if the peer votes with the others and has contributed to a few rounds."""
    return info["rounds_joined"] >= 3 and len(info["voters"]) == len(PEERS)


def test_stopping_a_container_is_leaving(containers: Containers) -> None:
    for service in reversed(PEERS):
        containers("stop", service, within_s=STOP_S)
        assert containers.inspect(service)["State"]["ExitCode"] == 0, service
    containers("stop", "bootstrap", within_s=STOP_S)
    assert containers.inspect("bootstrap")["State"]["ExitCode"] == 0
