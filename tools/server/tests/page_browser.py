"""A headless Chromium that opens the page of llama-server, and keeps account of what it did there."""

import json
import os
import shutil
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from server_process import ROOT

REPORTS = ROOT / "build" / "reports"  # screenshots, for people

TIMEOUT = 60  # seconds for anything to show up on the page

# a phone of the smaller kind, and a notebook
PHONE = (360, 740)
DESK = (1440, 900)


def need_browser():
    """Paths of Chromium and its driver; `make test` has installed them, so there a missing one is a failure."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if all(found):
        return found
    reason = "chromium or chromedriver is missing: run scripts/setup packages test"
    if os.environ.get("HWKV_TEST_STRICT"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def make_driver():
    chromium, driver = need_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server", "--disable-background-networking",
                     "--disable-component-update", "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb", "--lang=en"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # it refuses to start as root else
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Page:
    """The page in the browser, in words of its users."""

    def __init__(self, driver):
        self.driver = driver
        self.injected = None
        self.origins = set()

    def open(self, url, size=DESK, dark=False, before=""):
        """A fresh visit: nothing stored. `before` is a script that runs ahead of the page's own."""
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        # the key of another test is in the tab's own store, which the first line does not reach
        self.driver.execute_script("window.name = 'new'")
        source = f"if (window.name === 'new') {{ sessionStorage.clear(); window.name = ''; }} {before}"
        self.injected = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})["identifier"]
        self.resize(size)
        self.system_theme(dark)
        self.origins = {origin(url)}
        self.driver.get(url)

    def leave(self):
        """The page of one test must not ask on while the next one runs."""
        if self.injected:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": self.injected})
        self.driver.get("about:blank")

    def resize(self, size):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE})

    def system_theme(self, dark):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}, {"name": "prefers-reduced-motion", "value": "reduce"}]})

    def script(self, text, *args):
        return self.driver.execute_script(text, *args)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """Of the last match, also where it is out of sight; empty when hidden or missing."""
        found = [node for node in self.all(selector) if node.is_displayed()]
        return self.script("return arguments[0].innerText.trim()", found[-1]) if found else ""

    def wait(self, condition, what):
        try:
            return WebDriverWait(self.driver, TIMEOUT, poll_frequency=0.05).until(lambda _: condition())
        except TimeoutException:
            seen = {selector: self.text(selector) for selector in ("#state", "#notice", ".note")}
            raise AssertionError(f"waited {TIMEOUT} s for {what}; the page says {seen}") from None

    def wait_state(self, word):
        self.wait(lambda: self.text("#state") == word, f"the state '{word}'")

    def set(self, selector, value):
        self.script("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', { bubbles: true }))", self.one(selector), str(value))

    def ask(self, question, max_tokens=24):
        """Types a question and presses Enter."""
        self.set("#temperature", 0)
        self.set("#max-tokens", max_tokens)
        self.one("#prompt").send_keys(question, Keys.ENTER)
        self.wait(lambda: self.all(".turn.assistant"), "an answer to begin")

    def is_busy(self):
        return self.one("#stop").is_displayed()

    def answered(self):
        """The text of the last answer once it is there."""
        self.wait(lambda: not self.is_busy(), "the answer to end")
        return self.text(".turn.assistant .body")

    def style(self, node, name):
        return self.script("return getComputedStyle(arguments[0])[arguments[1]]", node, name)

    def screenshot(self, name):
        REPORTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(REPORTS / f"page-{name}.png"))

    #
    # the account
    #

    def errors(self, with_network=True):
        """What the console got. Failed requests are the network's; some tests cause them."""
        return [entry for entry in self.driver.get_log("browser") if with_network or entry["source"] != "network"]

    def foreign_requests(self):
        """Addresses on other hosts that the page asked for."""
        asked = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated"):
                asked.append(message["params"].get("request", message["params"])["url"])
        return [url for url in asked if not url.startswith(("about:", "data:", "blob:")) and origin(url) not in self.origins]


def origin(url):
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
