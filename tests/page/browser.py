"""Driving the page in headless Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

PICTURE = ':is(img, image)'  # the prediction is an SVG with an image in it
NAMES = ('chromium', 'chromium-browser', 'google-chrome')


def find_chromium() -> str | None:
    """Path of the Chromium of this machine, if it has one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Context with this machine's Chromium."""
    with sync_playwright() as playwright:
        # Chromium refuses to start as root with its sandbox.
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=['--no-sandbox'])
        yield browser
        browser.close()


def visit(page: Page, url: str) -> None:
    """Open the page, and wait until it can be used."""
    page.goto(url)
    page.wait_for_selector('#upload input[type=file]', state='attached')


def upload(page: Page, path: Path) -> None:
    page.set_input_files('#upload input[type=file]', path)


def choose(page: Page, dropdown: str, option: str) -> None:
    page.click(f'#{dropdown} input')
    page.get_by_role('option', name=option, exact=True).click()


def click(page: Page, picture: str, row: float, column: float) -> None:
    """Click into a picture, at fractions of its height and width."""
    frame, box = page.locator(f'#{picture} :is(img, svg:has(image))'), place(page, picture)
    start = frame.bounding_box()
    left, top = (box[side] - start[side] for side in 'xy')
    # Waits until nothing covers the picture, as Gradio does while the next one is made.
    frame.click(position=dict(x=left + column * box['width'], y=top + row * box['height']))


def place(page: Page, picture: str) -> dict[str, float]:
    """Where a picture is on the page: x, y, width, height."""
    return page.locator(f'#{picture} {PICTURE}').bounding_box()


def source(page: Page, picture: str) -> str:
    """Address of a picture, of which there is another one for each content; waits until it is there."""
    element = page.wait_for_selector(f'#{picture} {PICTURE}')
    return element.get_attribute('src') or element.get_attribute('href')


def wait_for_change(page: Page, picture: str, before: str) -> str:
    """Wait until the address of a picture is another one, and return it."""
    page.wait_for_function(
        """([picture, before]) => {
            const element = document.querySelector(picture);
            return element && (element.getAttribute('src') ?? element.getAttribute('href')) !== before;
        }""",
        arg=[f'#{picture} {PICTURE}', before],
    )
    return source(page, picture)
