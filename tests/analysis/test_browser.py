"""The report in a browser: headless Chromium clicks, types, filters and follows links.

Every test ends with a look at what the browser logged: no error, and no request but for the pages.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analysis
from analysis.report import writing
from tests.analysis.build import ResultsBuilder
from tests.analysis.test_timeline import add_times

selenium = pytest.importorskip("selenium", reason="needs selenium")

from selenium import webdriver  # noqa: E402 (after the question whether it is there)
from selenium.webdriver import Keys  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402

_PROGRAMS = ("chromium", "chromedriver")
pytestmark = [
    pytest.mark.long,
    *(
        pytest.mark.skipif(shutil.which(program) is None, reason=f"needs {program}")
        for program in _PROGRAMS
    ),
]
HOSTILE = "</script><img src=x onerror=document.title=1><b>x</b>"
OUTLIER = "fixed-low-s2-0.9"
_RIGHT = "(cell) => cell.getBoundingClientRect().right"
_BURSTS = "Round latency, burst rounds"
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--no-first-run", "--window-size=1280,1000"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms at two points with three seeds; rounds 4 of one run took 9 s.

    The third arm's name is not kind.
    """
    folder = tmp_path_factory.mktemp("results")
    build = ResultsBuilder(folder, arms=["dblp", "fixed-low", HOSTILE])
    build.factors = {"q": [0.6, 0.9]}
    for number, arm in enumerate(build.arms):
        for q in build.factors["q"]:
            for seed in (1, 2, 3):
                key = f"{arm if arm != HOSTILE else 'odd'}-s{seed}-{q}"
                slow = 9.0 if key == OUTLIER else 1 + number / 2 + seed / 10
                run = build.run(arm=arm, seed=seed, factors={"q": q}, key=key, burst_s=slow)
                add_times(run)
    with pytest.MonkeyPatch.context() as patch:  # the figures of matplotlib are looked at elsewhere
        patch.setattr(writing, "draw_all", lambda *_: [])
        return analysis.write_report(folder).index


@pytest.fixture(scope="module")
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for flag in _FLAGS:
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome, report: Path) -> Iterator[webdriver.Chrome]:
    """The browser with the report open; afterwards it must have been quiet."""
    chromium.get("about:blank")
    logged(chromium)
    chromium.get(report.as_uri())
    yield chromium
    errors, requests = logged(chromium)
    assert errors == []
    assert set(requests) <= {report.as_uri(), report.with_name("timeline.html").as_uri()}
    assert requests


def logged(driver: webdriver.Chrome) -> tuple[list[str], list[str]]:
    """The messages of the console, and the requested addresses, since the last call."""
    events = [json.loads(record["message"])["message"] for record in driver.get_log("performance")]
    requests = [
        event["params"]["request"]["url"].partition("#")[0]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    errors = [record["message"] for record in driver.get_log("browser")]
    return errors, [request for request in requests if request != "about:blank"]


def test_the_slowest_round_opens_in_the_timeline(browser):
    browser.find_element("css selector", "#run-by-run summary").click()
    browser.find_element("css selector", f"#run-by-run a[href^='timeline.html#{OUTLIER}']").click()
    assert browser.find_element("id", "run").get_attribute("value") == OUTLIER
    assert "round 4, latency 9.00 s" in browser.find_element("id", "readout").text


def test_a_table_sorts_by_numbers_and_filters_by_words(browser):
    browser.find_element("css selector", "#run-by-run summary").click()
    table = browser.find_element("css selector", "#run-by-run table")

    def keys() -> list[str]:
        cells = table.find_elements("css selector", "tbody tr:not([hidden]) th")
        return [cell.text for cell in cells]

    before = keys()
    [head] = [
        find_element
        for find_element in table.find_elements("css selector", "thead th")
        if _BURSTS in find_element.text
    ]
    button = head.find_element("css selector", "button")
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert keys()[-1] == OUTLIER and set(keys()[:2]) == {"dblp-s1-0.6", "dblp-s1-0.9"}
    button.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "descending"
    assert keys()[0] == OUTLIER
    button.click()
    assert head.get_attribute("aria-sort") is None
    assert keys() == before
    field = browser.find_element("css selector", "#run-by-run .filter input")
    field.send_keys("0.9 FIXED")
    assert keys() == [f"fixed-low-s{seed}-0.9" for seed in (1, 2, 3)]
    assert browser.find_element("css selector", "#run-by-run output").text == "3 of 18"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, dark):
    screen: dict[str, Any] = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    try:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.refresh()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        browser.find_element("css selector", "#runs summary").click()
        right = "Math.max(...Array.from(document.querySelectorAll('.words td'), " + _RIGHT + "))"
        assert browser.execute_script(f"return {right}") <= 360  # a verdict and its reason
        shade = browser.execute_script(
            "return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)"
        )
        assert (max(shade) < 40) is dark
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
