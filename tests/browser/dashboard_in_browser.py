"""The page in a real browser: wide and narrow, light and dark, live, and quiet towards others.

Run by `make browser`; $ATOM_PICTURES names a folder for the pictures.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import pytest
from chromium import Page, browser, keep
from shown_swarm import ShownSwarm

from atom.extras.dashboard.feed import SwarmFeed
from atom.extras.dashboard.server import LOOPBACK, serve
from atom.swarm.addresses import ListenAddress

pytestmark = pytest.mark.timeout(180)
PHONE, SCREEN = 360, 1280
OUTSIDE = """[...document.querySelectorAll('main *')].filter(
    each => each.getBoundingClientRect().right > innerWidth + 1).length"""


def shown(visit: Callable[[Page, str, ShownSwarm], Awaitable[None]]) -> None:
    """Serves a swarm, and lets a browser visit it."""

    async def run() -> None:
        seen = ShownSwarm()
        async with browser() as page, served(seen) as url:
            await visit(page, url, seen)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def served(swarm: ShownSwarm, port: int = 0) -> AsyncIterator[str]:
    """The page's URL, until the dashboard ends with the block."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    feed = SwarmFeed(swarm, swarm.seen, 2000)
    where = ListenAddress(LOOPBACK, port)
    server = asyncio.create_task(serve(feed, where, url.set_result, every_s=0.05))
    try:
        yield await url
    finally:
        server.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, SCREEN])
def test_it_fits_and_asks_nobody_else(width: int, dark: bool) -> None:
    async def visit(page: Page, url: str, swarm: ShownSwarm) -> None:
        await page.open(url, width, dark)
        await page.until("document.querySelectorAll('#shares tbody tr').length === 3")
        keep(await page.picture(), f"dashboard-{width}-{'dark' if dark else 'light'}.png")
        assert await page.value("document.documentElement.scrollWidth") == width
        assert await page.value(OUTSIDE) == 0
        ground = await page.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark
        assert all(asked.startswith(url) for asked in page.requested)
        assert page.complaints == []

    shown(visit)


def test_it_lives_without_being_loaded_again() -> None:
    async def visit(page: Page, url: str, swarm: ShownSwarm) -> None:
        await page.open(url, SCREEN, dark=False)
        before = await page.value("document.querySelector('.number').textContent")
        await page.value("window.sameDocument = true")
        swarm.commit()
        await page.until(f"document.querySelector('.number').textContent !== '{before}'")
        await page.until("document.querySelector('#rounds tbody td').textContent === '8'")
        assert await page.value("window.sameDocument")

    shown(visit)


def test_it_says_that_it_connects_again_and_only_later_that_the_dashboard_has_ended() -> None:
    def status(words: str) -> str:
        return f"document.querySelector('.status').textContent.includes('{words}')"

    async def run() -> None:
        swarm = ShownSwarm()
        async with browser() as page:
            async with served(swarm) as url:
                await page.open(url, SCREEN, dark=False)
                await page.until(status("live"))
            await page.until(status("connecting again"))
            async with served(swarm, urlsplit(url).port or 0):
                await page.until(status("live"))
            await page.until(status("connecting again"))
            await page.value("performance.now = () => Infinity")
            await page.until(status("has stopped"))

    asyncio.run(run())
