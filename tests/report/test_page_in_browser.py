"""The page in a real browser: it shows its figures, fits a phone, fetches nothing and complains of nothing."""

import json
import os
import shutil
import subprocess
import time
from select import select

import pytest

import fedprompt
from fedprompt.report.gallery import look
from fedprompt.report.page import describe
from fedprompt.report.sources import Part
from fedprompt.report.writing import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or os.name != "posix", reason="no Chromium found: install it to see the page in a browser"
)
PATIENCE = 60  # seconds


class Browser:
    """A headless Chromium, spoken to over a pipe (its DevTools protocol: JSON with a zero byte after each)."""

    def __init__(self, profile):
        from_us, to_browser = os.pipe()
        from_browser, to_us = os.pipe()

        def place():  # the browser reads from 3 and writes to 4
            ends = os.dup(from_us), os.dup(to_us)
            for number, end in zip((3, 4), ends, strict=True):
                os.dup2(end, number)

        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
        self.process = subprocess.Popen(
            [CHROMIUM, *options, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        self.to, self.back, self.rest, self.number, self.events = to_browser, from_browser, b"", 0, []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session: dict[str, str] = {}  # noqa: RUF012 (until a page is attached)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.rest:
            assert select([self.back], [], [], until - time.monotonic())[0], "the browser does not answer"
            read = os.read(self.back, 1 << 16)
            assert read, "the browser is gone"
            self.rest += read
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, width, dark=False):
        self.events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def runs(tiny_toml, tmp_path_factory):
    out = tmp_path_factory.mktemp("seen")
    return [fedprompt.run(tiny_toml, method=method, out=out) for method in ("head-tune", "pfedbayespt")]


@pytest.fixture(scope="module")
def path(runs, tmp_path_factory):
    return write_report(
        describe([Part(runs)], look(runs, 0), "again"), tmp_path_factory.mktemp("page") / "report.html"
    )[0]


def test_the_table_shows_the_figures_of_the_summaries(browser, path, runs):
    browser.open(path, 1280)
    body = "[...document.querySelector('table.results').tBodies[0].rows]"
    rows = browser.value(f"{body}.map(row => [...row.cells].map(cell => cell.innerText.trim()))")
    expected = [
        [title, *(f"{100 * run.summary['final'][key]:.2f}" for key in ("average", "worst_local"))]
        for title, run in zip(("Head-Tune", "pFedBayesPT"), runs, strict=True)
    ]
    assert rows == expected


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_no_wider_than_the_window(browser, path, width):
    browser.open(path, width)
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth") <= width


def test_every_picture_is_seen(browser, path):
    browser.open(path, 1280)
    assert browser.value("[...document.images].length") >= 9
    assert browser.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    boxes = "[...document.querySelectorAll('svg')].map(drawing => drawing.getBoundingClientRect())"
    assert browser.value(f"{boxes}.every(box => box.width > 20 && box.height > 5)")


def test_nothing_is_fetched_and_nothing_complains(browser, path):
    browser.open(path, 1280)
    asked = {e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"}
    assert path.as_uri() in asked
    assert {url for url in asked if not url.startswith("data:")} == {path.as_uri()}
    loud = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    assert [event for event in browser.events if event["method"] in loud] == []


def test_the_tests_above_would_hear_a_complaint(browser, tmp_path):
    policy = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
    (tmp_path / "bad.html").write_text(f"<!doctype html>{policy}<img src=http://127.0.0.1:9/x.png><script>1</script>")
    browser.open(tmp_path / "bad.html", 390)
    assert any(event["method"] == "Log.entryAdded" for event in browser.events)


def test_dark_mode_is_dark_with_light_letters(browser, path):
    colours = "['backgroundColor', 'color'].map(c => getComputedStyle(document.body)[c].match(/\\d+/g).map(Number)[0])"
    browser.open(path, 1280, dark=True)
    background, ink = browser.value(colours)
    assert background < 60
    assert ink > 200
    browser.open(path, 1280)
    background, ink = browser.value(colours)
    assert background > 240
    assert ink < 60
