"""The pages in a real browser: nothing is fetched, nothing is wider than a phone, keys and screen readers reach it all.

Screenshots go to the test's temporary folder; set INFERASIM_SCREENSHOTS to keep them somewhere.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferasim_operator import views
from inferasim_operator.report import explain, index, plan, run
from tests.browser import chromium
from tests.controllers import test_plan_pages as live_samples
from tests.controllers import test_report_pages as samples

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.program() is None, reason="no Chromium here; on Debian: apt-get install chromium"),
]
PHONE, DESKTOP = (390, 844), (1280, 800)
TIERS = 4
OPEN_ALL = "document.querySelectorAll('details').forEach(part => { part.open = true; })"


def _plan() -> str:
    """Four tiers, as the paper's, so that the first screen is a real one."""
    chosen, tier = samples.RESULT["selected"][0], samples.RESULT["effective"]["tiers"][0]
    names = ("realtime", "interactive", "responsive", "bulk")
    result = {**samples.RESULT, "selected": [{**chosen, "tier": name} for name in names], "binding": []}
    result["effective"] = {**result["effective"], "tiers": [{**tier, "name": name} for name in names]}
    return plan.render(result, name="chat", explanation=samples.EXPLANATION)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("pages")
    pages = {
        "plan": _plan(),
        "prediction": run.prediction(samples.PREDICTION),
        "replay": run.replay(samples.REPLAY),
        "explain": explain.render(samples.EXPLANATION),
    }
    states = [views.state(live) for live in (live_samples.PLAN, live_samples.FRESH)]
    answers = {(one["kind"], one["namespace"], one["name"]): views.answer_text(one) for one in states}
    pages["index"] = index.render(states, answers)
    hostile = json.loads(json.dumps(samples.RESULT).replace('"realtime"', json.dumps(samples.HOSTILE)))
    pages["hostile"] = plan.render(hostile, name=samples.HOSTILE)
    for name, text in pages.items():
        (found / f"{name}.html").write_text(text, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.Page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def _keep(browser: chromium.Page, path: Path) -> None:
    browser.screenshot(path)
    assert path.stat().st_size > 5000
    kept = os.environ.get("INFERASIM_SCREENSHOTS")
    if kept:
        shutil.copy(path, kept)


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["plan", "prediction", "replay", "explain", "index", "hostile"])
def test_a_page_is_whole_alone_and_no_wider_than_its_window(
    browser: chromium.Page, folder: Path, name: str, size: tuple[int, int], is_dark: bool
) -> None:
    browser.problems.clear()
    path = folder / f"{name}.html"
    browser.load(path, width=size[0], height=size[1], is_dark=is_dark)
    _keep(browser, folder / f"{name}-{size[0]}-{'dark' if is_dark else 'light'}.png")
    assert browser.requests in ([path.as_uri()], [path.as_uri(), "data:,"]), "the page and nothing else"
    assert browser.problems == [], "no script failed, no policy was broken"
    assert browser.value("document.scrollingElement.scrollWidth") <= size[0]
    assert browser.value("document.querySelectorAll('img, iframe, body script:not(:last-child)').length") == 0
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground.removeprefix("rgb(").rstrip(")").split(","))) < 3 * 128) == is_dark


CONTRAST = """(() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (colour !== 'rgba(0, 0, 0, 0)') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  let worst = [21, ''];
  for (const node of document.querySelectorAll('p, li, dt, dd, th, td, h1, h2, h3, small, span, a, summary, text')) {
    if (!node.textContent.trim() || node.closest('.skip, .hidden, [aria-hidden=true]')) continue;
    const style = getComputedStyle(node);
    const ink = node.namespaceURI.endsWith('svg') ? style.fill : style.color;
    const [a, b] = [luminance(ink), luminance(ground(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.outerHTML.slice(0, 80)];
  }
  return worst;
})()"""


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(browser: chromium.Page, folder: Path, is_dark: bool) -> None:
    """At least 4.5 to 1, as WCAG 2.2 AA asks for small text (success criterion 1.4.3)."""
    browser.load(folder / "plan.html", width=1280, height=800, is_dark=is_dark)
    ratio, where = browser.value(CONTRAST)
    assert ratio >= 4.5, where


def test_the_first_screen_holds_the_answer(browser: chromium.Page, folder: Path) -> None:
    """All tiers on a desktop; the verdict and the first two tiers on a phone."""
    for (width, height), whole in ((DESKTOP, TIERS), (PHONE, 2)):
        browser.load(folder / "plan.html", width=width, height=height, is_dark=False)
        ends = browser.value("[...document.querySelectorAll('.card')].map(c => c.getBoundingClientRect().bottom)")
        assert sum(end <= height for end in ends) >= whole, (width, ends)


def test_a_reason_is_a_few_lines_on_a_phone(browser: chromium.Page, folder: Path) -> None:
    """Beside columns of figures its own would else be a word wide, and the row a screen high."""
    why = "0.3% less throughput per GPU, inside the band, but 2.1% headroom against 2.4%"
    path = folder / "reasons.html"
    text = json.dumps(samples.EXPLANATION).replace('"dearer"', json.dumps(why)).replace("it misses TTFT", why)
    path.write_text(explain.render(json.loads(text)), encoding="utf-8")
    browser.load(path, width=PHONE[0], height=PHONE[1], is_dark=False)
    heights = browser.value("[...document.querySelectorAll('tbody tr')].map(r => r.getBoundingClientRect().height)")
    assert max(heights) < 160, heights
    assert browser.value("document.scrollingElement.scrollWidth") <= PHONE[0]


def test_keys_alone_reach_and_read_every_point(browser: chromium.Page, folder: Path) -> None:
    browser.load(folder / "plan.html", width=1280, height=800, is_dark=False)
    focused = "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    browser.press("Tab")
    assert browser.value(focused) == "Skip to the answer"
    for _ in range(40):
        browser.press("Tab")
        if browser.value("document.activeElement.hasAttribute('data-point')"):
            break
    points = browser.value("[...document.querySelectorAll('svg')][0].querySelectorAll('[data-point]').length")
    seen = {browser.value(focused)}
    for _ in range(points - 1):
        browser.press("ArrowRight")
        seen.add(browser.value(focused))
        assert browser.value("document.getElementById('front-readout').textContent") == browser.value(focused)
    assert len(seen) == points
    last = browser.value(focused)
    browser.press("Home")
    assert browser.value(focused) != last
    browser.press("End")
    assert browser.value(focused) == last


def test_tables_sort_by_key_and_say_so(browser: chromium.Page, folder: Path) -> None:
    browser.load(folder / "plan.html", width=1280, height=800, is_dark=False)
    browser.value(OPEN_ALL)
    column = "[...document.querySelector('#figures tbody').rows].map(row => row.cells[3].textContent)"
    heading = "document.querySelectorAll('#figures thead th')[3]"
    assert browser.value(f"{heading}.hasAttribute('aria-sort')") is False
    browser.value(f"{heading}.querySelector('button').focus()")
    browser.press("Enter")
    assert browser.value(column) == ["250", "2,480"]
    assert browser.value(f"{heading}.getAttribute('aria-sort')") == "ascending"
    browser.press("Enter")
    assert browser.value(column) == ["2,480", "250"]


def test_screen_readers_get_names(browser: chromium.Page, folder: Path) -> None:
    """From the accessibility tree that the browser hands to them."""
    browser.load(folder / "plan.html", width=1280, height=800, is_dark=False)
    browser.value(OPEN_ALL)
    nodes: list[dict[str, Any]] = browser.call("Accessibility.getFullAXTree")["nodes"]
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in ("region", "heading", "image", "link", "table", "DisclosureTriangle"):
        assert named.get(role), f"no {role}: {sorted(named)}"
        assert all(named[role]), f"a {role} without a name"
    assert "Answer per tier" in named["region"]
    assert sum(name.startswith("realtime, interactive") for name in named["image"]) == 2, "once per chart"
