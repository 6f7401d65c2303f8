"""Attack by a web page: its name leads to this machine after a while (DNS rebinding).

The browser then lets the page read what a server on loopback answers. The Host header still has the
name of the page's site.
"""

from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from atom.daemon.owner.metrics import Metrics
from atom.swarm.dial_rules import answers_to

SOON = 20.0


@pytest.fixture
def port() -> Iterator[int]:
    server = Metrics().serve("127.0.0.1", 0)
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("named", "status"),
    [("evil.example", 421), ("127.0.0.1.evil.example:9", 421), ("localhost", 200)],
)
def test_metrics_are_read_by_no_page_of_another_site(port: int, named: str, status: int) -> None:
    asking = HTTPConnection("127.0.0.1", port, timeout=SOON)
    asking.request("GET", "/metrics", headers={"Host": named})
    answer = asking.getresponse()
    assert (answer.status, b"atom_" in answer.read()) == (status, status == 200)
    asking.close()


@pytest.mark.parametrize(
    ("host", "named", "answers"),
    [
        ("127.0.0.1", "127.0.0.1:80", True),
        ("127.0.0.1", "[::1]:80", True),
        ("127.0.0.1", "[::1]", True),
        ("127.0.0.5", "127.0.0.5", True),
        ("127.0.0.1", "127.0.0.5", False),
        ("localhost", "localhost:80", True),
        ("localhost", "site.example:80", False),
        ("::1", "", False),
        ("192.0.2.1", "site.example", True),
    ],
)
def test_a_server_on_loopback_answers_to_its_own_names(
    host: str, named: str, answers: bool
) -> None:
    """What other machines may open is asked for under names that it cannot know."""
    assert answers_to(host, named) is answers
