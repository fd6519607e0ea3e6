"""Reports in a real browser: ``nox -s pages``.

A browser is found by ``RESILIENT_BROWSER`` or on the path; without one this fails.
"""

import os
import shutil
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright
from support.reported import killed_and_resumed, write_events

from resilient.cli.main import main
from resilient.display import duration
from resilient.report.facts import read_facts

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
START = 1_700_000_000
HOSTILE = "</script><script>document.title = 'taken'</script><img src=//x.y onerror=1>"


@pytest.fixture(scope="module")
def browser():
    named = os.environ.get("RESILIENT_BROWSER")
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(
            f"There is no browser: none of {', '.join(NAMES)} is on the path. Install "
            "one (Debian: apt-get install chromium), or set RESILIENT_BROWSER to one."
        )
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run, one that is hostile, one that is huge: the files by name."""
    top = tmp_path_factory.mktemp("pages")
    killed_and_resumed(top / "runs" / "a", START)
    odd = {"step": 3, "logs": {HOSTILE: 1.0, "loss": "nan", "huge": 1e308}}
    ends = {"error": HOSTILE, "message": HOSTILE, "step": 2**53}
    lines = [
        ("a", 0, "started", {"host": HOSTILE}),
        ("a", 1, "metrics", odd),
        ("a", 2, "metrics", odd | {"step": 2**53}),
        ("a", 3, "failed", ends),
    ]
    write_events(top / "odd<b>", START, lines)
    write_events(top / "huge", START, list(huge()))
    found = {"one": "runs/a", "odd": "odd<b>", "huge": "huge"}
    for name, directory in found.items():
        file = top / f"{name}.html"
        assert main(["report", str(top / directory), "--html", str(file)]) == 0
        found[name] = file
    return found | {"top": top}


def huge(attempts=120, saves=400):
    """Attempts that are each killed, with many saves."""
    for number in range(attempts):
        name, begin = f"a{number}", number * 1000.0
        first = number * saves
        yield name, begin, "started", {}
        yield name, begin + 1, "restored", {"step": first, "seconds": 1}
        yield name, begin + 2, "training", {"step": first}
        for save in range(saves):
            now, step = begin + 3 + save, first + save + 1
            logs = {"loss": 1 / step}
            yield name, now, "metrics", {"step": step, "batch": 1, "logs": logs}
            cost = {"seconds": 0.5, "stall": 0.1, "nbytes": 10**9}
            yield name, now, "saved", {"step": step, **cost}


@contextmanager
def opened(browser, file, width=1200, scheme="light"):
    """The page; nothing may go wrong, or be asked for."""
    size = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    yield page
    assert said == []
    assert asked == [file.as_uri()]
    page.close()


def table(page, name):
    rows = page.locator(f"#{name} tbody tr")
    return [
        rows.nth(i).locator("th, td").all_inner_texts() for i in range(rows.count())
    ]


@pytest.mark.parametrize("name", ["one", "odd", "huge"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_and_is_drawn_whole(browser, pages, name, width):
    with opened(browser, pages[name], width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.title().endswith(": training report")
        for box in page.locator(".chart .area").all():
            drawn = box.bounding_box()
            assert width / 2 < drawn["width"] <= width
            assert drawn["height"] > 20
        assert page.locator("rect, circle, line").count() < 20_000


def test_the_numbers_are_those_of_the_events(browser, pages):
    facts = read_facts(pages["top"] / "runs" / "a")
    goodput = facts.goodput
    with opened(browser, pages["one"]) as page:
        parts = {row[0]: row[1] for row in table(page, "parts")}
        assert parts == {part: duration(x) for part, x in goodput.parts.items()}
        tiles = page.locator(".tiles dd").all_inner_texts()
        assert tiles[:2] == [f"{goodput.share:.1%}", f"of {duration(goodput.whole)}"]
        assert [row[3:6] for row in table(page, "attempts")] == [
            ["0", "", "70"],
            ["40", "30", "6,000"],
        ]
        reasons = [row[4] for row in table(page, "faults")]
        assert reasons == [fault.why for fault in facts.faults]
        tips = page.locator("circle title").all_text_contents()
        assert "loss: 0.25 at step 6,000" in tips
        ended = page.locator(".cross title").all_text_contents()
        assert "attempt 1: killed or lost at step 70" in ended
        bars = page.locator("rect title").all_text_contents()
        assert "attempt 1: lost, 31.0 s" in bars
        assert "productive: 1:05:28 (98.2%)" in bars


def test_what_is_hostile_is_text(browser, pages):
    with opened(browser, pages["odd"]) as page:
        assert HOSTILE in page.locator("#faults").inner_text()
        assert page.locator("img").count() == 0
        assert "4 numbers are not finite" in page.locator("main").inner_text()


def test_a_long_run_is_drawn_whole(browser, pages):
    with opened(browser, pages["huge"]) as page:
        assert page.locator("#faults tbody tr").count() == 119
        captions = page.locator("figcaption").all_inner_texts()
        assert "loss at each step" in captions


def test_dark_and_light_differ_and_print_is_light(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    line = "getComputedStyle(document.querySelector('polyline')).stroke"
    with opened(browser, pages["one"], scheme="light") as page:
        light = page.evaluate(ground), page.evaluate(line)
    with opened(browser, pages["one"], scheme="dark") as page:
        dark = page.evaluate(ground), page.evaluate(line)
        assert dark[0] != light[0]
        assert dark[1] != light[1]
        page.emulate_media(color_scheme="light")
        assert (page.evaluate(ground), page.evaluate(line)) == light
        page.emulate_media(media="print", color_scheme="dark")
        assert (page.evaluate(ground), page.evaluate(line)) == light


def test_it_can_be_printed(browser, pages):
    with opened(browser, pages["one"]) as page:
        assert page.pdf(format="A4").startswith(b"%PDF")
        page.set_viewport_size({"width": 600, "height": 800})
        page.emulate_media(media="print")
        for box in page.locator(".area").all():
            assert box.bounding_box()["width"] <= 600


def test_headings_and_charts_have_names(browser, pages):
    with opened(browser, pages["one"]) as page:
        assert page.locator("h1").count() == 1
        assert page.locator("h2").count() == 5
        for chart in page.locator(".chart").all():
            assert chart.get_attribute("aria-label")
