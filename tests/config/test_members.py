"""The list of those who may take part, as the run file has it."""

import json
from pathlib import Path

import pytest

from atom.base.errors import ConfigError
from atom.config.load import normalised_run_text, parse_run_text, run_from_text
from atom.config.run_file import MAX_MEMBERS, RunFile
from atom.swarm.identity import Identity, is_peer_id
from atom.swarm.records.manifest import (
    MAX_RECORD_BYTES,
    Manifest,
    PackageVersion,
    decode_manifest,
    encode_manifest,
)

EXAMPLE = (Path(__file__).parents[2] / "peers" / "shakespeare.toml").read_text()
ANN = "12D3KooWBwaS4KPHPLeWagK24PzzeKpe9kHWYbP8TsAHWWMyti3G"
BOB = "12D3KooWSn9UNA9g6Ygp9o1pCoJAxHtpT3v457ZbZ9jpcAXPqjoa"
SLIP = ANN[:-1]
OF_ANOTHER_KIND = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
TOO_MANY = [Identity.create().peer_id for _ in range(MAX_MEMBERS + 1)]


def parsed(members: object) -> RunFile:
    text = EXAMPLE.replace("[swarm]", "") + f"\n[swarm]\nmembers = {json.dumps(members)}\n"
    return parse_run_text(text, "r.toml")


def test_a_run_is_open_unless_it_lists_its_members() -> None:
    run = parse_run_text(EXAMPLE)
    assert run.swarm.members is None
    assert "members" not in normalised_run_text(run), "runs founded before have the same text"
    listed = parsed([ANN, BOB])
    assert listed.swarm.members == (ANN, BOB)
    assert run_from_text(normalised_run_text(listed)) == listed


@pytest.mark.parametrize(
    ("members", "place", "hint"),
    [
        ([], "swarm.members: an empty list", "open run"),
        ([ANN, BOB, ANN], f"swarm.members: {ANN} is listed more than once", "once"),
        ([ANN, "ann"], 'swarm.members[1]: cannot be "ann"', "members: Peer ids"),
        ([ANN + " "], "swarm.members[0]: ", ""),
        (["0" * 52], "swarm.members[0]: ", ""),
        (TOO_MANY, f"members: Tuple should have at most {MAX_MEMBERS} items", ""),
    ],
)
def test_mistakes_in_the_list_are_named(members: object, place: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(members)
    assert place in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", [ANN, SLIP, ANN + "x", ANN + "\n", OF_ANOTHER_KIND, "1" * 52, ""])
def test_the_run_file_and_the_swarm_agree_on_what_a_peer_id_is(text: str) -> None:
    try:
        parsed([text])
    except ConfigError:
        assert not is_peer_id(text)
    else:
        assert is_peer_id(text)


def test_the_longest_list_fits_into_a_signed_record() -> None:
    owner = Identity.create()
    text = normalised_run_text(parsed(TOO_MANY[:MAX_MEMBERS]).pinned(256, "a" * 64))
    manifest = Manifest(
        run="shakespeare",
        owner=owner.peer_id,
        run_file=text,
        graph_hash="ab" * 32,
        versions=(
            PackageVersion("torch", "2.13.0"),
            PackageVersion("atom-swarm", "0.2.0"),
            PackageVersion("transformers", "4.57.0"),
        ),
        data_digest="ef" * 32,
        initial_state_digest=b"s" * 32,
        founder_incarnation=bytes(16),
    )
    record = encode_manifest(manifest, owner)
    assert len(record) <= MAX_RECORD_BYTES
    assert decode_manifest(record, "shakespeare") == manifest
