"""Hints about files of settings, addresses and names."""

import json
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from atom.config.load import check_checkpoints, load_run_file, parse_peer_text, parse_run_text
from atom.config.sources import text_sources
from atom.daemon.owner.settings import Settings
from atom.daemon.owner.traffic import require_allowance
from atom.daemon.peer.own_code import check_trust
from atom.graph.costs.seconds import assumed_device
from atom.swarm.addresses import (
    EXAMPLE_JOIN,
    EXAMPLE_MULTIADDR,
    check_run_name,
    listening,
    parse_join_address,
    parse_listen,
    parse_multiaddr,
    parse_multiaddrs,
)
from atom.training.run_optimizer import optimizer
from tests.cli.good_run import GOOD_RUN
from tests.hints.scene import Act, scene, written


def run_file(content: str | bytes, name: str = "run.toml") -> Act:
    return written(name, content, load_run_file)


def peer(text: str) -> Act:
    return lambda folder: parse_peer_text(text, folder)


def keeps_best(peer_text: str, validated: bool) -> None:
    run = GOOD_RUN if validated else GOOD_RUN.partition("[validation]")[0]
    check_checkpoints(parse_peer_text(peer_text, Path()), parse_run_text(run))


def places(peer_text: str) -> None:
    named = GOOD_RUN.replace('source = "python-stdlib"\nmax_bytes = "20 kB"\n', "")
    run = parse_run_text(named + '[data.sources.a]\npaths = ["a.txt"]\n')
    text_sources(run, parse_peer_text(peer_text, Path("/box")), None)


def settings_of(folder: Path) -> Settings:
    none: Any = None
    return Settings(folder / "peer.toml", parse_peer_text("", folder), none, none, none)


def allowance(folder: Path, per_month: int, now: datetime = datetime(2030, 1, 9)) -> None:
    kept = {"days": {"2030-01-01": 900}, "round_bytes": 100}
    (folder / "traffic.json").write_text(json.dumps(kept))
    require_allowance(folder / "traffic.json", per_month, now)


def optimized(name: str, more: str = "") -> None:
    text = GOOD_RUN.replace("[optimizer]\n", f'[optimizer]\nname = "{name}"\n')
    optimizer(parse_run_text(text + more))


BYTES = GOOD_RUN.encode()
FILES = {
    "check its path and rights": scene(
        lambda folder: load_run_file(folder / "absent.toml"), run_file(BYTES)
    ),
    "save the file as UTF-8, or name another file": scene(
        run_file(GOOD_RUN.replace("tiny", "tïny").encode("latin-1")), run_file(BYTES)
    ),
    "no run or peer file is that long: name another file": scene(
        run_file(BYTES + b"#" * 2**16), run_file(BYTES, "other.toml")
    ),
    "strings need quotes, section names need brackets: https://toml.io": scene(
        lambda folder: parse_run_text(GOOD_RUN.replace('"tiny"', "tiny")),
        lambda folder: parse_run_text(GOOD_RUN),
    ),
    "name only the GPUs; to use the CPU as well, start a separate peer on it": scene(
        peer('[device]\nuse = ["cuda:0", "cpu"]'),
        peer('[device]\nuse = ["cuda:0"]'), peer('[device]\nuse = "cpu"'),
    ),
    'use = "all", or ["cuda:0", "cuda:1"]': scene(
        peer('[device]\nuse = ["all", "cuda:0"]'),
        peer('[device]\nuse = "all"'), peer('[device]\nuse = ["cuda:0", "cuda:1"]'),
    ),
    '"cuda" means "cuda:0": name each GPU once': scene(
        peer('[device]\nuse = ["cuda", "cuda:0"]'), peer('[device]\nuse = ["cuda:0", "cuda:1"]')
    ),
    "every_rounds = 100": scene(
        peer("[checkpoints]\nkeep = 2"), peer("[checkpoints]\nkeep = 2\nevery_rounds = 100")
    ),
    "remove the key from the peer file, or found a run with [validation]": scene(
        lambda folder: keeps_best("[checkpoints]\nbest = true", validated=False),
        lambda folder: keeps_best("", validated=False),
        lambda folder: keeps_best("[checkpoints]\nbest = true", validated=True),
    ),
    "it has {…}": scene(
        lambda folder: places('[data.sources.b]\npaths = ["b"]'),
        lambda folder: places('[data.sources.a]\npaths = ["b"]'),
    ),
    "get copies of these, and add the lines to your peer file (--peer), with full paths if the "
    "copies are in another folder:\n{…}": scene(
        lambda folder: places(""), lambda folder: places('[data.sources.a]\npaths = ["a.txt"]'),
    ),
    "write your peer file there, or restart with --peer and a permanent file": scene(
        lambda folder: settings_of(folder).reload(),
        written("peer.toml", "", lambda path: settings_of(path.parent).reload()),
    ),
    "start again later, or raise [network] per_month": scene(
        lambda folder: allowance(folder, 1000),
        lambda folder: allowance(folder, 10**12),
        lambda folder: allowance(folder, 1000, datetime(2031, 1, 1)),
    ),
    'set [update] rule = "{…}", or name = "adamw"': scene(
        lambda folder: optimized("muon"),
        lambda folder: optimized("muon", '[update]\nrule = "local-steps"\ninner_sequences = 2\n'),
        lambda folder: optimized("adamw"),
    ),
}  # fmt: skip


def taken_port(other: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listening("127.0.0.1", 0 if other else taken.getsockname()[1], "[network] listen").close()


OF_ADDRESSES = {
    "use the name under [run] in its file: at most 63 of a-z, 0-9, '.', '_' and '-', the first a "
    "letter or digit": scene(
        lambda folder: check_run_name("My run"), lambda folder: check_run_name("my-run")
    ),
    "name at most {…}": scene(
        lambda folder: parse_multiaddrs([EXAMPLE_MULTIADDR] * 100),
        lambda folder: parse_multiaddrs([EXAMPLE_MULTIADDR]),
    ),
    "a DHT node's address looks like {…}": scene(
        lambda folder: parse_multiaddr("10.0.0.5:31337"),
        lambda folder: parse_multiaddr(EXAMPLE_MULTIADDR),
    ),
    "paste what `atom start` prints after `join:`, such as {…}": scene(
        lambda folder: parse_join_address("10.0.0.5"),
        lambda folder: parse_join_address(f"join: {EXAMPLE_JOIN}"),
    ),
    "write HOST:PORT, for example 0.0.0.0:31337, or [::]:31337 for IPv6": scene(
        lambda folder: parse_listen("::1"),
        lambda folder: parse_listen("0.0.0.0:31337"), lambda folder: parse_listen("[::]:31337"),
    ),
    "choose another, or 0 for any free port: {…}": scene(
        lambda folder: taken_port(other=False), lambda folder: taken_port(other=True)
    ),
    "use an address of this machine (or 0.0.0.0) and a port above 1023: {…}": scene(
        lambda folder: listening("203.0.113.9", 0, "x"),
        lambda folder: listening("0.0.0.0", 0, "x").close(),
    ),
    "ask the owner for the value of --trust, not by the channel that gave you the address": scene(
        lambda folder: check_trust("owner", "ab" * 32, f"thief:{'ab' * 32}"),
        lambda folder: check_trust("owner", "ab" * 32, f"owner:{'ab' * 32}"),
    ),
    "the devices known are {…}": scene(
        lambda folder: assumed_device("abacus", torch.float32),
        lambda folder: assumed_device("rtx4090-24g", torch.float32),
    ),
}  # fmt: skip
