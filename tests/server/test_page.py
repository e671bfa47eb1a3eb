"""The page in a real Chromium: chat, keys, themes, widths, the live view; nothing is markup."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serving import OPTIONS, Running

from gguflow.cli.load import bundled_model
from gguflow.server.config import ModelSpec
from gguflow.server.page import document

selenium = pytest.importorskip("selenium", reason="selenium is missing: pip install 'gguflow[dev]'")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

real = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="chromium and chromium-driver are not installed"
)


def test_the_page_is_one_document_that_fetches_nothing() -> None:
    html, policy = document()
    text = html.decode()
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:,)", text)
    assert "innerHTML" not in text and "eval(" not in text and "style=" not in text
    for rule in ("default-src 'none'", "connect-src 'self'", "require-trusted-types-for 'script'"):
        assert rule in policy
    assert "unsafe" not in policy and "http:" not in policy


def test_the_page_is_served_with_its_policy(server: Running) -> None:
    status, headers, body = server.get("/")
    assert status == 200 and body == document()[0]
    assert headers["content-security-policy"] == document()[1]
    assert headers["content-type"].startswith("text/html")


class Browser:
    """Chromium with the page open, and what tests do with it."""

    def __init__(self, driver: Chrome, server: Running) -> None:
        self.driver, self.server = driver, server

    def open(
        self,
        width: int = 1200,
        height: int = 800,
        view: str = "chat",
        max_tokens: int = 40,
        temperature: float = 0.0,
    ) -> None:
        self.driver.set_window_size(width, height)
        self.driver.get(self.server.url + "/health")
        self.driver.execute_script(
            "localStorage.clear();"
            "localStorage.setItem('gguflow.settings', JSON.stringify(arguments[0]))",
            {"max_tokens": max_tokens, "temperature": temperature},
        )
        self.driver.get_log("browser")
        self.driver.get(f"{self.server.url}/#{view}")
        self.until(lambda: self.all("#model option"), "models")

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def script(self, text: str) -> Any:
        return self.driver.execute_script(text)

    def until(self, test: Callable[[], Any], what: str, seconds: float = 20) -> Any:
        end = time.monotonic() + seconds
        while True:
            try:
                if found := test():
                    return found
            except StaleElementReferenceException:
                pass  # The page was drawn anew between asking for an element and looking at it.
            assert time.monotonic() < end, f"{what} did not come"
            time.sleep(0.03)

    def say(self, text: str) -> None:
        self.one("#input").send_keys(text, Keys.ENTER)

    def answered(self, n: int) -> list[str]:
        """The texts of n messages, when the last one is whole."""
        self.until(lambda: len(self.all(".message")) >= n, f"message {n}")
        self.until(lambda: self.one("#stop").get_attribute("hidden") is not None, "the end")
        return [m.text for m in self.all(".message .body")]

    def picture(self, name: str) -> None:
        """A screenshot, where GGUFLOW_SCREENSHOTS says."""
        if folder := os.environ.get("GGUFLOW_SCREENSHOTS"):
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))

    def errors(self) -> list[str]:
        """What the console complained of: a policy that was broken, a script that failed. Not of
        the icon that a browser may still be asking for on behalf of `/health`."""
        said = [e["message"] for e in self.driver.get_log("browser") if e["level"] == "SEVERE"]
        return [m for m in said if "/favicon.ico" not in m]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--disable-background-networking", "--no-first-run",
                 "--host-resolver-rules=MAP another.example 127.0.0.1"):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = Running(options=OPTIONS)
    driver = Chrome(options, ChromeService(DRIVER))
    try:
        yield Browser(driver, running)
    finally:
        driver.quit()
        running.stop()


@real
def test_chat(browser: Browser) -> None:
    browser.open()
    browser.say("Once upon a time")
    texts = browser.answered(2)
    assert texts[0] == "Once upon a time" and texts[1]
    assert "tokens" in browser.all(".message .told")[1].text
    browser.say("And then?")
    assert len(browser.answered(4)) == 4
    browser.picture("chat")
    # It is all still there after the page is loaded anew.
    browser.driver.refresh()
    browser.until(lambda: len(browser.all(".message")) == 4, "the conversation")
    assert browser.all("#conversations li") and not browser.errors()


@real
def test_stop_edit_and_again(browser: Browser, slow_answers: None) -> None:
    browser.open(max_tokens=480)

    def answering() -> bool:
        texts = browser.all(".message .body")
        return len(texts) == 2 and len(texts[1].text) > 5 and browser.one("#stop").is_displayed()

    browser.say("The king")
    browser.until(answering, "some text")
    browser.one("#input").send_keys(Keys.ESCAPE)
    assert len(browser.answered(2)) == 2
    assert "stopped" in browser.all(".message .told")[1].text
    browser.until(lambda: not browser.server.service.requests.live, "the request's end")
    # Answer again: another text takes the place of the old one.
    browser.all(".message.assistant .foot button")[2].click()
    browser.until(answering, "another text")
    browser.one("#stop").click()
    assert len(browser.answered(2)) == 2
    # What is edited while an answer comes stays open when that has ended.
    browser.all(".message.assistant .foot button")[2].click()
    browser.until(answering, "an answer")
    browser.all(".message.user .foot button")[1].click()
    browser.until(lambda: not browser.server.service.requests.live, "the request's end")
    browser.until(lambda: not browser.one("#stop").is_displayed(), "the end")
    browser.all(".message.user .foot button")[1].click()  # cancel
    # Edit the question: what came after it goes.
    browser.all(".message.user .foot button")[1].click()
    area = browser.one("textarea.edit")
    area.clear()
    area.send_keys("The fox")
    browser.all(".message.user .foot button")[0].click()
    browser.until(lambda: browser.all(".message .body")[0].text == "The fox", "the new question")
    browser.until(answering, "an answer")
    browser.one("#stop").click()
    assert len(browser.answered(2)) == 2
    assert not browser.errors()


@real
def test_conversations_settings_and_themes(browser: Browser) -> None:
    browser.open(max_tokens=5)
    browser.say("First")
    browser.answered(2)
    assert "cut" in browser.all(".message .told")[1].text
    browser.one("body").send_keys(Keys.CONTROL, Keys.SHIFT, "o")
    browser.until(lambda: len(browser.all("#conversations li")) == 2, "a new conversation")
    browser.say("Second")
    browser.answered(2)
    browser.all("#conversations .name")[1].click()
    browser.until(lambda: browser.all(".message .body")[0].text == "First", "the first one")
    browser.all("#conversations .small")[1].click()
    browser.until(lambda: len(browser.all("#conversations li")) == 1, "one less")
    browser.one("#settings-open").click()
    browser.one("#settings input[name=temperature]").send_keys("0")
    browser.one("#settings textarea").send_keys("You are a king.")
    browser.picture("settings")
    browser.one("#settings [type=submit]").click()
    kept = browser.script("return JSON.parse(localStorage.getItem('gguflow.settings'))")
    assert kept["temperature"] == 0 and kept["system"] == "You are a king."
    before = browser.script("return getComputedStyle(document.body).backgroundColor")
    browser.one("#theme").click()
    assert browser.script("return getComputedStyle(document.body).backgroundColor") != before
    browser.picture("other-theme")
    assert not browser.errors()


@real
def test_two_windows_keep_each_other_s_conversations(
    browser: Browser, request: pytest.FixtureRequest
) -> None:
    driver = browser.driver
    browser.open(max_tokens=5)
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    second = driver.current_window_handle

    def close() -> None:
        driver.switch_to.window(second)
        driver.close()
        driver.switch_to.window(first)

    request.addfinalizer(close)

    def listed(*names: str) -> None:
        """Until the list shows these and no others that have been begun."""

        def found() -> bool:
            shown = [c.text for c in browser.all("#conversations .name")]
            return [n for n in shown if n != "New conversation"] == list(names)

        browser.until(found, f"{names} in the list")

    driver.get(f"{browser.server.url}/#chat")
    browser.until(lambda: browser.all("#model option"), "models")
    driver.switch_to.window(first)
    browser.say("First")
    browser.answered(2)
    driver.switch_to.window(second)
    listed("First")
    browser.say("Second")
    browser.answered(2)
    listed("Second", "First")
    # Each goes on with its own, and has the other's as it is now.
    driver.switch_to.window(first)
    listed("Second", "First")
    browser.say("More")
    browser.answered(4)
    driver.switch_to.window(second)
    listed("First", "Second")
    browser.say("Again")
    assert browser.answered(4)[2] == "Again"
    browser.all("#conversations .name")[1].click()
    browser.until(lambda: len(browser.all(".message")) == 4, "what the other window wrote")
    assert browser.all(".message .body")[2].text == "More"
    # The conversation that is shown follows, and so do settings.
    driver.switch_to.window(first)
    browser.say("And then?")
    browser.answered(6)
    browser.one("#settings-open").click()
    browser.one("#settings textarea").send_keys("You are a king.")
    browser.one("#settings [type=submit]").click()
    driver.switch_to.window(second)
    browser.until(lambda: len(browser.all(".message")) == 6, "what was said in the other window")
    browser.one("#settings-open").click()
    assert browser.one("#settings textarea").get_attribute("value") == "You are a king."
    browser.one("#settings button").send_keys(Keys.ESCAPE)
    # What one deletes is gone in the other, which shows another one in its place.
    browser.all("#conversations .small")[0].click()
    listed("Second")
    driver.switch_to.window(first)
    listed("Second")
    browser.until(lambda: browser.all(".message .body")[0].text == "Second", "another one")
    for window in (first, second):
        driver.switch_to.window(window)
        driver.refresh()
        listed("Second")
        assert [m.text for m in browser.all(".message.user .body")] == ["Second", "Again"]
    assert not browser.errors()


@real
def test_conversations_of_the_old_list(browser: Browser) -> None:
    """They were kept in one list once."""
    browser.open()
    browser.script(
        "localStorage.setItem('gguflow.conversations', JSON.stringify(['B', 'A'].map((title) => ("
        "{title, messages: [{role: 'user', content: title}]}))))"
    )
    for _ in range(2):
        browser.driver.refresh()
        browser.until(lambda: len(browser.all("#conversations .name")) == 2, "the conversations")
        assert [c.text for c in browser.all("#conversations .name")] == ["B", "A"]
    assert browser.script("return localStorage.getItem('gguflow.conversations')") is None
    assert not browser.errors()


@real
def test_what_a_model_writes_is_text(browser: Browser) -> None:
    """Markdown becomes elements; markup, scripts and odd links in it stay text."""
    browser.open()
    text = (
        "# Title\n\nSome **bold** and *slanted* and `code`.\n\n```python\nprint('<b>')\n```\n\n"
        "- one\n- two\n\n1. first\n2. second\n\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "<img src=x onerror=alert(1)><script>window.bad = 1</script>\n\n"
        "[fine](https://example.com/) [bad](javascript:alert(1))"
    )
    browser.driver.execute_script(
        "localStorage.setItem('gguflow.conversations', JSON.stringify([{id: '1', title: '<b>t</b>',"
        " messages: [{role: 'user', content: '<i>hi</i>'},"
        " {role: 'assistant', content: arguments[0]}]}]))",
        text,
    )
    browser.driver.refresh()
    browser.until(lambda: len(browser.all(".message")) == 2, "messages")
    body = ".message.assistant .body"
    for selector in (
        "h1",
        "strong",
        "em",
        "p > code",
        "pre code",
        "ul li",
        "ol li",
        "blockquote",
        "td",
    ):
        assert browser.all(f"{body} {selector}"), selector
    assert browser.one(f"{body} pre code").text == "print('<b>')"
    assert not browser.all(f"{body} img") and not browser.all(f"{body} script")
    assert "<img src=x onerror=alert(1)>" in browser.one(body).text
    links = [a.get_attribute("href") for a in browser.all(f"{body} a")]
    assert links == ["https://example.com/"]
    assert browser.all(".message.user .body")[0].text == "<i>hi</i>"
    assert browser.script("return window.bad") is None and not browser.errors()
    browser.picture("markdown")


@real
def test_live(browser: Browser) -> None:
    """Numbers, the batch, time by op, memory, and a request's timeline."""
    browser.open(view="live")
    browser.until(lambda: browser.all("#numbers b"), "numbers")
    body = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True, "n": 5}
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(browser.server.post, "/v1/completions", body) for _ in range(2)]
        browser.until(lambda: len(browser.all("#batch tbody tr")) >= 4, "sequences")
        browser.one("#measure").click()
        browser.until(lambda: len(browser.all("#ops tbody tr")) >= 3, "ops")
        browser.picture("live")
        assert all(w.result()[0] == 200 for w in work)
    assert "mul_mat" in browser.one("#ops").text
    assert browser.one("#ops canvas").size["height"] > 200
    browser.script("document.querySelector('#ops canvas').scrollIntoView()")
    browser.picture("roofline")
    browser.one("#card-ops select").send_keys("by layer")
    browser.until(lambda: "blk.0" in browser.one("#ops").text, "layers")
    browser.until(lambda: "MiB" in browser.one("#memory").text, "memory")
    browser.until(lambda: browser.all("#requests tbody tr"), "requests")
    browser.script("document.querySelector('#requests tbody tr').click()")
    browser.until(lambda: browser.all("#timeline canvas"), "a timeline")
    browser.script("document.querySelector('#timeline').scrollIntoView()")
    browser.picture("live-below")
    browser.one("#tab-chat").click()
    assert browser.one("#input").is_displayed() and not browser.errors()


@real
def test_a_phone(browser: Browser) -> None:
    browser.open(width=400, height=780)
    browser.say("Once")
    browser.answered(2)
    wide = browser.script("return document.documentElement.scrollWidth > innerWidth")
    assert not wide and not browser.one("#side").is_displayed()
    browser.picture("phone")
    browser.one("#menu").click()
    assert browser.one("#side").is_displayed()
    browser.one("#tab-live").click()
    browser.until(lambda: browser.all("#numbers b"), "numbers")
    assert not browser.script("return document.documentElement.scrollWidth > innerWidth")
    browser.picture("phone-live")


@real
def test_a_server_with_keys(browser: Browser) -> None:
    """A browser asks for the key once, as a password, and sends it with what the page asks for."""
    server = Running(keys=frozenset(("secret",)))
    keyed = Browser(browser.driver, server)
    try:
        browser.driver.get(server.url)
        assert not keyed.all("#model")
        browser.driver.get(server.url.replace("//", "//x:secret@") + "/")
        keyed.driver.get_log("browser")
        browser.driver.get(server.url)
        keyed.until(lambda: keyed.all("#model option"), "models")
        keyed.script("localStorage.setItem('gguflow.settings', '{\"max_tokens\": 5}')")
        browser.driver.refresh()
        keyed.until(lambda: keyed.all("#model option"), "models")
        keyed.say("Once")
        assert len(keyed.answered(2)) == 2 and not keyed.all(".message.failed")
        assert not keyed.errors()
    finally:
        browser.driver.get("about:blank")
        server.stop()


@real
def test_a_page_of_another_machine(browser: Browser) -> None:
    """Over plain http, where browsers keep the clipboard and more to themselves."""
    driver, server = browser.driver, browser.server
    driver.get(f"http://another.example:{server.port}/")
    assert not browser.script("return isSecureContext")
    browser.until(lambda: browser.all("#model option"), "models")
    browser.script("localStorage.setItem('gguflow.settings', '{\"max_tokens\": 5}')")
    driver.refresh()
    browser.until(lambda: browser.all("#model option"), "models")
    browser.say("Once")
    assert len(browser.answered(2)) == 2
    browser.all(".message.user .foot button")[0].click()
    browser.one("#input").send_keys(Keys.CONTROL, "v")
    assert browser.one("#input").get_attribute("value") == "Once" and not browser.errors()


@real
def test_errors_are_shown(browser: Browser) -> None:
    browser.open()
    browser.one("#input").send_keys("x")
    browser.script(
        "const i = document.querySelector('#input'); i.value = 'word '.repeat(20000);"
        "document.querySelector('#composer').requestSubmit()"
    )
    browser.until(lambda: browser.all(".message.failed"), "the error")
    assert "context" in browser.one(".message.failed .body").text
    browser.driver.get_log("browser")  # the 400 is in the console


@real
def test_thoughts_stand_apart(browser: Browser) -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{{ '<think>' }}"
    spec = ModelSpec("thinker", Path(bundled_model()), OPTIONS, template)
    server = Running([spec], reasoning_budget=5)
    try:
        thinker = Browser(browser.driver, server)
        thinker.open()
        thinker.say("Once upon a time")
        text = thinker.answered(2)[1]
        thought = thinker.one(".message .thought")
        assert not thought.get_attribute("open") and "think>" not in text
        thinker.one(".message .thought summary").click()
        assert thinker.one(".message .thought div").text and thinker.one(".message p").text
        thinker.picture("thoughts")
        assert not thinker.errors()
    finally:
        browser.driver.get("about:blank")
        server.stop()
