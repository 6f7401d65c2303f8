"""HTML of a view: complete, well-formed, and without markup from strangers."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from seen_samples import a_ledger, a_peer, a_view, no_ledger, seen

from atom.config.model_and_data import Data
from atom.extras.dashboard.feed import Seen
from atom.extras.dashboard.page import MAX_ROWS, agreement, content, page
from atom.swarm.chain.commit_chain import Ledger
from atom.swarm.records.lease import PeerState, RoundUse, SampleText, Validation
from atom.swarm.records.view import SwarmView, validation_json

HOSTILE = "<script>alert(1)</script>\"' onmouseover=x &lt;"
MIXED = Data.model_validate_json(
    '{"sources": {"b": {"paths": ["b"]}, "a": {"paths": ["a"]}}, "tokenizer": "t.json", '
    '"validation_fraction": 0.1}'
)
_WITHOUT_END = {"meta", "link", "br"}


class Document(HTMLParser):
    """Text and elements of a page; fails on tags that do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += filter(None, [data.strip()])

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def after(self, title: str) -> list[str]:
        return self.texts[self.texts.index(title) + 1 :]


def test_everything_that_status_says_is_on_the_page() -> None:
    behind = a_peer(peer_id="12D3KooWother", state=PeerState.SYNCING, round=6, state_digest=b"")
    known = a_view(
        a_peer(name="kitchen"),
        behind,
        validation=validation_json(Validation(6, 2.75, (2.5, 3.0)), MIXED),
        round_s=36.0,
        me=a_peer().peer_id,
        accumulated=13,
    )
    text = Document(page(seen(known, rounds=2000))).text
    for word in ("shakespeare", "of 2,000, 20 h to go", "80", "accumulating", "syncing", "abababab",
                 "0.4 s", "1 behind", "…Wother", "kitchen …oWpeer (you)", "2.7500", "after round 6",
                 "validation: a", "perplexity 12.18", "13 of 12, due"):  # fmt: skip
        assert word in text, word
    text = Document(page(seen(a_view(), rounds=2000))).text
    for word in ("validation: ", "to go", "(you)", "due"):
        assert word not in text, word


def test_a_strangers_text_is_text() -> None:
    view = a_view(a_peer(peer_id=HOSTILE), run=HOSTILE, sample=SampleText(3, HOSTILE))
    whole = replace(seen(view, problem=HOSTILE), ledger=a_ledger(), ledger_note=HOSTILE)
    document = Document(page(whole))
    scripts = [attributes for tag, attributes in document.tags if tag == "script"]
    assert scripts == [{"src": "script.js", "defer": None}]
    for _, attributes in document.tags:
        assert not any(name.startswith("on") for name in attributes)
    assert HOSTILE in [attributes.get("title") for _, attributes in document.tags]
    assert document.texts.count(HOSTILE) == 4, "heading, problem, text, note"
    assert 'id="sample" hidden' in content(seen(a_view()))


def test_what_the_last_round_took_of_a_peer_and_what_it_computed_for_nothing() -> None:
    trouble = {"void_passes": 12, "void_cause": "loss-not-finite"}
    used, unknown = (
        Document(content(seen(a_view(a_peer(last_round=use, **trouble))))).texts
        for use in (RoundUse(10.0, 0.75, 3 << 29, 5 << 29), None)
    )
    assert {"75%", "1.6 GB", "2.7 GB", "void passes: 12, loss-not-finite"} <= set(used)
    assert unknown.count("-") == used.count("-") + 3


def test_rounds_say_what_happened() -> None:
    document = Document(content(seen(a_view())))
    assert document.after("outcome")[:15] == [
        "3", "2.0000", "10", "2", "a quorum decided",
        "2", "2.5000", "10", "1", "branch of 1 without a quorum, 2 voters absent",
        "1", "3.0000", "10", "1", "a quorum decided",
    ]  # fmt: skip


def test_contributions_are_listed_by_share() -> None:
    document = Document(content(seen(a_view(me="12D3KooWann"))))
    ann, bob = ["…ooWann (you)", "20", "66.7%", "3", "3"], ["…ooWbob", "10", "33.3%", "1", "3"]
    assert document.after("last round") == [*ann, *bob]
    shares = [a["value"] for tag, a in document.tags if tag == "progress" and a["max"] == "1"]
    assert shares == ["0.6667", "0.3333"]


def test_who_may_not_read_the_chain_is_told_and_sees_how_old_the_rows_are() -> None:
    shut_out = "this peer answers only peers on the owner's list"
    refused = replace(seen(a_view(a_peer(), round=9)), ledger_note=shut_out)
    nothing = Document(content(replace(refused, ledger=Ledger(a_ledger().head)))).text
    assert nothing.count(shut_out) == 2, "of the curve, and of the rounds"
    assert "unknown without the chain: see rounds" in nothing
    stale = Document(content(replace(refused, ledger=a_ledger()))).text
    assert stale.count(shut_out) == 1
    assert stale.count("read up to round 3; the run is at round 9") == 2


def test_nothing_is_fetched_from_elsewhere() -> None:
    for _, attributes in Document(page(seen(a_view()))).tags:
        for name in ("src", "href"):
            assert ":" not in (attributes.get(name) or "")
            assert "//" not in (attributes.get(name) or "")
        assert "style" not in attributes, "the policy forbids inline styles"


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (a_view(a_peer(), a_peer(peer_id="b")), "identical"),
        (a_view(a_peer(), a_peer(peer_id="b", state_digest=b"e" * 32)), "different"),
        (a_view(a_peer(), a_peer(peer_id="b", state_digest=b"e" * 32, round=6)), "identical"),
        (
            a_view(a_peer(), a_peer(peer_id="b", state_digest=b"e" * 32, state=PeerState.LEFT)),
            "identical",
        ),
        (a_view(a_peer(state_digest=b"")), "unknown"),
    ],
)
def test_replicas_are_compared_at_one_round(view: SwarmView, verdict: str) -> None:
    assert agreement(view) == verdict
    assert verdict in Document(content(seen(view))).texts


def test_what_is_not_known_is_said() -> None:
    view = a_view(global_batch=None, loss=None, peers=())
    text = Document(page(Seen(view, None, no_ledger()))).text
    assert "the global batch is not known" in text
    assert "no peer of this run is alive" in text
    assert "the curve begins with the second round" in text


def test_a_crowd_is_cut_and_counted() -> None:
    peers = tuple(a_peer(peer_id=f"peer{number}") for number in range(MAX_ROWS + 1234))
    document = Document(content(seen(a_view(*peers))))
    rows = len(a_ledger().rounds) + len(a_ledger().shares)
    assert sum(tag == "tr" for tag, _ in document.tags) == MAX_ROWS + rows + 3
    assert "and 1,234 more" in document.texts


def test_old_leases_and_late_peers_are_marked() -> None:
    view = a_view(
        a_peer(issued_at=a_peer().issued_at - 6.1),
        a_peer(round=5),
        a_peer(state=PeerState.LEFT, round=1),
    )
    marked = content(seen(view))
    assert '<span class="warn">6.5 s</span>' in marked
    assert '<span class="warn">5</span>' in marked
    assert '<span class="warn">1</span>' not in marked
    assert '<tr class="gone">' in marked
