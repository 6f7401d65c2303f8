"""The names that rooms export exist, are sorted, and are documented."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ATOM = Path(__file__).parent.parent / "atom"
ROOT = ATOM.parent


def modules_with_exports() -> list[str]:
    found = []
    for path in sorted(ATOM.rglob("*.py")):
        if "__all__" in path.read_text(encoding="utf-8") and "/wire/" not in path.as_posix():
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append(name.removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_exports())
def test_exported_names_exist_and_are_sorted(name: str) -> None:
    module = importlib.import_module(name)
    exported = list(module.__all__)
    assert exported == sorted(exported)
    assert all(hasattr(module, item) for item in exported)


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ATOM.rglob("*.py"))
        if "/wire/" not in path.as_posix()
        and path.read_text(encoding="utf-8").strip()
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]
    assert silent == []


def test_the_wire_is_generated_from_proto(tmp_path: Path) -> None:
    protos = sorted((ROOT / "proto" / "atom" / "wire").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={ROOT / 'proto'}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    command += map(str, protos)
    subprocess.run(command, check=True, timeout=60)
    committed = sorted(p.name for p in (ATOM / "wire").glob("*_pb2*.py*"))
    assert committed
    for name in committed:
        fresh = (tmp_path / "atom" / "wire" / name).read_bytes()
        assert fresh == (ATOM / "wire" / name).read_bytes(), f"{name}: run `make proto`"
    assert {p.stem for p in protos} == {n.split("_pb2")[0] for n in committed}
