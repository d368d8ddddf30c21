# Copyright (c) 2026, the enplace authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of reports as people see them, in the system's chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from enplace import report
from enplace.main import main
from tests.sim import liar, reports

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# What a server may say. Were it markup, the first would change the title, and the second would ask another host.
SCRIPT = "<script>document.title='obeyed'</script>"
IMAGE = "<img src=http://192.0.2.1/x onerror=document.title='obeyed'>"
MARKUP = SCRIPT + IMAGE
PAGES = ("index.html", "demo1/enplace-smoke-cpu.html", "demo2/enplace-smoke-cpu.html")

# The contrast of each text of its own with what is behind it, by the formula of WCAG 2; the least of each kind.
CONTRAST = """
() => {
  const numbers = (colour) => (colour.match(/[0-9.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const rgb = numbers(getComputedStyle(element).backgroundColor);
      if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return null;
  };
  const found = {};
  for (const element of document.querySelectorAll("body, body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    if (back === null) throw new Error("nothing is behind " + element.outerHTML.slice(0, 80));
    const pair = [light(numbers(element instanceof SVGElement ? style.fill : style.color)), light(back)];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    const kind = element.tagName + "." + (element.getAttribute("class") || "");
    found[kind] = Math.min(ratio, found[kind] ?? 99);
  }
  return found;
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert shutil.which(CHROMIUM), "there is no chromium: make setup installs it"
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a host that passed, with figures and a history, and of one whose server answers with markup."""
    root = tmp_path_factory.mktemp("reports")
    report.write(report.read(reports.put(root, reports.made("wrong_context", ended="2026-11-01T00:00:00Z"))))
    reports.put(root, reports.made(figures=reports.figures()))
    with pytest.MonkeyPatch.context() as patch:
        for ask, answer in zip(list(liar.ANSWERS), (SCRIPT, IMAGE), strict=False):
            patch.setitem(liar.ANSWERS, ask, answer)
        bad = reports.made(problems=[f"beside the checks: {MARKUP}"], all_passed=False)
    bad["checks"][-1] |= {"status": "not run", "reason": MARKUP}
    bad["checks"][-2] |= {"status": "refused", "reason": MARKUP}
    reports.put(root, bad, host="demo2")
    assert main(["report", str(root)]) == 0
    return root


def opened(browser: Browser, folder: Path, name: str, width: int = 1280, scheme: str = "light") -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": 800}, color_scheme="dark" if scheme == "dark" else "light"
    )
    page.goto((folder / name).as_uri())
    return page


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_narrow_phone(browser: Browser, folder: Path, name: str) -> None:
    page = opened(browser, folder, name, width=320)
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.close()


def test_details_open_by_keyboard(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, PAGES[1])
    first = page.locator("details").first
    assert not first.locator("h3").first.is_visible()
    for _ in range(50):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "SUMMARY":
            break
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    page.keyboard.press("Enter")
    assert first.locator("h3").first.is_visible()
    assert outline == "solid"
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_no_request_leaves_a_page_and_markup_of_a_server_is_text(browser: Browser, folder: Path, name: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / name).as_uri(), wait_until="networkidle")
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    assert asked == [(folder / name).as_uri()]
    assert "obeyed" not in page.title()
    assert page.locator("script, img, iframe, object, link").count() == 0
    if name == PAGES[2]:
        for place in ("wrong", "checks"):
            assert MARKUP in page.locator(f"section[aria-labelledby={place}]").inner_text()
        # As it came back from the server itself.
        answered = page.locator("details", has_text="known_answers").locator("pre").last.inner_text()
        assert SCRIPT in answered
        assert IMAGE in answered
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_stands_out_from_what_is_behind_it(browser: Browser, folder: Path, name: str, scheme: str) -> None:
    page = opened(browser, folder, name, scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
    found = page.evaluate(CONTRAST)
    assert any("status" in kind for kind in found)
    assert {kind: ratio for kind, ratio in found.items() if ratio < 4.5} == {}
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)")
    page.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_title_a_language_and_landmarks(browser: Browser, folder: Path, name: str) -> None:
    page = opened(browser, folder, name)
    assert page.title()
    assert page.locator("html").get_attribute("lang") == "en"
    for role in ("banner", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.evaluate(
        "new Set([...document.querySelectorAll('[id]')].map((each) => each.id)).size"
    ) == page.evaluate("document.querySelectorAll('[id]').length")
    page.close()


def test_no_status_is_told_by_its_colour_alone(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, PAGES[2])
    labels = page.locator("#checks ~ details .status")
    assert {text.split()[-1] for text in labels.all_inner_texts()} == {"passed", "failed", "refused", "run"}
    assert page.title().startswith("failed: ")
    page.close()


def test_paper_shows_what_is_folded_on_the_screen(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, PAGES[1])
    page.emulate_media(media="print")
    shown = page.evaluate("[...document.querySelectorAll('details > div')].map((each) => each.checkVisibility())")
    assert shown
    assert all(shown)
    page.emulate_media(media="screen")
    assert not page.evaluate("document.querySelector('details > div').checkVisibility()")
    page.close()


def test_charts_are_named_images_of_what_was_measured(browser: Browser, folder: Path) -> None:
    page = opened(browser, folder, PAGES[1])
    charts = page.get_by_role("img")
    assert charts.count() == 3
    assert all("stream" in (charts.nth(number).get_attribute("aria-label") or "") for number in range(3))
    assert opened(browser, folder, PAGES[2]).get_by_role("img").count() == 0
    page.close()
