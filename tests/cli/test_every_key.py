"""Wrong values of every key of both files are refused by name, with what to do.

The keys come from the files' own sections. Bounds and choices are declared there, so only values
that could get past a declaration, or harm a terminal or the machine of a joiner, are listed here.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from atom.cli.shell.failures import ExitCode
from atom.config.load import keys_of
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.section import Section
from tests.cli.good_run import GOOD_RUN
from tests.toml_text import with_key

TABLE = "{ a = 1 }"
HUGE = "9" * 400
LONG = "x" * 5000
SIGNS = ('"a\\u0000"', '"a\\u001b[2J"', '"\\u009b2J"')
ODD: dict[str, tuple[str, ...]] = {
    "run.name": ('"Tiny Run"', '"-x"', f'"{"x" * 64}"'),
    "run.seed": ("-1", str(2**63), "1.0"),
    "model.huggingface": SIGNS,
    "model.huggingface_config": (f'"{LONG * 7}"',),
    "model.layers": ("4097",),
    "model.model_dim": (str(2**20 + 1),),
    "model.sequence_tokens": (str(2**20 + 1),),
    "model.vocabulary_size": (str(2**24 + 1),),
    "model.module": ('"no colon"', '"a:b"'),
    "data.tokenizer": SIGNS,
    "data.max_bytes": ('"8 Gb"', f'"{HUGE} GiB"', '"0 B"'),
    "data.lost_text": ("0.01", '"1"', '"101 %"', '"-1 %"'),
    "data.encoding": ('"utf-9"', *SIGNS),
    "data.bad_rows": ('"count"',),
    "data.sources": ('{ "a b" = { source = "python-stdlib" } }',),
    "data.sources.NAME.weight": ("1001",),
    "batch.micro_batch_sequences": ("1.5", "true", HUGE, "5"),
    "optimizer.learning_rate": ("nan", "inf", "0"),
    "optimizer.betas": ("[0.9]", "[0.9, 1.0]"),
    "optimizer.warmup_rounds": ("4",),
    "swarm.members": ('["ann"]', "[]"),
    "device.use": ('"gpu"', "[]", '["cuda", "cuda:0"]', '["cpu", "cuda"]', str(["cpu"] * 17)),
    "network.listen": ('"here"', '"0.0.0.0:99999"', '"::1:80"', f'"{LONG}:80"'),
    "network.announce": ('["a b"]', str(["a"] * 9), '["a..b"]', '["a:0x1"]'),
    "network.upload": ('"3 MB/s"', '"inf bit/s"', '"0 bit/s"'),
    "network.name": ('"a b"', '"é"', f'"{"x" * 25}"', *SIGNS),
    "schedule.hours": ('["noon"]', '["mon 25:00-26:00"]', '["xyz 1:00-2:00"]'),
    "schedule.idle_for": ('"10 parsecs"', '"-3 s"', '"0 s"'),
    "checkpoints.keep": ("3",),
    "metrics.host": ('"a b"', '"a..b"'),
}
"""Key → wrong values of the right type, or such as have gone wrong before."""


def dotted(model: type[Section]) -> set[str]:
    return {f"{section}.{key}" for section, keys in keys_of(model).items() for key in keys}


@pytest.mark.parametrize(
    ("file", "key"),
    [("run", key) for key in sorted(dotted(RunFile))]
    + [("peer", key) for key in sorted(dotted(PeerFile))],
)
def test_bad_values_of_a_key(
    file: str, key: str, folder: Path, refused: Callable[..., str]
) -> None:
    good = GOOD_RUN if file == "run" else ""
    named = ["start", "bad.toml"] if file == "run" else ["start", "run.toml", "--peer", "bad.toml"]
    for value in (TABLE, *ODD.get(key, ())):
        (folder / "bad.toml").write_text(with_key(good, key, value))
        error = refused(named, ExitCode.CONFIG)
        assert error.startswith(f"error: bad.toml: {key}"), (value[:99], error)
