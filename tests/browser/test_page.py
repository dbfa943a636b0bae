"""The page of `relax show`, in Chromium: what it shows, by keyboard too, on narrow screens, in light and dark."""

from __future__ import annotations

import re
import shutil

import pytest
from playwright.sync_api import sync_playwright

from tests.cli.transcripts import OLD, OTHER, TWO_TURNS, recorded

FOCUSED = "document.activeElement.textContent"
TOLD = "main ~ output"
RUDE = "</pre></script><script>window.hacked = 1</script><img src=http://localhost/x onerror='window.hacked = 2'>"
HOSTILE = TWO_TURNS | {
    **dict.fromkeys(("id", "trajectory_id", "prompt", "response", "answer", "finish_reason"), RUDE),
    "segments": [
        TWO_TURNS["segments"][0] | {"tokens": [RUDE, '"', "'"]},
        TWO_TURNS["segments"][1] | {"tool": RUDE, "tokens": [RUDE, "\x00"]},
    ],
}


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        # A container's root has no sandbox to give it.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, relax, tmp_path):
    """Write the page of these records and open it. `page.requests` and `page.errors` are what it asked for and got wrong."""
    opened = []

    def open_(*records, **options):
        recorded(tmp_path / "run", *(records or (TWO_TURNS, OTHER)))
        result = relax("show", "run", "--html", tmp_path / "page.html")
        assert (result.code, result.out) == (0, f"{tmp_path}/page.html\n")
        page = chromium.new_page(**options)
        page.requests, page.errors = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(f"file://{tmp_path}/page.html")
        opened.append(page)
        return page

    yield open_
    for page in opened:
        assert page.errors == []
        page.close()


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def test_turns_tools_and_tokens_are_there(opened):
    page = opened()
    assert page.title() == "run: step 2"
    assert texts(page, "h2") == ["1 of 2: row 1", "2 of 2: row 2"]
    assert texts(page, "h3") == ["prompt", "turn 1", "tool calculator", "turn 2", "prompt", "turn 1"]
    assert texts(page, "pre") == [
        "How much is 6 times 7?",
        "calc: 6*7",
        " = 42",
        " is é",
        "How much is 6 times 7?",
        "no",
    ]
    assert texts(page, "main .token") == ["calc", ": ", "6*7", " is", " ", "é", "no"]
    titles = page.locator("main .token").evaluate_all("tokens => tokens.map(token => token.title)")
    plus, minus = ["advantage +0.5", "advantage +0.5", "advantage +0.25"], ["advantage -0.75", "masked: not trained on"]
    assert titles == [*plus, *minus, "advantage -0.25, -0.35", "advantage +0"]


def test_an_old_run_says_that_advantages_were_not_recorded(opened):
    page = opened(OLD)
    assert texts(page, ".note") == ["advantages were not recorded"]
    assert texts(page, "pre") == ["How much is 6 times 7?", "calc: 6*7 = 42 is é"]


def test_j_and_k_go_from_response_to_response(opened):
    page = opened(TWO_TURNS, OTHER, OTHER | {"id": "row 3"})
    found = []
    for key in "jjjjkkk":
        page.keyboard.press(key)
        found.append(page.evaluate("document.activeElement.querySelector('h2').textContent[0]"))
    assert "".join(found) == "1233211"
    page.keyboard.press("Control+j")
    assert page.evaluate("document.activeElement.querySelector('h2').textContent[0]") == "1"


def test_tab_goes_through_responses_and_their_turns_in_order(opened):
    page = opened()
    found = []
    for _ in range(5):
        page.keyboard.press("Tab")
        found.append(page.evaluate("document.activeElement.tagName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
    assert found == ["ARTICLE", "SPAN", "SPAN", "ARTICLE", "SPAN"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUSED) == " is"


def test_the_advantage_of_each_token_is_told_by_keyboard(opened):
    page = opened()
    page.keyboard.press("j")
    assert not page.locator(TOLD).is_visible()
    told = []
    for key in ("Tab", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Tab", "ArrowRight"):
        page.keyboard.press(key)
        told.append(page.locator(TOLD).text_content())
    half, quarter = '": ": advantage +0.5', '"6*7": advantage +0.25'
    assert told[:5] == ['"calc": advantage +0.5', half, quarter, quarter, half]
    assert told[5:] == ['" is": advantage -0.75', '" ": masked: not trained on']
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(FOCUSED) == ": "


def test_the_pointer_tells_it_too(opened):
    page = opened()
    page.get_by_text("6*7").hover()
    assert page.locator(TOLD).text_content() == '"6*7": advantage +0.25'
    page.locator("h1").hover()
    assert page.locator(TOLD).text_content() == ""


@pytest.mark.parametrize("width", [320, 1280])
def test_nothing_is_wider_than_the_screen(opened, width):
    long = "x" * 3000
    wide = TWO_TURNS | dict.fromkeys(("id", "trajectory_id", "prompt", "answer", "finish_reason"), long)
    wide["segments"] = [TWO_TURNS["segments"][1] | {"tool": long, "tokens": [long, " "]}]
    wide["segments"].append(TWO_TURNS["segments"][0] | {"tokens": [long, "\t" * 99, "y"]})
    page = opened(wide, TWO_TURNS, OLD | {"step": 2, "response": long}, viewport={"width": width, "height": 600})
    page.keyboard.press("j")
    page.keyboard.press("Tab")
    assert page.locator(TOLD).is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("scrollTo(10000, 0)")
    assert page.evaluate("scrollX") == 0


def luminance(colour):
    """Of `rgb(r, g, b)`, as WCAG 2 defines it."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(*colours):
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


COLOURS = """nodes => nodes.map(node => {
  let behind = node;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor];
})"""


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_all_text_can_be_read_in_light_and_dark(opened, scheme, dark):
    page = opened(TWO_TURNS, OLD | {"step": 2}, color_scheme=scheme)
    assert (luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.1) == dark
    found = page.locator("h1, h2, h3, p, dt, dd, pre, .token").evaluate_all(COLOURS)
    assert len(found) > 30
    assert {tuple(each) for each in found if contrast(*each) < 4.5} == set()
    shades = {behind for _, behind in page.locator(".legend .token").evaluate_all(COLOURS)}
    assert len(shades) == 7


def test_a_sign_is_told_without_colour(opened):
    page = opened()
    style = "node => getComputedStyle(node).borderBottomStyle"
    assert page.get_by_text("calc", exact=True).evaluate(style) == "solid"
    assert page.get_by_text(" is", exact=True).evaluate(style) == "dashed"
    struck = page.locator("main .masked").evaluate("node => getComputedStyle(node).textDecorationLine")
    assert struck == "line-through"


def test_what_a_response_holds_is_text_and_nothing_else(opened):
    page = opened(HOSTILE, HOSTILE | {"segments": []})
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert texts(page, "h2") == [f"1 of 2: {RUDE}", f"2 of 2: {RUDE}"]
    assert texts(page, "pre") == [RUDE, f"{RUDE}\"'", f"{RUDE}\\u{{0}}", RUDE, RUDE]
    assert texts(page, "dd")[0] == RUDE
    assert f"tool {RUDE}" in texts(page, "h3")


def test_it_asks_for_nothing_and_runs_no_other_script(opened, tmp_path):
    page = opened(HOSTILE)
    assert page.requests == [f"file://{tmp_path}/page.html"]
    refused = page.evaluate(
        """() => new Promise(resolve => {
          const refused = [];
          document.addEventListener("securitypolicyviolation", event => {
            if (refused.push(event.violatedDirective) === 2) resolve(refused);
          });
          const script = Object.assign(document.createElement("script"), {textContent: "window.hacked = 3"});
          document.body.append(script, Object.assign(new Image(), {src: "http://localhost/x.png"}));
        })"""
    )
    assert sorted(refused) == ["img-src", "script-src-elem"]
    assert page.evaluate("window.hacked") is None
