"""The page at `/` in a real Chromium, on the real server with the default model: chat, head map, themes, phone, errors."""

import json
import re
import signal

import pytest
import requests
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from kv_policy_server import make_typed
from page_browser import PHONE, Page, make_driver
from server_process import ROOT, TIMEOUT, ServerProcess
from tiny_model import SHIPPED_POLICY

from headwisekv import policy as policies

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

FOLDER = ROOT / "tools" / "server" / "page"
LONG = "Count from one to five hundred in words, one number on each line."


@pytest.fixture(scope="module")
def driver():
    driver = make_driver()
    yield driver
    driver.quit()


@pytest.fixture
def page(driver):
    """Whatever a test does: no error in the console but those of the network, and no request to another host."""
    page = Page(driver)
    yield page
    errors, foreign = page.errors(with_network=False), page.foreign_requests()
    page.leave()
    assert errors == []
    assert foreign == []


@pytest.fixture(scope="module")
def windowed(model, tmp_path_factory):
    """With the shipped policy, as `make run` serves it."""
    with ServerProcess(model, tmp_path_factory.mktemp("windowed") / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as process:
        yield process


KEY = "correct-horse"


@pytest.fixture(scope="module")
def guarded(model, tmp_path_factory):
    """Without a policy, with a key and a small context."""
    with ServerProcess(model, tmp_path_factory.mktemp("guarded") / "log", "--api-key", KEY, ctx=512) as process:
        yield process


ENTRIES = ("256:q4_0", "256:q8_0", "1024:q8_0", "1024:f16", "4096:q8_0/q4_0", "full:q8_0")  # and full:f16, which no head has


@pytest.fixture(scope="module")
def typed(model, tmp_path_factory):
    """Heads with cache types of their own."""
    folder = tmp_path_factory.mktemp("typed")
    policy = make_typed(folder, model, ENTRIES, 8192)
    with ServerProcess(model, folder / "log", "--kv-policy", str(policy), ctx=8192) as process:
        process.policy = json.loads(policy.read_text())
        yield process


@pytest.fixture(scope="module")
def policy():
    policy = json.loads(SHIPPED_POLICY.read_text())
    policy["point"] = next(point for point in policy["operating_points"] if point["name"] == policy["selected"])
    return policy


@pytest.fixture
def ready(page, windowed):
    page.open(windowed.url)
    page.wait_state("ready")
    return page


#
# how it comes to the browser
#


def test_every_file_is_served_as_it_is_in_the_tree(windowed):
    index = requests.get(windowed.url + "/", headers={"Accept-Encoding": ""}, timeout=TIMEOUT)  # curl asks for no gzip either
    assert index.headers["Content-Type"].startswith("text/html") and index.headers["Cache-Control"] == "no-cache"
    folder = re.search(r'"(assets-[0-9a-f]{12})/', index.text).group(1)
    assert index.text == (FOLDER / "index.html").read_text().replace('"assets/', f'"{folder}/')
    files = sorted((FOLDER / "assets").iterdir())
    assert len(files) > 10
    for file in files:
        answer = requests.get(f"{windowed.url}/{folder}/{file.name}", timeout=TIMEOUT)
        assert answer.status_code == 200 and answer.content == file.read_bytes(), file.name
    assert requests.get(windowed.url + "/sw.js", timeout=TIMEOUT).content == (FOLDER / "sw.js").read_bytes()


def test_page_loads_without_an_error(ready):
    ready.wait(lambda: ready.text("#memory"), "the memory card")
    assert ready.errors() == []
    assert ready.text("#model") == "SmolLM2-135M-Instruct.Q4_1"
    assert ready.text("#welcome h2") and len(ready.all(".example")) == 3
    assert ready.text("#notice") == "" and ready.text("#key-form") == ""
    ready.screenshot("welcome")


#
# chat
#


def test_answer_streams_in_and_the_next_one_reuses_it(ready):
    ready.script("""
        window.lengths = [];
        new MutationObserver(() => window.lengths.push(document.querySelector('.turn.assistant .body')?.textContent.length ?? 0))
            .observe(document.getElementById('turns'), { childList: true, subtree: true, characterData: true });""")
    ready.ask("Why is the sky blue?", 32)
    answer = ready.answered()
    grown = sorted(set(ready.script("return window.lengths")) - {0})
    assert len(grown) > 3 and len(answer.split()) > 8
    stats = ready.text(".turn.assistant .stats")
    assert re.fullmatch(r"\d+ tokens \u00b7 [\d.]+ tokens/s \u00b7 prompt: \d+ reused, \d+ processed", stats)

    ready.ask("And at night?", 16)
    ready.answered()
    n_reused = int(re.search(r"(\d+) reused", ready.text(".turn.assistant .stats")).group(1))
    assert n_reused > 32
    used = int(re.match(r"Context: (\d+) of 8,192 tokens", ready.text("#context")).group(1))
    assert used > n_reused

    # it is there again after a reload, and gone after a click
    ready.driver.refresh()
    ready.wait_state("ready")
    assert [turn.get_attribute("class") for turn in ready.all(".turn")] == ["turn user", "turn assistant"] * 2
    assert ready.script("return document.querySelector('.turn.assistant .body').innerText.trim()") == answer
    ready.one("#new-chat").click()
    assert ready.all(".turn") == [] and ready.text("#welcome h2")
    assert ready.script("return localStorage.getItem('hwkv.chat')") == "[]"


def test_settings_are_sent(ready):
    ready.script("""
        window.sent = [];
        const real = fetch;
        window.fetch = (to, how) => { if (how.body) sent.push(JSON.parse(how.body)); return real(to, how); };""")
    ready.one("#settings summary").click()
    ready.one("#system").send_keys("Answer with one word.")
    ready.ask("Which animal says meow?", 3)
    ready.answered()
    sent, = ready.script("return window.sent")
    assert sent["messages"] == [{"role": "system", "content": "Answer with one word."}, {"role": "user", "content": "Which animal says meow?"}]
    assert (sent["temperature"], sent["max_tokens"], sent["stream"]) == (0, 3, True)
    assert "limit of tokens" in ready.text(".turn.assistant .note")


def test_stop_ends_the_answer_on_both_sides(ready, windowed):
    ready.ask(LONG, 4000)
    ready.wait(lambda: ready.text(".turn.assistant .body"), "the first words")
    ready.one("#prompt").send_keys(Keys.ESCAPE)
    ready.answered()
    assert ready.text(".turn.assistant .note") == "Stopped."
    ready.wait(lambda: not windowed.get("/slots").json()[0]["is_processing"], "the slot to be free")
    ready.ask("Say hello.", 4)
    assert ready.answered()


def test_shift_enter_is_a_new_line_and_a_question_can_be_edited(ready):
    ready.one("#prompt").send_keys("one", Keys.SHIFT + Keys.ENTER)
    ready.ask("two", 4)
    ready.answered()
    assert ready.text(".turn.user .body") == "one\ntwo"
    ready.one(".turn.user button[aria-label^=Edit]").click()
    assert ready.all(".turn") == [] and ready.one("#prompt").get_property("value") == "one\ntwo"


EVIL = """<img src=x onerror=alert(1)> <script>alert(2)</script>

**bold** and `<b>code</b>`

- one
- two
    - inner

```html
<i>x</i>
```
[a](javascript:alert(3))"""


def test_markdown_is_drawn_and_never_trusted(page, windowed):
    chat = json.dumps([{"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}])
    page.open(windowed.url, before=f"localStorage.setItem('hwkv.chat', {json.dumps(chat)})")
    page.wait_state("ready")
    body = page.one(".turn.assistant .body")
    assert page.all(".turn img, .turn script, .turn a, .turn b, .turn i") == []
    assert body.find_element(By.CSS_SELECTOR, "strong").text == "bold"
    assert body.find_element(By.CSS_SELECTOR, "p code").text == "<b>code</b>"
    assert [item.text for item in body.find_elements(By.CSS_SELECTOR, "ul ul li")] == ["inner"]
    assert body.find_element(By.CSS_SELECTOR, "pre code").text == "<i>x</i>"
    assert "<img src=x onerror=alert(1)>" in body.text
    assert page.text(".turn.user .body") == EVIL
    assert page.errors() == []
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    page.one(".code button").click()
    page.wait(lambda: page.text(".code button") == "Copied", "the copy")
    assert page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])") == "<i>x</i>"


#
# what is shown of the cache
#


def luminance(color):
    return sum(weight * int(value) for weight, value in zip((0.2126, 0.7152, 0.0722), re.findall(r"\d+", color)))


def test_map_has_a_cell_for_each_head_in_the_colour_of_its_window(ready, policy):
    ready.wait(lambda: ready.all("#map .cell"), "the map")
    shown = ready.script("""return [...document.querySelectorAll('#map .cell')]
        .map(cell => [+cell.dataset.layer, +cell.dataset.head, cell.dataset.window, getComputedStyle(cell).backgroundColor])""")
    layers = [layer["layer"] for layer in policy["model"]["layers"]]
    expected = {(il, ih): str(window) for il, row in zip(layers, policies.matrix(policy["point"])) for ih, window in enumerate(row)}
    assert len(shown) == len(expected) == 90
    assert {(il, ih): window for il, ih, window, _ in shown} == expected

    legend = dict(ready.script("""return [...document.querySelectorAll('#legend li')]
        .map(item => [item.dataset.window, getComputedStyle(item.querySelector('.swatch')).backgroundColor])"""))
    assert list(legend) == [str(window) for window in policy["codebook"]]
    assert all(color == legend[window] for _, _, window, color in shown)
    brightness = [luminance(color) for color in legend.values()]  # ordered, so that eyes that see no hue can tell
    assert brightness == sorted(brightness) and min(b - a for a, b in zip(brightness, brightness[1:])) > 15


def test_heads_with_types_have_the_colour_of_the_window_and_a_mark(page, typed):
    page.open(typed.url)
    page.wait(lambda: page.all("#map .cell"), "the map")
    shown = page.script("""return [...document.querySelectorAll('#map .cell')].map(cell => [cell.dataset.window, cell.dataset.types, cell.textContent,
        getComputedStyle(cell).backgroundColor, cell.ariaLabel])""")
    spelled = [entry for column in zip(*policies.matrix(typed.policy["operating_points"][0])) for entry in column]  # head by head
    assert [f"{window}:{types}" for window, types, *_ in shown] == spelled
    marks = {"q4_0": ".", "q8_0": ":", "f16": "", "q8_0/q4_0": "*"}
    assert all(text == marks[types] for _, types, text, *_ in shown)
    colors = {(window, color) for window, _, _, color, _ in shown}
    assert len(colors) == len(dict(colors)) == 4  # one for each window, whatever the types
    assert all(f"window {'full' if window == 'full' else f'{int(window):,}'} {types}" in label for window, types, _, _, label in shown)

    names = {entry: f"{entry.split(':')[0] if entry[0] == 'f' else format(int(entry.split(':')[0]), ',')} {entry.split(':')[1]}" for entry in (*ENTRIES, "full:f16")}
    assert sorted(item.text.split("\n")[-1] for item in page.all("#legend li")) == sorted(names.values())
    assert "window " in page.text("#detail") and any(f"window {names[spelled[0]]}" in line for line in page.text("#detail").split("\n"))
    assert sorted(meter.get_attribute("aria-label") for meter in page.all("#fill [role=meter]")) == sorted(f"Cells in use, window {names[entry]}" for entry in ENTRIES)
    assert max(name.size["height"] for name in page.all("#fill .name")) < 25  # one line each
    parts = [piece.get_attribute("title").split(":")[0] for piece in page.all("#memory-bars .piece:not(.whole)")]
    assert sorted(parts) == sorted(f"window {names[entry]}" for entry in ENTRIES)
    page.screenshot("typed")


def check_detail(page, policy, layers, il, ih):
    detail = page.text("#detail")
    window = policies.matrix(policy["point"])[il][ih]
    assert f"Layer {il}, KV head {ih}" in detail and "window " + (window if window == "full" else f"{window:,}") in detail
    for score in policies.scores(policy, policy["point"])[il][ih]:
        assert f"{score:.4f}" in detail
    assert f"{layers[il]['bytes'][ih] / 2**20:.2f} MiB" in detail


def test_pointer_and_keys_show_scores_and_bytes(ready, windowed, policy):
    layers = windowed.get("/props").json()["kv_policy"]["layers"]
    ready.wait(lambda: ready.all("#map .cell"), "the map")
    ActionChains(ready.driver).move_to_element(ready.one(".cell[data-layer='12'][data-head='1']")).perform()
    check_detail(ready, policy, layers, 12, 1)

    ready.script("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    ActionChains(ready.driver).send_keys(*[Keys.ARROW_RIGHT] * 3, *[Keys.ARROW_DOWN] * 2, Keys.ARROW_LEFT).perform()
    check_detail(ready, policy, layers, 2, 2)
    label = ready.driver.switch_to.active_element.get_attribute("aria-label")
    assert label.startswith("Layer 2, KV head 2: window ") and f"{policies.scores(policy, policy['point'])[2][2][0]:.4f}" in label
    assert len(ready.all(".cell[tabindex='0']")) == 1  # Tab comes back to where it was
    ActionChains(ready.driver).send_keys(Keys.END, Keys.ARROW_RIGHT, Keys.ARROW_DOWN).perform()  # no further
    check_detail(ready, policy, layers, 29, 2)


def mib(n):
    return f"{n / 2**20:.1f} MiB"


def test_memory_is_what_the_server_says(ready, windowed):
    told = windowed.get("/props").json()["kv_policy"]
    shown = ready.text("#memory")
    assert mib(told["bytes"]) in shown and mib(told["bytes_plain"]) in shown and mib(told["bytes_saved"]) in shown
    assert f"{100 * told['bytes_saved'] / told['bytes_plain']:.1f}%" in shown
    assert f"context checkpoints up to {mib(told['checkpoint_bytes_max'])}, saved prompts up to {mib(told['saved_prompt_bytes_max'])}" in shown
    widths = ready.script("return [...document.querySelectorAll('#memory .bar:nth-child(2) .piece')].map(piece => parseFloat(piece.style.width))")
    assert len(widths) == len(told["groups"]) and sum(widths) == pytest.approx(100 * told["bytes"] / told["bytes_plain"], abs=0.1)


def test_fill_and_reuse_follow_the_server(ready, windowed):
    def matches():
        told, = (slot["kv_policy"] for slot in windowed.get("/slots").json())
        fill = {str(group["window"]): str(group["n_cells_used"]) for group in told["groups"]}
        counters = [f"{told['prompt_tokens'][name]:,}" for name in ("reused", "restored", "reprocessed")]
        shown, tiles = ready.script("""return [
            Object.fromEntries([...document.querySelectorAll('#fill [role=meter]')].map(meter => [meter.dataset.window, meter.ariaValueNow])),
            [...document.querySelectorAll('#reuse .tile dd:not(.small)')].map(tile => tile.textContent)]""")
        return fill == shown and counters == tiles and max(map(int, shown.values())) > 120

    ready.set("#prompt", "Say hello to each of these words: " + "word " * 120)
    ready.ask("", 4)
    ready.answered()
    ready.wait(matches, "what the server says")
    ready.screenshot("filled")


def test_nobody_asks_while_nobody_looks(ready):
    ready.script("""
        window.asked = 0;
        const real = fetch;
        window.fetch = (...args) => { window.asked++; return real(...args); };
        window.look = hidden => {
            Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event('visibilitychange'));
        };""")
    ready.wait(lambda: ready.script("return window.asked"), "a poll")
    ready.script("look(true); setTimeout(() => { window.before = window.asked; }, 200); setTimeout(() => { window.after = window.asked; }, 2000)")
    ready.wait(lambda: ready.script("return window.after"), "almost two periods")
    assert ready.script("return window.after - window.before") == 0
    ready.script("look(false)")
    ready.wait(lambda: ready.script("return window.asked > window.after"), "the next poll")


#
# themes, phone, contrast
#

CONTRAST = """
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const parse = text => text.match(/[\\d.]+/g).map(Number);
const behind = node => {
    for (; node; node = node.parentElement) {
        const color = parse(getComputedStyle(node).backgroundColor);
        if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
};
const poor = [];
for (const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); walker.nextNode();) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !node.checkVisibility() || node.closest('.sr, :disabled, noscript, script')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push([ratio.toFixed(2), node.className, walker.currentNode.data.trim().slice(0, 40)]);
}
return poor;
"""


def test_both_themes_can_be_read_and_the_choice_is_kept(page, windowed):
    page.open(windowed.url, dark=True)
    page.wait_state("ready")
    page.ask("Write a Python function that adds two numbers.", 30)
    page.answered()
    dark = page.style(page.one("body"), "backgroundColor")
    page.screenshot("dark")
    assert page.script(CONTRAST) == []
    page.one("#theme").click()
    light = page.style(page.one("body"), "backgroundColor")
    page.screenshot("light")
    assert page.script(CONTRAST) == []
    assert luminance(dark) < 40 and luminance(light) > 215
    page.driver.refresh()
    page.wait_state("ready")
    assert page.style(page.one("body"), "backgroundColor") == light
    assert "dark" in page.one("#theme").get_attribute("aria-label")


def test_phone_has_both_views_and_no_sideways_scrolling(page, windowed):
    page.open(windowed.url, size=PHONE)
    page.wait_state("ready")

    def fits():
        # what sticks out: not counting what scrolls inside a box of its own
        assert page.script("return document.documentElement.scrollWidth") == PHONE[0]
        return page.script("""return [...document.querySelectorAll('body *')]
            .filter(node => node.checkVisibility() && !node.closest('.sr, .skip, pre, .map-scroll'))
            .filter(node => node.getBoundingClientRect().right > innerWidth + 0.5).map(node => node.outerHTML.slice(0, 80))""")

    page.screenshot("phone-welcome")
    assert fits() == []
    page.ask("What is a map? " + "wide" * 40, 8)
    page.answered()
    page.one("#settings summary").click()
    assert fits() == []
    assert not page.one("#panels").is_displayed()
    page.one(".views [data-view=panels]").click()
    assert page.one("#map").is_displayed() and not page.one("#prompt").is_displayed()
    page.screenshot("phone-windows")
    assert fits() == []


def test_tab_reaches_everything_in_order(ready):
    ready.wait(lambda: ready.all("#map .cell"), "the map")
    ready.script("document.activeElement.blur()")
    reached = []
    while "cell" not in reached and len(reached) < 30:
        ActionChains(ready.driver).send_keys(Keys.TAB).perform()
        active = ready.driver.switch_to.active_element
        reached.append(active.get_attribute("id") or active.get_attribute("class").split(" ")[0] or active.tag_name)
        assert ready.script("return arguments[0].matches(':focus-visible')", active), reached
    wanted = ["skip", "theme", "messages", "example", "prompt", "send", "summary", "cell"]
    assert [name for name in dict.fromkeys(reached) if name in wanted] == wanted
    nameless = ready.script("""return [...document.querySelectorAll('button, input, textarea, [role=gridcell], [role=meter], progress')]
        .filter(node => !(node.getAttribute('aria-label') || node.textContent.trim() || node.labels?.length)).map(node => node.outerHTML)""")
    assert nameless == []


#
# what can go wrong
#


def test_key_is_asked_for_and_sent(page, guarded):
    page.open(guarded.url)
    page.wait_state("key needed")
    assert not page.all(".card:not([hidden])") and not page.one("#send").is_enabled() and page.text("#welcome") == ""
    page.one("#key").send_keys("wrong", Keys.ENTER)
    page.wait(lambda: "did not accept" in page.text("#key-error"), "the refusal")
    page.one("#key").send_keys(KEY, Keys.ENTER)
    page.wait_state("ready")
    page.ask("Say hello.", 4)
    assert page.answered() and page.text("#key-form") == ""
    assert KEY not in page.script("return JSON.stringify(localStorage)")
    page.driver.refresh()  # the tab remembers
    page.wait_state("ready")


def test_no_policy_is_said_and_the_chat_works(page, guarded):
    page.open(guarded.url, before=f"sessionStorage.setItem('hwkv.key', '{KEY}')")
    page.wait_state("ready")
    assert "No policy is in use" in page.text("#plain") and "512 tokens" in page.text("#plain")
    assert len([card for card in page.all(".card") if card.is_displayed()]) == 1
    assert len([example for example in page.all(".example") if example.is_displayed()]) == 2  # not the one about windows
    page.screenshot("no-policy")

    page.set("#prompt", "word " * 600)
    page.ask("", 4)
    page.answered()
    assert re.match(r"This conversation is too long: \d+ tokens, and the context has 512\.", page.text(".turn.assistant .note"))
    page.one("#new-chat").click()
    page.ask("Say hello.", 4)
    assert page.answered()


LOADING = """
const real = fetch;
let n = 0;
window.fetch = (to, how) => to === 'props' && !n++
    ? Promise.resolve(new Response('{"error": {"message": "Loading model", "code": 503}}', { status: 503 })) : real(to, how);"""


def test_loading_is_said_and_ends(page, windowed):
    page.open(windowed.url, before=LOADING)
    page.wait_state("loading")
    assert page.text("#notice").startswith("The model is loading.")
    page.wait_state("ready")
    assert page.text("#notice") == "" and page.text("#memory")


def test_server_that_dies_in_an_answer_is_said_and_comes_back(page, model, tmp_path):
    with ServerProcess(model, tmp_path / "log") as server:
        page.open(server.url)
        page.wait_state("ready")
        page.ask(LONG, 1500)
        page.wait(lambda: len(page.text(".turn.assistant .body")) > 20, "some words")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert len(page.answered()) > 20  # what was there stays
        assert page.text(".turn.assistant .note") == "No full answer: the server went away in the middle of the answer."
        page.wait_state("no answer")
        assert page.text("#notice") == "The server does not answer. Trying again every second."
        page.screenshot("gone")
        server.start()
        page.wait_state("ready")
        assert page.text("#notice") == ""
        page.ask("Say hello.", 4)
        assert page.answered()
