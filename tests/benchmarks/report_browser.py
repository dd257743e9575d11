"""When a report answers a click: `python -m tests.benchmarks.report_browser REPORT [TIMES]`.

Opens the page (`report/index.html`) in headless Chromium, 5 times unless told otherwise. As soon as
the explorer of runs is there, an arm is switched off by a click. Prints the time from the begin of
the navigation until the figures have other words and the next frame is due, of each time, and
fails beyond 2 s. The folder that `report_cost` is given holds such a page.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_LIMIT_S, _PATIENCE_S = 2.0, 60.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
_CLICK = """
const look = () => {
  const figure = document.querySelector("#panels canvas[role=application]");
  const arm = document.querySelector("#arms input");
  if (!figure || !arm || document.getElementById("explorer").hidden) return setTimeout(look, 1);
  const before = figure.getAttribute("aria-label");
  const answered = () => {
    const now = document.querySelector("#panels canvas[role=application]");
    if (now.getAttribute("aria-label") === before) return setTimeout(answered, 1);
    requestAnimationFrame(() => setTimeout(() => { window.answeredMs = performance.now(); }));
  };
  window.seenMs = performance.now();
  arm.click();
  answered();
};
look();
"""


def main() -> None:
    report, times = Path(sys.argv[1]).resolve(), int((sys.argv[2:] or ["5"])[0])
    options = webdriver.ChromeOptions()
    for flag in _FLAGS:
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    options.page_load_strategy = "none"
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    answered = []
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _CLICK})
        for _ in range(times):
            driver.get("about:blank")
            driver.get(report.as_uri())
            until_s = time.monotonic() + _PATIENCE_S
            while (found := driver.execute_script("return window.answeredMs")) is None:
                if time.monotonic() > until_s:
                    sys.exit(f"{report}: no answer within {_PATIENCE_S:g} s")
                time.sleep(0.05)
            seen = driver.execute_script("return window.seenMs")
            answered.append(found / 1e3)
            print(f"the explorer is there after {seen / 1e3:.2f} s, answers at {found / 1e3:.2f} s")
    finally:
        driver.quit()
    print(f"median {statistics.median(answered):.2f} s, page {report.stat().st_size / 1e6:.1f} MB")
    if max(answered) > _LIMIT_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
