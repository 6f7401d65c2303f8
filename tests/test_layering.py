"""Imports go one way, and each foreign library has one door, and is asked for."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ATOM = ROOT / "atom"

COLUMN = ["base", "config", "graph", "swap", "optim", "training", "plan", "daemon", "cli"]
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": set(),
    "models": {"base"},
    "config": {"base"},
    "graph": {"base"},
    "swap": {"base", "graph"},
    "optim": {"base", "graph", "swap"},
    "swarm": {"base", "wire", "config"},
    "training": {"base", "config", "models", "graph", "swap", "optim", "swarm"},
    "plan": {"base", "config", "graph", "swap", "optim", "swarm", "training"},
    "daemon": {
        "base", "wire", "config", "models", "graph", "swap", "optim", "swarm", "training", "plan",
    },
    "cli": {"base", "config", "models", "swarm", "training", "plan", "daemon", "extras"},
    "extras": {"base", "config", "models", "swap", "swarm", "plan", "daemon"},
}  # fmt: skip

WITHIN: dict[str, dict[str, set[str]]] = {
    "swarm": {
        "": set(),
        "router": {""},
        "chain": {""},
        "records": {"", "chain"},
        "dht": {"", "chain", "records", "stream"},
        "stream": {"", "chain", "records"},
        "transport": {"", "chain", "records", "stream"},
        "exchange": {"", "chain", "records", "stream", "transport"},
        "state": {"", "chain", "records", "stream", "transport"},
    },
    "training": {
        "round": set(),
        "storage": set(),
        "replica": {"round"},
        "": {"round", "storage", "replica"},
    },
    "daemon": {
        "": set(),
        "model": {""},
        "owner": {""},
        "peer": {"", "model", "owner"},
    },
    "extras": {
        "doctor": set(),
        "dashboard": set(),
        "": set(),
    },
    "cli": {
        "shell": set(),
        "train": {"shell", "box"},
        "box": {"shell"},
        "look": {"shell", "box"},
        "demo": {"shell"},
        "": {"shell", "train", "box", "look", "demo"},
    },
}
"""Rooms with rooms of their own; "" are the files beside them."""

DOORS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("atom/extras/dashboard/server.py",),
    "base58": ("atom/swarm/addresses.py", "atom/swarm/identity.py"),
    "hivemind": (
        "atom/swarm/dht/guard.py",
        "atom/swarm/dht/node.py",
        "atom/swarm/dht/storage.py",
        "atom/swarm/dht/p2pd.py",
    ),
    "grpc": ("atom/daemon/control.py",),
    "pydantic": ("atom/config/",),
    "pydantic_core": ("atom/config/",),
    "jinja2": ("atom/extras/dashboard/page.py",),
    "plotille": ("atom/cli/look/watch.py",),
    "prometheus_client": ("atom/daemon/owner/metrics.py",),
    "rich": ("atom/cli/",),
    "typer": ("atom/cli/",),
    "tokenizers": ("atom/models/data/tokenizer.py",),
    "datasets": ("atom/models/data/stored_dataset.py",),
    "pyarrow": ("atom/models/data/documents.py", "atom/models/data/rows.py"),
    "huggingface_hub": ("atom/models/hub.py",),
    "safetensors": ("atom/training/storage/", "atom/daemon/model/weight_files.py"),
    "transformers": ("atom/models/huggingface_library.py", "atom/models/data/conversations.py"),
    "ssl": ("atom/swarm/stream/",),
}
TORCH_ALONE = ("graph", "swap", "optim", "models")
SEARCH = ("choice", "choosing", "cuts", "memory", "prediction", "residency")
"""Files of `plan` that search for a cut: they need PyTorch, the graph and the swapper alone."""
NOT_WITH_TORCH_ALONE = {
    "hivemind", "grpc", "pydantic", "blake3", "google", "cryptography", "base58", "psutil",
    "rich", "typer", "safetensors",
}  # fmt: skip


def sources() -> list[Path]:
    return sorted(p for p in ATOM.rglob("*.py") if "/wire/" not in p.as_posix())


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Every module a file imports, at the top or inside functions."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            yield node.module or ""


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "atom" and len(parts) > 1 else None


def violations() -> Iterator[str]:
    for path in sources():
        room = path.relative_to(ATOM).parts[0]
        if room.endswith(".py"):
            continue
        for module in imported_modules(path):
            target = room_of(module)
            if target is not None and target != room and target not in ALLOWED[room]:
                yield f"{path.relative_to(ROOT)} imports {module}"


def test_imports_go_one_way() -> None:
    assert list(violations()) == []


def inner_room_of(module: str) -> str:
    """Return the inner room of a module, within its room."""
    outer, inner = (*module.split("."), "", "")[1:3]
    return inner if inner in WITHIN[outer] else ""


@pytest.mark.parametrize("outer", sorted(WITHIN))
def test_imports_within_a_room_go_one_way(outer: str) -> None:
    strays = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted((ATOM / outer).rglob("*.py"))
        for room in [inner_room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))]
        for module in imported_modules(path)
        if room_of(module) == outer and inner_room_of(module) not in {room} | WITHIN[outer][room]
    ]
    assert strays == []


def rooms_in(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/*.py")}


def test_every_room_is_known() -> None:
    assert rooms_in(ATOM) == set(ALLOWED)
    for outer, inner in WITHIN.items():
        assert rooms_in(ATOM / outer) | {""} == set(inner)


def test_the_column_is_a_column() -> None:
    for index, room in enumerate(COLUMN):
        right = set(COLUMN[index + 1 :])
        assert not ALLOWED[room] & right


@pytest.mark.parametrize("library", sorted(DOORS))
def test_one_door_per_foreign_library(library: str) -> None:
    strays = [
        path.relative_to(ROOT).as_posix()
        for path in sources()
        if any(module.split(".")[0] == library for module in imported_modules(path))
        and not path.relative_to(ROOT).as_posix().startswith(DOORS[library])
    ]
    assert strays == []


def declared() -> set[str]:
    """Distributions that a peer asks for, with all its extras; not what developers need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras if name != "dev")]
    return {canonicalize_name(Requirement(each).name) for group in groups for each in group}


def test_what_is_imported_is_declared_and_pinned() -> None:
    """And does not come along with something else, which may do without it tomorrow."""
    brought_by = packages_distributions()
    foreign = {module.split(".")[0] for path in sources() for module in imported_modules(path)}
    foreign -= {"atom", *sys.stdlib_module_names}
    names = {
        module: {canonicalize_name(name) for name in brought_by.get(module, [module])}
        for module in foreign
    }
    asked_for = declared()
    assert {module for module, found in names.items() if not found & asked_for} == set()
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert asked_for - {canonicalize_name(line.split("==")[0]) for line in lines} == set()


def test_the_models_column_needs_torch_alone() -> None:
    strays = [
        f"{path.relative_to(ROOT)}: {module}"
        for room in TORCH_ALONE
        for path in sorted((ATOM / room).rglob("*.py"))
        for module in imported_modules(path)
        if module.split(".")[0] in NOT_WITH_TORCH_ALONE
    ]
    assert strays == []


def test_the_search_for_a_cut_needs_torch_graph_and_swapper_alone() -> None:
    search = {f"atom.plan.{name}" for name in SEARCH}
    strays = [
        f"{name}: {module}"
        for name in SEARCH
        for module in imported_modules(ATOM / "plan" / f"{name}.py")
        if module.split(".")[0] in NOT_WITH_TORCH_ALONE
        or (room_of(module) not in {None, "base", "graph", "swap"} and module not in search)
    ]
    assert strays == []


def test_swarm_never_hears_of_graphs_and_the_column_never_of_peers() -> None:
    for path in sources():
        room = path.relative_to(ATOM).parts[0]
        targets = {room_of(module) for module in imported_modules(path)}
        if room in ("graph", "swap", "optim"):
            assert "swarm" not in targets, path
        if room == "swarm":
            assert not targets & {"graph", "swap", "optim", "models", "training"}, path


def test_no_pickle_anywhere() -> None:
    forbidden = {"pickle", "cloudpickle", "dill", "shelve", "marshal"}
    for path in sources():
        assert not forbidden & {m.split(".")[0] for m in imported_modules(path)}, path
        assert "torch.load(" not in path.read_text(encoding="utf-8"), path


def test_no_import_cycles_between_files() -> None:
    graph = {}
    for path in sources():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        graph[name] = {m for m in imported_modules(path) if m.startswith("atom.")}
    state: dict[str, int] = {}

    def visit(name: str, trail: list[str]) -> None:
        state[name] = 1
        for target in sorted(graph.get(name, set())):
            if target not in graph or state.get(target) == 2:
                continue
            assert state.get(target) != 1, " → ".join([*trail, name, target])
            visit(target, [*trail, name])
        state[name] = 2

    for name in sorted(graph):
        if name not in state:
            visit(name, [])
