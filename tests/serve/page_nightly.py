"""The chat page in headless Chromium, as its users have it: streaming, stop, regenerate, edit, Markdown without HTML, the bar of the cache, keyboard,
errors, a phone's width, light and dark. Needs Debian's chromium and chromium-driver and the package selenium; part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... [OSCAR_SCREENSHOTS=FOLDER] python3 page_nightly.py
"""

import json
import os
import pathlib
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from serve_fixture import Server

SHOTS = pathlib.Path(os.environ["OSCAR_SCREENSHOTS"]) if "OSCAR_SCREENSHOTS" in os.environ else None
HOSTILE = """# Title

Some **bold**, *soft* and `code`, <script>window.hacked = 1</script> and <img src=x onerror="window.hacked = 2">.

1. one
2. two
   - inner

> quoted [bad](javascript:window.hacked=3) and [good](https://example.org/a)

| a | b |
|---|---|
| 1 | 2 |

```html
<script>window.hacked = 4</script>
```
"""


def browser(dark=False, width=1280, height=900):
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    # Windows cannot be narrower than about 500 px; what a page sees can.
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return driver


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--kv", "int2:hadamard", "-t", "1", "-c", "2048", "--model-id", "smol")
        cls.driver = browser()

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.server.stop()

    def setUp(self):
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)  # what earlier tests have seen
        self.driver.get(f"http://127.0.0.1:{self.server.port}/")
        self.wait(lambda: "smol" in self.find("#served").text)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, seconds=120):
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: condition())

    def set(self, selector, value):
        self.driver.execute_script("document.querySelector(arguments[0]).value = arguments[1]", selector, value)

    def ask(self, text, tokens=24):
        self.set("#max-tokens", str(tokens))
        self.set("#temperature", "0")
        self.find("#message").send_keys(text, Keys.ENTER)
        self.wait(lambda: self.find("#stop").is_displayed() or self.all("li.assistant .under button"))  # or it has ended already, perhaps with a problem

    def done(self):
        self.wait(lambda: self.find("#send").is_displayed() and not self.find("#stop").is_displayed())

    def shoot(self, driver, name):
        if SHOTS is not None:
            SHOTS.mkdir(parents=True, exist_ok=True)
            driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def test_text_grows_and_the_second_turn_comes_from_the_cache(self):
        self.ask("Tell me about the sea, in some detail.", tokens=60)
        lengths = set()
        while not self.find("#send").is_displayed():
            lengths.add(self.driver.execute_script("return document.querySelector('li.assistant .text')?.textContent.length || 0"))
        self.assertGreaterEqual(len(lengths), 3)
        self.ask("And the sky?", tokens=8)
        self.done()
        self.assertRegex(self.all("li.assistant")[1].find_element(By.CSS_SELECTOR, ".under span").text, r"[1-9]\d* of \d+ prompt tokens from the cache")
        self.shoot(self.driver, "two_turns_1280")

    def test_the_bar_is_the_last_report_and_shows_history(self):
        self.ask("word " * 420, tokens=30)
        self.done()
        cache = json.loads(self.find("#bar").get_attribute("data-cache"))
        self.assertGreater(cache["history_tokens"], 0)
        total = cache["sink_tokens"] + cache["history_tokens"] + cache["recent_tokens"]
        for name in ("sink", "history", "recent"):
            width = self.driver.execute_script("return document.querySelector('#bar .' + arguments[0]).getBoundingClientRect().width", name)
            whole = self.driver.execute_script("return document.querySelector('#bar').getBoundingClientRect().width")
            self.assertAlmostEqual(width / whole, cache[name + "_tokens"] / total, delta=0.01)
        self.assertIn(str(cache["history_tokens"]), self.find("#legend").text)
        self.assertIn("in 2 bits", self.find("#bar").get_attribute("aria-label"))
        self.shoot(self.driver, "history_1280")

    def test_stop_ends_the_answer_and_frees_its_place(self):
        self.ask("Write a very long story.", tokens=900)
        self.wait(lambda: self.driver.execute_script("return document.querySelector('li.assistant .text')?.textContent"))
        self.find("#stop").click()
        self.done()
        self.assertIn("stopped", self.find("li.assistant .under").text)
        self.ask("Hi", tokens=2)
        self.done()

    def test_regenerate_edit_and_new_chat(self):
        self.ask("Say one word.", tokens=5)
        self.done()
        first = self.find("li.assistant .text").text
        [button] = [b for b in self.all("li.assistant .under button") if b.text == "Regenerate"]
        button.click()
        self.done()
        self.assertEqual(self.find("li.assistant .text").text, first)  # greedy
        [button] = [b for b in self.all("li.user .under button") if b.text == "Edit"]
        button.click()
        self.assertEqual((self.find("#message").get_attribute("value"), self.all("#talk > li")), ("Say one word.", []))
        self.find("#message").send_keys(" Please.", Keys.ENTER)
        self.done()
        self.assertIn("Say one word. Please.", self.find("li.user .text").text)
        self.find("#new").click()
        self.assertEqual(self.all("#talk > li"), [])

    def test_text_of_a_model_never_becomes_html(self):
        self.driver.execute_script("turns.push({role: 'user', content: arguments[0]}, {role: 'assistant', content: arguments[0], note: ''}); showAll();", HOSTILE)
        self.assertIsNone(self.driver.execute_script("return window.hacked || null"))
        self.assertEqual(self.all("#talk script, #talk img"), [])
        self.assertEqual([a.get_attribute("href") for a in self.all("#talk a")], ["https://example.org/a"])
        answer = self.find("li.assistant .text")
        self.assertIn("<img src=x", answer.text)
        for tag in ("h3", "strong", "em", "code", "ol > li", "ul > li", "blockquote", "table td", "pre > code"):
            self.assertTrue(answer.find_elements(By.CSS_SELECTOR, tag), tag)
        self.shoot(self.driver, "markdown_1280")

    def test_the_keyboard_is_enough_and_everything_is_named(self):
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "message")
        self.ask("Count to a hundred.", tokens=500)
        self.wait(lambda: self.find("#stop").is_displayed())
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "stop")
        self.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
        self.done()
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("id"), "message")
        nameless = self.driver.execute_script(
            "return [...document.querySelectorAll('button,input,textarea')].filter(e => !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label'))).map(e => e.id)")
        self.assertEqual(nameless, [])
        self.assertEqual(self.driver.execute_script("return document.documentElement.lang"), "en")

    def test_nothing_failed_and_nobody_else_was_asked(self):
        self.ask("Hi", tokens=2)
        self.done()
        self.assertEqual([entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"], [])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.assertRegex(message["params"]["request"]["url"], r"^(http://127\.0\.0\.1:|data:|about:|chrome:)")

    def test_phones_and_darkness(self):
        for dark in (False, True):
            for width in (360, 1280):
                driver = browser(dark, width, 740)
                try:
                    driver.get(f"http://127.0.0.1:{self.server.port}/")
                    driver.execute_script("turns.push({role: 'user', content: 'Show me.'}, {role: 'assistant', content: arguments[0] + 'x'.repeat(200), note: '12 tokens'}); showAll();"
                                          "showCache({sink_tokens: 64, history_tokens: 900, recent_tokens: 300, cached_tokens: 512, bytes: 9e6, bytes_if_bf16: 29e6, saved_bytes: 20e6})", HOSTILE)
                    driver.find_element(By.ID, "settings-button").click()
                    wide = driver.execute_script("return document.documentElement.scrollWidth")
                    self.assertLessEqual(wide, width)
                    self.shoot(driver, f"all_{width}_{'dark' if dark else 'light'}")
                finally:
                    driver.quit()

    def test_a_missing_key_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("open-sesame\n")
            keys.flush()
            server = Server("--kv", "bf16", "-t", "1", "-c", "512", "--api-key-file", keys.name)
            try:
                self.driver.get(f"http://127.0.0.1:{server.port}/")
                self.wait(lambda: "key" in self.find("#served").text)
                self.ask("Hi", tokens=2)
                self.done()
                self.assertIn("A key is needed", self.find(".problem").text)
                self.find("#settings-button").click()
                self.find("#key").send_keys("open-sesame", Keys.TAB)
                self.wait(lambda: "context" in self.find("#served").text)
                [button] = [b for b in self.all(".under button") if b.text == "Retry"]
                button.click()
                self.done()
                self.assertEqual(self.all(".problem"), [])
            finally:
                server.stop()


if __name__ == "__main__":
    unittest.main()
