"""The page in a real browser: headless Chromium, driven through Debian's chromedriver.

    page_test.py [--upstream http://localhost:8000] [--screenshots FOLDER]

With --upstream the page's files come from that server, as it sends them; without, from the source folder. Replies are
canned in both cases, except that with --upstream one conversation goes through the server itself.
"""
import argparse
import base64
import json
import pathlib
import struct
import threading
import time
import zlib

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import canned_server
from canned_server import Handler

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}}}}]


class Page:
    def __init__(self, url, folder):
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.url = url
        self.taken = []
        self.resize(1280, 800)
        self.driver.get(url)

    def resize(self, width, height, dark=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition, what, seconds=60):
        WebDriverWait(self.driver, seconds, 0.05).until(lambda _: condition(), what)

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def busy(self):
        return self.one("#stop").is_displayed()

    def say(self, text, wait=True):
        box = self.one("#input")
        box.send_keys(text)
        box.send_keys(Keys.ENTER)
        if wait:
            self.wait(lambda: not self.busy() and self.all(".message.assistant"), f"the reply to {text!r}")

    def new_chat(self):
        ActionChains(self.driver).key_down(Keys.ALT).send_keys("n").key_up(Keys.ALT).perform()

    def last(self):
        return self.all(".message")[-1]

    def set(self, name, value):
        self.js("const f = document.forms['settings-form'].elements[arguments[0]]; f.value = arguments[1];"
                "f.dispatchEvent(new Event('input', {bubbles: true}));", name, value)

    def shot(self, name):
        path = self.folder / f"{name}.png"
        self.wait(lambda: self.js("return document.getAnimations().every(a => !(a instanceof CSSTransition))"),
                  "the end of all movement")
        self.driver.save_screenshot(str(path))
        self.taken.append(path)

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_markdown(page):
    page.new_chat()
    page.say("markdown please")
    content = page.last().find_element(By.CSS_SELECTOR, ".content")
    for selector, text in (("h3 code", "code"), ("strong", "bold"), ("em", "italic"), ("del", "gone"),
                           ("ol > li > ul > li em", "deeper"), ("blockquote blockquote", "within a quote"),
                           ("td.align-right", "1.5"), ("tbody tr:last-child td:last-child", "a | pipe"),
                           (".code-block figcaption span", "cpp")):
        found = content.find_element(By.CSS_SELECTOR, selector).text
        assert found == text, f"{selector}: {found!r}"
    links = [link.get_attribute("href") for link in content.find_elements(By.CSS_SELECTOR, "a")]
    assert links == ["https://example.org/a_(b)", "https://example.org/path?q=1"], links
    assert "<b>not bold</b>" in content.text and "snake_case_stays and 2 * 3 * 4 too. Done *escaped*." in content.text
    assert "128 of 200 prompt tokens cached" in page.last().text, page.last().text
    page.shot("wide-light-markdown")


def test_attack(page):
    page.new_chat()
    page.say("attack")
    time.sleep(0.3)
    assert page.js("return window.hacked") is None
    content = page.last().find_element(By.CSS_SELECTOR, ".content")
    assert not content.find_elements(By.CSS_SELECTOR, "script, img, iframe, svg, object, style")
    hrefs = [link.get_attribute("href") for link in content.find_elements(By.CSS_SELECTOR, "a")]
    assert all(href.startswith("https://example.org/") for href in hrefs), hrefs
    assert "<script>window.hacked = 1</script>" in content.text
    # What the user types and what titles hold is text as well.
    page.new_chat()
    page.say("<img src=x onerror='window.hacked = 10'>")
    assert page.js("return window.hacked") is None and "<img src=x" in page.one("#chats").text


def test_heavy(page):
    page.new_chat()
    start = time.time()
    page.say("heavy")
    assert page.js("return document.querySelector('.content').textContent.length") > 100000
    print(f"    hostile Markdown of 220 kB: {time.time() - start:.1f} s")


def test_thinking(page):
    page.new_chat()
    page.say("think about it", wait=False)
    page.wait(lambda: page.all(".thinking.open-ended"), "thinking shown live")
    page.wait(lambda: not page.busy(), "the reply")
    details = page.one(".thinking")
    assert not details.get_attribute("open") and "Thought for" in details.text, details.text
    details.find_element(By.CSS_SELECTOR, "summary").click()
    assert "weigh it" in details.text
    assert page.last().find_element(By.CSS_SELECTOR, ".content strong").text == "most likely"
    page.shot("wide-light-thinking")
    # The next request sends the thoughts back.
    page.say("plain")
    sent = Handler.requests[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"] and sent[1]["reasoning_content"]


def test_tools(page):
    page.new_chat()
    page.set("tools", "{broken")
    assert "Not a JSON list" in page.js("return document.getElementById('tools-error').textContent")
    page.set("tools", json.dumps(TOOLS))
    page.set("system", "Be brief.")
    page.set("temperature", "0.5")
    page.set("stop", "END\nSTOP")
    page.set("thinking", "disabled")
    page.say("tools")
    body = Handler.requests[-1]
    assert body["tools"] == TOOLS and body["temperature"] == 0.5 and body["stop"] == ["END", "STOP"], body
    assert body["thinking"] == {"type": "disabled"} and body["messages"][0] == {"role": "system", "content": "Be brief."}
    calls = page.all(".call")
    assert len(calls) == 2 and "get_weather" in calls[0].text and '"city": "Lisbon"' in calls[0].text
    page.shot("wide-light-tools")
    for call in calls:
        call.find_element(By.CSS_SELECTOR, "textarea").send_keys('{"sky": "clear"}')
    page.one(".calls button.primary").click()
    page.wait(lambda: not page.busy() and "sunny" in page.last().text, "the answer to the results")
    sent = Handler.requests[-1]["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "tool"]
    assert sent[2]["tool_calls"][1]["function"] == {"name": "get_time", "arguments": '{"zone": "UTC"}'}
    assert sent[3] == {"role": "tool", "tool_call_id": "call_0", "content": '{"sky": "clear"}'}
    page.one("#open-settings").click()
    page.shot("wide-light-settings")
    page.js("document.getElementById('reset-settings').click()")
    page.one("#close-settings").click()


def test_stop_and_regenerate(page):
    page.new_chat()
    page.say("endless", wait=False)
    page.wait(lambda: "line 5" in page.last().text, "some lines")
    page.one("#input").send_keys(Keys.ESCAPE)
    page.wait(lambda: not page.busy(), "the stop")
    assert "stopped" in page.last().text
    page.wait(lambda: Handler.requests[-1] == "gone", "the server to see that the client went")
    kept = len(page.all(".message"))
    ActionChains(page.driver).key_down(Keys.ALT).send_keys("r").key_up(Keys.ALT).perform()
    page.wait(page.busy, "the second try")
    assert len(page.all(".message")) == kept
    page.one("#stop").click()
    page.wait(lambda: not page.busy(), "the stop")


def test_edit(page):
    page.new_chat()
    page.say("first words")
    page.say("second words")
    page.js("document.querySelectorAll('.message.user footer button')[1].click()")
    assert page.one("#input").get_attribute("value") == "first words" and not page.all(".message")
    page.one("#input").send_keys(" changed", Keys.ENTER)
    page.wait(lambda: not page.busy() and len(page.all(".message")) == 2, "the reply")
    assert Handler.requests[-1]["messages"] == [{"role": "user", "content": "first words changed"}]


def picture(folder, name, color, size=(60, 40)):
    """A plain PNG."""
    width, height = size
    rows = b"".join(b"\0" + bytes(color) * width for _ in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path = folder / name
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


# A file as the clipboard or the mouse brings it.
GIVE = """
const [kind, target, base64, name] = arguments;
const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const transfer = new DataTransfer();
transfer.items.add(new File([bytes], name, {type: 'image/png'}));
const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true, cancelable: true})
  : new DragEvent('drop', {dataTransfer: transfer, bubbles: true, cancelable: true});
document.querySelector(target).dispatchEvent(event);
"""


def test_pictures(page, folder):
    page.new_chat()
    page.wait(lambda: page.one("#attach").is_enabled(), "the button for pictures")
    red, blue, green = (picture(folder, f"{name}.png", color) for name, color in
                        (("red", (220, 40, 40)), ("blue", (40, 60, 220)), ("green", (40, 160, 60))))
    encode = lambda path: base64.b64encode(path.read_bytes()).decode()
    url = lambda path: "data:image/png;base64," + encode(path)
    page.one("#files").send_keys(str(red))
    page.wait(lambda: len(page.all("#attachments img")) == 1, "the picture that was chosen")
    page.js(GIVE, "paste", "#input", encode(blue), "blue.png")
    page.wait(lambda: len(page.all("#attachments img")) == 2, "the picture that was pasted")
    page.js(GIVE, "drop", "#log", encode(green), "green.png")
    page.wait(lambda: len(page.all("#attachments img")) == 3, "the picture that was dropped")
    page.wait(lambda: page.js("return [...document.querySelectorAll('#attachments img')].every(i => i.naturalWidth === 60)"),
              "the pictures to show")
    page.shot("wide-light-attached")
    page.all(".attached-remove")[1].click()
    page.say("what are these")
    parts = Handler.requests[-1]["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"], parts
    assert [part["image_url"]["url"] for part in parts[:2]] == [url(red), url(green)] and not page.all("#attachments img")
    assert len(page.all(".message.user img.thumbnail")) == 2
    page.shot("wide-light-pictures")
    # Kept with the conversation, and sent again with what follows.
    page.driver.refresh()
    page.wait(lambda: page.all(".chat-open"), "the stored conversation")
    page.all(".chat-open")[0].click()
    assert len(page.all(".message.user img.thumbnail")) == 2
    page.say("and now")
    assert Handler.requests[-1]["messages"][0]["content"][0]["image_url"]["url"] == url(red)
    # Edited, the message has its pictures again.
    page.js("document.querySelectorAll('.message.user footer button')[1].click()")
    assert len(page.all("#attachments img")) == 2
    # A video.
    page.new_chat()
    clip = pathlib.Path(__file__).resolve().parents[1] / "data/vision/videos/vp9.webm"
    page.one("#files").send_keys(str(clip))
    page.wait(lambda: "vp9.webm" in page.one("#attachments").text, "the video")
    page.say("what moves")
    parts = Handler.requests[-1]["messages"][-1]["content"]
    assert parts[0] == {"type": "video_url", "video_url": {"url": "data:video/webm;base64," + encode(clip)}}, parts
    assert "vp9.webm" in page.one(".message.user .thumbnail").text
    # A large one is made smaller before it is sent.
    page.new_chat()
    noise = folder / "noise.png"
    page.js("""const c = document.createElement('canvas'); c.width = 3000; c.height = 1000;
      const x = c.getContext('2d'), d = x.createImageData(3000, 1000);
      for (let i = 0; i < d.data.length; i += 4) { d.data[i] = Math.random() * 256;
        d.data[i+1] = Math.random() * 256; d.data[i+2] = i; d.data[i+3] = 255; } x.putImageData(d, 0, 0); window.noise = c.toDataURL();""")
    noise.write_bytes(base64.b64decode(page.js("return window.noise").split(",")[1]))
    assert noise.stat().st_size > 1_500_000
    page.one("#files").send_keys(str(noise))
    page.wait(lambda: page.all("#attachments img"), "the large picture")
    page.wait(lambda: page.js("return document.querySelector('#attachments img').naturalWidth") == 2016, "its size")
    # What the storage has no room for is not lost from the page, and the conversation stays.
    page.js("localStorage.setItem('filler', 'x'.repeat(4500000))")
    page.say("large")
    assert "without all of its pictures" in page.one("#notice").text, page.one("#notice").text
    assert page.all(".message.user img.thumbnail")
    page.js("localStorage.removeItem('filler')")
    # A model that takes none.
    Handler.sees = False
    page.wait(lambda: not page.one("#attach").is_enabled(), "the button to be off")
    assert "takes no pictures" in page.one("#attach").get_attribute("title")
    page.new_chat()
    page.js(GIVE, "paste", "#input", encode(blue), "blue.png")
    page.wait(lambda: "takes no pictures" in page.one("#notice").text, "the reason")
    assert not page.all("#attachments img")
    Handler.sees = True


def test_errors(page):
    page.new_chat()
    page.say("error")
    assert "temperature: 9 is out of range" in page.one(".error").text and "canned-1" in page.one(".error").text
    page.shot("wide-light-error")
    page.say("plain")
    assert [m["role"] for m in Handler.requests[-1]["messages"]] == ["user", "user"]
    page.say("cut")
    assert "was complete" in page.all(".error")[-1].text and "This ends ear" in page.last().text
    page.say("long")
    assert "cut at the token limit" in page.last().text
    page.complaints()  # the refused request itself is logged by the browser


def test_stored(page):
    page.new_chat()
    page.say("remember me")
    page.driver.refresh()
    page.wait(lambda: any("remember me" in chat.text for chat in page.all(".chat")), "the stored conversation")
    page.all(".chat-open")[0].click()
    assert "A plain answer." in page.last().text
    before = len(page.all(".chat"))
    button = page.all(".chat-delete")[0]
    ActionChains(page.driver).move_to_element(button).click().perform()
    assert len(page.all(".chat")) == before and button.text == "Delete?"
    button.click()
    page.wait(lambda: len(page.all(".chat")) == before - 1 and not page.all(".message"), "the conversation to go")


def test_export(page, folder):
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    page.new_chat()
    page.say("markdown export")
    for kind in ("markdown", "json"):
        page.one("#export").click()
        page.one(f"#export-{kind}").click()
    page.wait(lambda: len(list(folder.glob("markdown-export.*"))) >= 2 and not list(folder.glob("*.crdownload")), "files")
    assert "## Assistant" in (folder / "markdown-export.md").read_text()
    stored = json.loads((folder / "markdown-export.json").read_text())
    assert stored["request"]["messages"][0] == {"role": "user", "content": "markdown export"}, stored


def test_key(page):
    Handler.key = "sesame"
    page.driver.refresh()
    page.wait(lambda: page.one("#key-dialog").is_displayed(), "the question for a key")
    page.shot("wide-light-key")
    page.one("#key-input").send_keys("sesame", Keys.ENTER)
    page.wait(lambda: page.one("#panel-running").text == "2", "the panel with the key")
    page.say("plain")
    assert "A plain answer." in page.last().text
    Handler.key = None
    page.complaints()  # the 401s


def test_loading(page):
    Handler.loading_until = time.time() + 2
    page.driver.refresh()
    page.wait(lambda: "loading" in page.one("#notice").text, "the loading notice")
    page.wait(lambda: not page.one("#notice").is_displayed(), "the end of loading")


def test_looks(page):
    page.new_chat()
    page.wait(lambda: page.one("#panel-rate").text not in ("–", "0"), "a rate")
    page.shot("wide-light-empty")
    page.say("markdown")
    for dark in (False, True):
        tone = "dark" if dark else "light"
        page.resize(1280, 800, dark)
        page.shot(f"wide-{tone}-chat")
        page.one("#open-settings").click()
        page.shot(f"wide-{tone}-chat-settings")
        page.one("#close-settings").click()
        page.resize(390, 844, dark)
        time.sleep(0.3)
        page.shot(f"narrow-{tone}-chat")
        page.one("#menu").click()
        time.sleep(0.3)
        page.shot(f"narrow-{tone}-menu")
        page.one("#input").send_keys(Keys.ESCAPE)
        page.one("#open-settings").click()
        page.shot(f"narrow-{tone}-settings")
        page.one("#close-settings").click()
        assert page.js("return document.documentElement.scrollWidth") <= 390, "the narrow page scrolls sideways"
    page.resize(1280, 800, True)
    page.new_chat()
    page.say("think")
    page.one(".thinking summary").click()
    page.set("tools", json.dumps(TOOLS))
    page.say("tools")
    page.shot("wide-dark-tools")
    page.resize(390, 844, True)
    page.shot("narrow-dark-tools")
    page.js("document.getElementById('reset-settings').click()")
    page.resize(1280, 800)


def test_real(page, upstream, key):
    """A conversation with the model itself."""
    page.driver.get(upstream + "/")
    if key:
        page.wait(lambda: page.one("#key-dialog").is_displayed(), "the question for a key")
        page.complaints()  # the 401
        page.one("#key-input").send_keys(key, Keys.ENTER)
        page.wait(lambda: page.one("#panel-running").text == "0", "the panel with the key")
    page.new_chat()
    page.set("max_tokens", "60")
    page.set("temperature", "0")
    page.say("Tell me about the harbour.")
    text = page.last().text
    assert "tok/s" in text, text
    page.shot("wide-light-real")
    print("    the model said:", text[:160].replace("\n", " / "))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream")
    parser.add_argument("--key", default="", help="that the upstream server asks for")
    parser.add_argument("--screenshots", default="build/page-screenshots")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    server = canned_server.start(options.upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = pathlib.Path(options.screenshots).resolve()
    page = Page(f"http://127.0.0.1:{server.server_port}/", folder)
    tests = [test_markdown, test_attack, test_heavy, test_thinking, test_tools, test_stop_and_regenerate, test_edit,
             test_errors, test_stored, lambda p: test_export(p, folder), test_key, test_loading, test_looks,
             lambda p: test_pictures(p, folder)]
    names = [getattr(test, "__name__", "") for test in tests]
    names[9], names[13] = "test_export", "test_pictures"
    if options.upstream:
        tests.append(lambda p: test_real(p, options.upstream, options.key))
        names.append("test_real")
    failed = 0
    try:
        for name, test in zip(names, tests):
            if options.only not in name:
                continue
            try:
                test(page)
                complaints = page.complaints()
                assert not complaints, f"the browser complains: {complaints}"
                print(f"ok      {name}", flush=True)
            except Exception as problem:  # each test is told of; the rest still runs
                failed += 1
                page.shot(f"failed-{name}")
                line = problem.__traceback__
                while line.tb_next:
                    line = line.tb_next
                print(f"FAILED  {name}, line {line.tb_lineno}: {type(problem).__name__}: {problem}", flush=True)
    finally:
        page.driver.quit()
    print(f"{len(page.taken)} screenshots in {folder}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
