"""The real server over real HTTP, with a swarm that is made up."""

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from email.message import Message

import pytest
from seen_samples import a_ledger, a_peer, a_view, no_ledger

from atom.base.errors import AtomError, PortInUseError, UserError
from atom.extras.dashboard import server
from atom.extras.dashboard.feed import Seen, SwarmFeed
from atom.extras.dashboard.server import LOOPBACK, serve
from atom.swarm.addresses import ListenAddress
from atom.swarm.records.view import SwarmView

SOON_S = 20.0


class FakeSwarm:
    """Gives the views in turn, then the last one for ever; `None` is a DHT that is silent."""

    note = "checking the chain: 2 of 9 rounds"
    ledger = no_ledger()

    def __init__(self, *views: SwarmView | None) -> None:
        self.views = list(views)
        self.looked = asyncio.Event()

    async def view(self) -> SwarmView:
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if len(self.views) == 1:
            self.looked.set()
        if view is None:
            raise AtomError("no answer <here>")
        return view

    async def read(self) -> None: ...


class Answer:
    def __init__(self, status: int, headers: Message, body: bytes) -> None:
        self.status, self.headers, self.text = status, headers, body.decode()


def get(url: str, host: str | None = None, method: str = "GET") -> Answer:
    request = urllib.request.Request(url, method=method)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=SOON_S) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.headers, refusal.read())


def served(
    visit: Callable[[str], None],
    feed: SwarmFeed,
    swarm: FakeSwarm | None = None,
    where: ListenAddress = ListenAddress(LOOPBACK, 0),  # noqa: B008 - frozen
) -> None:
    """Runs `visit` against the feed's page; with `swarm`, once all its views were seen."""

    async def run() -> None:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(feed, where, url.set_result, every_s=0.001))
        try:
            if swarm is not None:
                await asyncio.wait_for(swarm.looked.wait(), SOON_S)
                await feed.look()
            await asyncio.to_thread(visit, await asyncio.wait_for(url, SOON_S))
        finally:
            server.cancel()
            with pytest.raises(asyncio.CancelledError):
                await server

    asyncio.run(run())


def test_an_open_page_asks_for_what_is_new_under_the_policy_and_its_own_name() -> None:
    def visit(url: str) -> None:
        assert ">7<" in get(url + "content").text
        for path, kind in [("", "text/html"), ("content", "text/html"),
                           ("style.css", "text/css"), ("script.js", "text/javascript"),
                           ("icon.svg", "image/svg+xml"),
                           ("nothing", "text/plain")]:  # fmt: skip
            answer = get(url + path)
            assert answer.status == (404 if path == "nothing" else 200)
            assert answer.headers.get_content_type() == kind
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
        for host, status in (("evil.example:8700", 421), ("localhost:8700", 200), ("[::1]", 200)):
            assert get(url, host=host).status == status
        assert get(url, method="POST").status == 405

    swarm = FakeSwarm(a_view())
    served(visit, SwarmFeed(swarm, a_view(round=6), 2000), swarm)


def test_a_server_for_others_answers_to_any_name() -> None:
    def visit(url: str) -> None:
        at = url.replace("0.0.0.0", "127.0.0.1")
        assert get(at, host="our.example").status == 200

    served(visit, SwarmFeed(FakeSwarm(a_view()), a_view()), where=ListenAddress("0.0.0.0", 0))


def test_contributions_and_losses_come_from_the_chain() -> None:
    swarm = FakeSwarm(a_view(round=2**62, loss=-1e5))  # as some lease claims
    swarm.ledger = a_ledger()
    feed = SwarmFeed(swarm, a_view(round=4, loss=1.25), 9)
    assert feed.seen.ledger == a_ledger()

    def visit(url: str) -> None:
        shown = get(url + "content").text
        assert shown.count(FakeSwarm.note) == 1
        assert "66.7%" in shown

    served(visit, feed, swarm)


def test_a_silent_dht_leaves_the_last_view_and_is_said() -> None:
    swarm = FakeSwarm(a_view(round=9), None)

    def visit(url: str) -> None:
        page = get(url).text
        assert "the DHT does not answer, trying again (no answer &lt;here&gt;)" in page
        assert ">9<" in page

    served(visit, SwarmFeed(swarm, a_view()), swarm)


def test_a_swarm_that_is_no_longer_found_stays_on_the_page() -> None:
    last = a_view(a_peer(), a_peer(peer_id="12D3KooWother"), round=9)
    since = f"{datetime.fromtimestamp(last.unix_time):%H:%M:%S}"
    nobody = replace(last, peers=(), round=0, unix_time=last.unix_time + 60)
    swarm = FakeSwarm(last, nobody)

    def visit(url: str) -> None:
        page = get(url).text
        assert f"no peer has been found since {since}: this is the last known state" in page
        assert ">9<" in page
        assert '<p class="number ">2</p>' in page, "peers of the last known state"

    def nobody_yet(url: str) -> None:
        assert "none alive" in (page := get(url).text)
        assert "all up to date" not in page

    served(visit, SwarmFeed(swarm, a_view()), swarm)
    served(nobody_yet, SwarmFeed(FakeSwarm(nobody), nobody))


def test_a_port_in_use_and_a_strange_host_are_the_users_to_mend() -> None:
    def visit(url: str) -> None:
        port = int(url.rstrip("/").rpartition(":")[2])
        feed = SwarmFeed(FakeSwarm(a_view()), a_view())
        with pytest.raises(PortInUseError, match=str(port)):
            asyncio.run(serve(feed, ListenAddress(LOOPBACK, port), str.encode))
        with pytest.raises(UserError, match=r"192\.0\.2\.1"):
            asyncio.run(serve(feed, ListenAddress("192.0.2.1", 0), str.encode))

    served(visit, SwarmFeed(FakeSwarm(a_view()), a_view()))


def test_a_connection_that_asks_for_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SILENCE_S", 0.05)

    def visit(url: str) -> None:
        place = ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        for said in (b"", b"GET / HTTP/1.1\r\n"):
            with socket.create_connection(place, SOON_S) as silent:
                silent.sendall(said)
                assert silent.recv(1) == b""

    served(visit, SwarmFeed(FakeSwarm(a_view()), a_view()))


@pytest.mark.parametrize("said", [b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 9000])
def test_what_is_no_request_is_nothing_to_tell_of(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def visit(url: str) -> None:
        place = ("127.0.0.1", int(url.rstrip("/").rpartition(":")[2]))
        for _ in range(2):
            with socket.create_connection(place, SOON_S) as stranger:
                stranger.sendall(said)
                assert stranger.recv(12) == b"HTTP/1.0 400"

    served(visit, SwarmFeed(FakeSwarm(a_view()), a_view()))
    assert caplog.records == []


def test_a_fault_of_ours_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(SwarmFeed):
        @property
        def seen(self) -> Seen:
            raise RuntimeError("a fault")

    def visit(url: str) -> None:
        assert get(url).status == 500

    served(visit, Faulty(FakeSwarm(a_view()), a_view()))
    assert "a fault" in caplog.text
