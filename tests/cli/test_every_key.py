"""Every key of both files has bad values here, and each is refused by name with what to do.

The keys come from the files' own sections: a key without bad values fails.
"""

from pathlib import Path

import pytest

from atom.cli.app import main
from atom.cli.shell.failures import ExitCode
from atom.config.load import keys_of
from atom.config.peer_file import PeerFile
from atom.config.run_file import RunFile
from atom.config.section import Section
from tests.cli.good_run import GOOD_RUN
from tests.toml_text import with_key

HUGE = "9" * 400
LONG = "x" * 5000
TABLE = "{ a = 1 }"
WORDS = ('"a\\u0000"', '"a\\u001b[2J"', '"\\u009b2J"')
PATH = ("3", '""', *WORDS)
SIZE = ("8", '"8 Gb"', '"-3 GiB"', f'"{HUGE} GiB"', '"lots"')
RATE = ("400", '"3 MB/s"', '"inf bit/s"', '"0 bit/s"')
PORT = ("65536", "-1", '"80"')
DIGEST = ("3", '"abc"')
CHOICE = ('"nonsense"', '""', "3")
SWITCH = ('"yes"',)


def count(most: int, least: int = 1) -> tuple[str, ...]:
    return ('"3"', "1.5", "true", str(least - 1), str(most + 1), HUGE)


def number(too_low: str, too_high: str) -> tuple[str, ...]:
    return ('"3"', "nan", "inf", too_low, too_high)


BAD_OF_A_RUN: dict[str, tuple[str, ...]] = {
    "run.name": ("3", '"Tiny Run"', '""', '"-x"', f'"{"x" * 64}"'),
    "run.rounds": count(2**31),
    "run.seed": ("-1", str(2**63), "1.0"),
    "model.family": CHOICE,
    "model.huggingface": (*PATH, '"config.json"'),
    "model.huggingface_config": ("3", f'"{LONG * 7}"', '"{}"'),
    "model.revision": (*DIGEST, f'"{"a" * 40}"'),
    "model.module": ("3", '"no colon"', '"a:b"'),
    "model.module_sha256": DIGEST,
    "model.weights": (*CHOICE, '"hub"'),
    "model.size": CHOICE,
    "model.layers": count(4096),
    "model.heads": count(4096),
    "model.model_dim": count(2**20),
    "model.sequence_tokens": count(2**20),
    "model.vocabulary_size": (*count(2**24), "255"),
    "model.dropout": number("-0.1", "1.0"),
    "model.precision": CHOICE,
    "data.source": CHOICE,
    "data.paths": ('"a.txt"', "[3]", '["a.txt"]', '[""]'),
    "data.path": (*PATH, '"a/b"'),
    "data.name": (*PATH, '"x"'),
    "data.split": ("3", '"a b"', '"train"'),
    "data.revision": (*DIGEST, f'"{"a" * 40}"'),
    "data.sources": ("3", '"a"', '{ "a b" = { source = "python-stdlib" } }'),
    "data.attention": (*CHOICE, '"documents"'),
    "data.end_token": (*count(2**31 - 1, 0), "5"),
    "data.tokenizer": PATH,
    "data.tokenizer_sha256": DIGEST,
    "data.validation_fraction": (*number("-0.1", "1.0"), "0"),
    "data.max_bytes": (*SIZE, '"0 B"'),
    "data.text_field": (*PATH, '"text"'),
    "data.sources.NAME.source": (*CHOICE, '"module"'),
    "data.sources.NAME.paths": ('"a.txt"', "[3]", '[""]'),
    "data.sources.NAME.path": PATH,
    "data.sources.NAME.name": PATH,
    "data.sources.NAME.split": ("3", '"a b"'),
    "data.sources.NAME.revision": DIGEST,
    "data.sources.NAME.max_bytes": (*SIZE, '"0 B"'),
    "data.sources.NAME.text_field": PATH,
    "data.sources.NAME.weight": count(1000, 0),
    "data.sources.NAME.train_on": CHOICE,
    "data.sources.NAME.answer_share": number("0", "1.1"),
    "data.train_on": (*CHOICE, '"answers"'),
    "data.answer_share": (*number("0", "1.1"), "0.5"),
    "data.share": CHOICE,
    "train.what": CHOICE,
    "train.rank": count(4096),
    "train.alpha": number("0", "1e7"),
    "train.dropout": number("-0.1", "1.0"),
    "train.targets": ('"q_proj"', "[3]", '[""]'),
    "batch.global_sequences": count(2**24),
    "batch.micro_batch_sequences": (*count(2**16), "5"),
    "update.rule": CHOICE,
    "update.inner_sequences": (*count(2**24), "4"),
    "update.outer_rate": (*number("0", "10.5"), "0.7"),
    "update.outer_momentum": (*number("-0.1", "1"), "0.9"),
    "optimizer.name": (*CHOICE, '"muon"'),
    "optimizer.learning_rate": number("0", "1e4"),
    "optimizer.final_learning_rate": (*number("-1", "1e4"), "0.1", "1e-4"),
    "optimizer.betas": ("[0.9]", "0.9", "[0.9, 1.0]"),
    "optimizer.epsilon": number("0", "2"),
    "optimizer.weight_decay": number("-1", "1e4"),
    "optimizer.warmup_rounds": (*count(2**31, 0), "4"),
    "optimizer.decay": CHOICE,
    "optimizer.decay_rounds": (*count(2**31), "1"),
    "optimizer.clip_norm": number("-1", "1e7"),
    "optimizer.state": (*CHOICE, '"half"'),
    "optimizer.gradients": (*CHOICE, '"bfloat16"'),
    "validation.every_rounds": count(2**31),
    "validation.batches": count(2**20),
    "swarm.grace_seconds": number("0.5", "86401"),
    "swarm.codec": CHOICE,
    "swarm.survivors": CHOICE,
    "swarm.members": ('["ann"]', "[]", '"ann"', "[3]"),
    "swarm.trusted": ('["ann"]', '"ann"', "[3]"),
    "snapshot.every_rounds": count(2**31),
}
BAD_OF_A_PEER: dict[str, tuple[str, ...]] = {
    "device.use": ("3", '"gpu"', '"cuda:x"', "[]", "[3]", '["cuda", "cuda:0"]', '["cpu", "cuda"]',
                   '["cpu", "auto"]', str(["cpu"] * 17)),
    "device.memory": (*SIZE, '"0 B"'),
    "device.cpu_threads": count(1024),
    "device.deterministic": SWITCH,
    "host.memory": (*SIZE, '"0 B"'),
    "network.listen": ("3", '"here"', '"0.0.0.0:99999"', '"::1:80"', f'"{LONG}:80"'),
    "network.data_port": PORT,
    "network.announce": ('["a b"]', str(["a"] * 9), '"a"', '["a..b"]', '["a:0x1"]'),
    "network.upload": RATE,
    "network.download": RATE,
    "network.per_month": (*SIZE, '"0 B"', '"500 GB a month"'),
    "network.name": ("3", '""', '"a b"', '"-a"', f'"{"x" * 25}"', '"é"', *WORDS),
    "network.reachable": ("3", '"maybe"', "true"),
    "network.lan": SWITCH,
    "schedule.hours": ('["noon"]', "[3]", '"mon 1:00-2:00"', '["mon 25:00-26:00"]',
                       '["xyz 1:00-2:00"]'),
    "schedule.idle_for": ("10", '"10 parsecs"', '"-3 s"', '"0 s"'),
    "schedule.pause_on_battery": SWITCH,
    "state.directory": PATH,
    "state.snapshots": count(64),
    "checkpoints.every_rounds": count(2**31),
    "checkpoints.keep": (*count(1000), "3"),
    "checkpoints.best": SWITCH,
    "data.paths": ('"a.txt"', '[""]'),
    "data.path": PATH,
    "data.sources": ("3", '"a"', '{ "a b" = { path = "x" } }'),
    "data.sources.NAME.paths": ('"a.txt"', '[""]'),
    "data.sources.NAME.path": PATH,
    "data.tokenizer": PATH,
    "sample.prompts": ('"A"', "[3]", '[""]', f'["{"x" * 101}"]', '["a\\u001b[2J"]'),
    "sample.every_rounds": count(2**31),
    "metrics.port": PORT,
    "metrics.host": ("3", '"a b"', '""', '"a..b"'),
}  # fmt: skip


def dotted(model: type[Section]) -> set[str]:
    return {f"{section}.{key}" for section, keys in keys_of(model).items() for key in keys}


def test_every_key_has_bad_values() -> None:
    assert set(BAD_OF_A_RUN) == dotted(RunFile)
    assert set(BAD_OF_A_PEER) == dotted(PeerFile)


@pytest.mark.parametrize(
    ("file", "key"),
    [("run", key) for key in BAD_OF_A_RUN] + [("peer", key) for key in BAD_OF_A_PEER],
)
def test_bad_values_of_a_key(
    file: str, key: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (GOOD_RUN, BAD_OF_A_RUN) if file == "run" else ("", BAD_OF_A_PEER)
    named = ["start", "bad.toml"] if file == "run" else ["start", "run.toml", "--peer", "bad.toml"]
    for value in (*bad[key], TABLE):
        (folder / "bad.toml").write_text(with_key(good, key, value))
        before = sorted(folder.rglob("*"))

        code = main(named)

        streams = capsys.readouterr()
        error, _, hint = streams.err.partition("hint:  ")
        assert code == ExitCode.CONFIG, (value[:99], streams.err)
        assert error.startswith(f"error: bad.toml: {key}"), error
        assert len(hint) > 8, error
        assert streams.out == ""
        assert max(map(len, streams.err.splitlines())) < 600, "a long value is cut"
        assert "\x1b" not in streams.err
        assert sorted(folder.rglob("*")) == before
