"""The page in headless Chromium, as a person uses it: send, stop, edit, answer again, reload, narrow screen, keyboard, machine.

test_page.py SCRIPTED docs STRATA MODEL DRAFT_LAYER takes the screenshots of docs/ instead."""
import json
import os
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
from harness import Server  # noqa: E402
from page import ANSWERED, Page  # noqa: E402
from tap import main, test  # noqa: E402

CODE = """Here is a **small** program:

```c
int main(void)
{
    return 0;
}
```

| layer | age |
|---|---|
| chalk | 80 million years |

1. one
2. a [link](https://example.org/x)
"""
EVIL = """<script>window.pwned = 1</script><img src=x onerror="window.pwned = 2"> <b onclick="window.pwned = 3" class="send" style="position:fixed">bold</b>
[bad](javascript:window.pwned=4) [data](data:text/html,<script>window.pwned=5</script>) <a href="vbscript:x" id="input">v</a>
<iframe src="https://example.org"></iframe><svg onload="window.pwned = 6"><style>*{display:none}</style></svg><form action="https://example.org"><input name=q></form>
![picture](https://example.org/p.png) <math><mtext><img src onerror=window.pwned=7></mtext></math> <details open ontoggle="window.pwned = 8">x</details>

`<script>window.pwned = 9</script>` the end of it
"""
SCRIPT = {"answers": [
    {"match": "program", "text": CODE, "token_us": 5000},
    {"match": "evil", "text": EVIL},
    {"match": "slow", "text": "word ", "repeat": 2000, "token_us": 1000},
    {"match": "think", "text": "<think>\nFirst I count the layers.\n</think>\n\nThere are **three** layers.", "token_us": 500},
    {"match": "break", "text": "this will not end well", "fail_after": 9},
]}


def with_page(script=None, args=(), **more):
    """Decorator: a server, a browser on its page, and at the end the check that nothing was blocked."""
    def decorate(function):
        def wrapped():
            with Server(script or SCRIPT, args) as s:
                p = Page(**more)
                try:
                    p.go(s.url)
                    function(s, p)
                    p.clean()
                finally:
                    p.close()
        wrapped.__name__ = function.__name__
        return wrapped
    return decorate


@test
@with_page()
def an_answer_streams_as_markdown(s, p):
    p.js("""window.seen = new Set();
        new MutationObserver(() => seen.add(document.querySelector('.message.live .markdown')?.innerText.length)).observe(
            document.body, {subtree: true, childList: true, characterData: true})""")
    p.say("write a program")
    text = p.answered(1)
    assert p.js("return seen.size") > 3, "it came in pieces"
    assert "Here is a small program" in text and "tok/s" in text, text
    assert p.text(".code pre") == "int main(void)\n{\n    return 0;\n}\n" or "return 0;" in p.text(".code pre")
    assert p.text(".code-head span") == "c" and p.count(".markdown table td") == 2 and p.count(".markdown ol li") == 2
    link = p.js("const a = document.querySelector('.markdown a'); return [a.href, a.target, a.rel]")
    assert link[0] == "https://example.org/x" and link[1] == "_blank" and "noopener" in link[2], link
    p.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"], origin=s.url)
    p.click("[aria-label='Copy code']")
    copied = p.wait("the copied code", "return navigator.clipboard.readText()")
    assert copied == "int main(void)\n{\n    return 0;\n}", copied


@test
@with_page()
def thoughts_are_folded(s, p):
    p.say("think")
    assert p.answered(1).split()[:4] == ["Thoughts", "There", "are", "three"]
    folded = "return document.querySelector('.thinking-text').checkVisibility()"
    assert not p.js(folded) and not p.js("return document.querySelector('.thinking').open")
    p.click(".thinking summary")
    assert "First I count the layers." in p.text(".thinking-text")
    p.say("hello")
    p.answered(2)
    assert s.json("/v1/status")["past"][0]["prompt_tokens"] < 150, "thoughts are not sent back"


@test
@with_page()
def what_a_model_writes_cannot_act(s, p):
    p.say("evil")
    text = p.answered(1)
    time.sleep(0.3)
    assert p.js("return window.pwned") is None
    assert "the end of it" in text and "<iframe src=" in text, "what it wrote is shown as text"
    inside = p.js("""const m = document.querySelector('.message.assistant .markdown');
        return [...m.querySelectorAll('*')].flatMap(e => [e.tagName, ...[...e.attributes].map(a => `${a.name}=${a.value}`)])""")
    for word in inside:
        assert word not in ("SCRIPT", "IMG", "IFRAME", "SVG", "STYLE", "FORM", "INPUT", "MATH", "DETAILS"), word
        assert not word.startswith(("on", "style=", "id=")) and "javascript:" not in word and "data:" not in word and word != "class=send", word


@test
@with_page()
def stop_keeps_what_came_and_frees_the_model(s, p):
    p.say("slow")
    p.wait("some words", "return document.querySelector('.message.live .markdown')?.innerText.length > 30")
    p.keys("escape")
    text = p.answered(1)
    assert text.startswith("word word") and "stopped" in text, text
    s.wait_idle()
    assert s.json("/v1/status")["past"][0]["finish"] == "cancelled"
    p.say("slow again")
    p.wait("it runs", "return document.querySelector('.send.stop')")
    p.click(".send.stop")
    assert "stopped" in p.answered(2)
    p.say("program")
    p.answered(3)


@test
@with_page()
def a_message_can_be_edited_and_an_answer_made_again(s, p):
    p.say("first words")
    assert "first words" in p.answered(1)
    p.say("second words")
    p.answered(2)
    p.click(".message.user [aria-label='Edit message']")
    p.js("document.querySelector('.edit').value = ''")
    p.type(".edit", "other words")
    p.keys("enter")
    p.wait("the edited talk", "return document.querySelectorAll('.message').length === 2")
    assert "other words" in p.answered(1)
    before = s.json("/v1/status")["past"][0]["id"]
    p.click(".message.assistant [aria-label='Answer again']")
    p.wait("a new answer", "return !document.querySelector('.message.live')")
    assert "other words" in p.answered(1)
    s.wait_idle()
    assert s.json("/v1/status")["past"][0]["id"] == before + 1
    p.js("document.querySelector('#input').focus()")
    p.keys("up")
    p.wait("the last message is edited", "return document.querySelector('.edit')?.value === 'other words'")
    p.keys("escape")
    assert p.count(".edit") == 0


@test
@with_page()
def conversations_stay_over_a_reload(s, p):
    p.say("about rivers")
    p.answered(1)
    p.click(".sidebar .new")
    p.say("about hills")
    p.answered(1)
    assert p.titles() == ["about hills", "about rivers"]
    p.reload()
    p.wait("the page", "return document.querySelectorAll('.conversations li').length === 2")
    assert p.count(".message") == 0
    p.js("document.querySelectorAll('.conversations .open')[1].click()")
    assert "about rivers" in p.answered(1)
    p.say("more about rivers")
    p.answered(2)
    assert p.titles() == ["about rivers", "about hills"]
    sent = s.json("/v1/status")["past"][0]["prompt_tokens"]
    assert sent > len("about riversabout riversmore about rivers"), "the whole conversation is sent"
    p.js("document.querySelector('.conversations li [aria-label^=Delete]').click()")
    assert p.titles() == ["about hills"]
    p.reload()
    p.wait("one conversation", "return document.querySelectorAll('.conversations li').length === 1")


@test
@with_page()
def a_reload_in_the_middle_keeps_the_part_that_came(s, p):
    p.say("slow")
    p.wait("some words", "return document.querySelector('.message.live .markdown')?.innerText.length > 30")
    p.reload()
    p.wait("the list", "return document.querySelectorAll('.conversations li').length === 1")
    p.click(".conversations .open")
    assert p.answered(1).startswith("word word")
    s.wait_idle()


@test
@with_page()
def a_narrow_screen_works(s, p):
    p.size(360, 640, mobile=True, scale=2)
    p.reload()
    p.wait("the page", "return document.querySelector('#input')")
    p.say("write a program")
    p.answered(1)
    wide = p.js("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide
    hidden = "const r = document.querySelector('.sidebar').getBoundingClientRect(); return r.right <= 0"
    assert p.js(hidden)
    p.click("[aria-label='Menu']")
    p.wait("the menu", "return document.querySelector('.sidebar').getBoundingClientRect().left >= 0")
    p.click("[data-view='machine']")
    p.wait("the machine", "return document.querySelector('.machine .card')")
    p.wait("the menu goes", hidden)
    wide = p.js("return [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide
    small = p.js("""return [...document.querySelectorAll('.top button')].map(b => b.getBoundingClientRect()).filter(r => r.width < 30 || r.height < 30).length""")
    assert small == 0, "buttons are large enough for a finger"


@test
@with_page()
def the_keyboard_reaches_everything(s, p):
    p.keys("alt", "2")
    p.wait("the machine", "return document.querySelector('.machine')")
    p.keys("alt", "3")
    p.wait("the settings", "return document.querySelector('.settings')")
    p.keys("alt", "1")
    p.wait("the chat", "return document.activeElement?.id === 'input'")
    p.type("#input", "one")
    p.keys("shift", "enter")
    p.type("#input", "two")
    p.keys("enter")
    assert "one" in p.answered(1) and p.text(".message.user .body") == "one\ntwo"
    p.js("document.activeElement.blur()")
    p.keys("/")
    assert p.js("return document.activeElement.id") == "input" and p.js("return document.querySelector('#input').value") == ""
    p.keys("control", "shift", "o")
    p.wait("a new chat", "return document.querySelectorAll('.message').length === 0")
    unnamed = p.js("""return [...document.querySelectorAll('button, input, select, textarea')]
        .filter(e => !(e.getAttribute('aria-label') || e.innerText.trim() || e.labels?.length)).map(e => e.outerHTML)""")
    assert not unnamed, unnamed


@test
@with_page()
def the_machine_view_is_live(s, p):
    p.say("slow")
    p.wait("some words", "return document.querySelector('.message.live .markdown')?.innerText.length > 30")
    p.keys("alt", "2")
    p.wait("the request is listed", "return document.querySelector('.machine')?.innerText.includes('generating')")
    text = p.text(".machine")
    assert "weights" in text and "600 MiB" in text and "Writing answers" in text, text
    p.wait("a speed", "return Number(document.querySelector('.speed .big').innerText.replace(/[^0-9.]/g, '')) > 10")
    p.keys("alt", "1")
    p.keys("escape")
    p.answered(1)
    p.keys("alt", "2")
    p.wait("it is listed as done", "return document.querySelector('.machine')?.innerText.includes('cancelled')")


def stage(device, first, layers, **more):
    return {"device": device, "arch": "gfx1100", "first_layer": first, "layers": layers, "bytes": 3 << 30, "limit_bytes": 8 << 30,
            "reserve_bytes": 512 << 20, "expert_slots_bytes": 1 << 30 if more else 0, "experts_outside": bool(more), **more}


MACHINE = {"devices": [], "drafts": {"most": 3, "passes": 80, "drafted_tokens": 100, "accepted_tokens": 40}, "stages": [
    stage("hip:0", 0, 10, experts={"chosen": 1000, "in_slots": 700, "by_helper": 0, "over_link": 50, "by_cpu": 250, "from_file": 25}),
    stage("hip:1", 10, 5, experts={"chosen": 0, "in_slots": 0, "by_helper": 0, "over_link": 0, "by_cpu": 0, "from_file": 0}), stage("cpu", 15, 1)]}


@test
@with_page({**SCRIPT, "machine": MACHINE}, width=1180, height=860)
def layers_experts_and_guesses_are_shown_as_the_server_counts_them(s, p):
    p.keys("alt", "2")
    p.wait("the layers", "return document.querySelector('.layers')")
    text = p.text(".layers")
    assert "16 layers over 3 devices" in text and text.split("\n")[-3:] == ["hip:010", "hip:15", "cpu1"], text
    widths = p.js("return [...document.querySelectorAll('.layers rect.part')].map(r => r.width.baseVal.value)")
    assert [round(w) for w in widths] == [625, 312, 62], widths
    first, second, last = p.js("return [...document.querySelectorAll('.stage')].map(c => c.innerText)")
    assert "hip:0 gfx1100" in first and "layers 0 to 9 (10), 3.0 GiB of 8.0 GiB, of it 1.0 GiB of experts" in first, first
    for words in ("1,000", "this device70.0 %", "another device0 %", "over the link5.0 %", "by the CPU22.5 %", "file2.5 %"):
        assert words in first.replace("\n", ""), (words, first)
    assert "none chosen" in second and "layers 10 to 14" in second and "layer 15" in last and "xperts" not in last, (second, last)
    guesses = p.text(".drafts")
    assert "40.0 % accepted" in guesses and "40 of 100" in guesses and "1.50 tokens a pass. At most 3 in a pass." in guesses, guesses


STATE = "return document.querySelector('.control .state')?.innerText === arguments[0]"


@test
@with_page()
def buttons_unload_and_load_the_model(s, p):
    p.keys("alt", "2")
    p.wait("it is loaded", STATE, "The model is loaded")
    enabled = "return [...document.querySelectorAll('.control button')].map(b => !b.disabled)"
    assert p.js(enabled) == [False, True]
    p.click(".control button:last-of-type")
    p.wait("it is unloaded", STATE, "The model is unloaded")
    p.wait("the button to load", "return !document.querySelector('.control button').disabled")
    assert p.js(enabled) == [True, False] and "Unloaded in" in p.text(".control .note")
    assert s.json("/health")["status"] == "unloaded"
    p.js("document.querySelector('.control button').focus()")
    p.js("window.drawn = document.querySelector('.machine table, .machine h2')")
    p.wait("it was drawn again", "return window.drawn && !window.drawn.isConnected")
    assert p.js("return document.activeElement.innerText") == "Load", "the focus stays"
    p.keys("enter")
    p.wait("it is loaded again", STATE, "The model is loaded")
    p.wait("it says so", "return document.querySelector('.control .note').innerText.startsWith('Loaded in')")
    p.click(".control button:last-of-type")
    p.wait("it is unloaded again", STATE, "The model is unloaded")
    p.reload()
    p.wait("the banner", "return document.querySelector('.banner')?.innerText.includes('the next message loads it')")
    p.say("hello")
    p.answered(1)
    p.wait("the banner goes", "return document.querySelector('.banner').hidden")


FOLDER = tempfile.TemporaryDirectory(prefix="strata-page-")
HOLD = os.path.join(FOLDER.name, "hold")


@test
@with_page({**SCRIPT, "hold_file": HOLD})
def loading_by_the_button_shows_how_far_it_is(s, p):
    s.json("/unload", {})
    p.keys("alt", "2")
    p.wait("it is unloaded", STATE, "The model is unloaded")
    with open(HOLD, "w", encoding="ascii"):
        pass
    try:
        p.click(".control button")
        p.wait("progress", "return document.querySelector('.machine progress')")
        assert p.js("return [...document.querySelectorAll('.control button')].every(b => b.disabled)")
    finally:
        os.remove(HOLD)
    p.wait("it is loaded", STATE, "The model is loaded")


@test
@with_page(args=["--api-key", "sesame"])
def a_key_is_asked_for_and_kept(s, p):
    p.say("hello")
    assert "API key" in p.answered(1)
    p.keys("alt", "3")
    p.type("#set-apiKey", "sesame\t")
    p.keys("alt", "1")
    p.click("[aria-label='Answer again']")
    p.wait("an answer", "return document.querySelector('.message.assistant .markdown')?.innerText === 'hello'")
    p.reload()
    p.keys("alt", "2")
    p.wait("the machine", "return document.querySelector('.machine')?.innerText.includes('scripted')")
    p.log()  # the refused call is in the browser's log, as it should be


@test
@with_page()
def settings_reach_the_server_and_the_page(s, p):
    p.keys("alt", "3")
    p.type("#set-system", "Answer like a geologist.\t")
    p.type("#set-maxTokens", "5\t")
    p.js("const t = document.querySelector('#set-theme'); t.value = 'dark'; t.dispatchEvent(new Event('change'))")
    dark = p.js("return getComputedStyle(document.body).backgroundColor")
    p.js("const t = document.querySelector('#set-theme'); t.value = 'light'; t.dispatchEvent(new Event('change'))")
    assert dark != p.js("return getComputedStyle(document.body).backgroundColor")
    p.keys("alt", "1")
    p.say("program")
    text = p.answered(1)
    assert text.startswith("Here") and "5 tokens" in text and "cut off" in text, text
    with_system = s.json("/v1/status")["past"][0]["prompt_tokens"]
    assert with_system > len("Answer like a geologist.program"), with_system


@test
@with_page()
def an_error_in_the_middle_is_shown(s, p):
    p.say("break")
    text = p.answered(1)
    assert text.startswith("this will") and "device failed" in text, text
    p.say("program")
    p.answered(2)


@test
@with_page({"load_ms": 2500})
def after_loading_the_page_is_ready(s, p):
    p.say("hello")
    assert "hello" in p.answered(1)


@test
def loading_and_a_lost_server_are_said():
    with open(HOLD, "w", encoding="ascii"):
        pass
    p = Page()
    try:
        with Server({**SCRIPT, "hold_file": HOLD}, wait=False) as s:
            p.open(s.url)
            p.wait("the loading banner", "return document.querySelector('.banner')?.innerText.includes('being loaded')")
            os.remove(HOLD)
            p.wait("the banner goes", "return document.querySelector('.banner').hidden")
            p.say("slow")
            p.wait("some words", "return document.querySelector('.message.live .markdown')?.innerText.length > 30")
            s.stop()
            text = p.answered(1)
            assert "stopping" in text or "ended" in text, text
    finally:
        p.close()


def screenshots(folder, strata, model, draft_layer):
    """docs/page-*.png: chat, a phone in the dark, and the machine with simulated devices; with a real model."""
    with Server(exe=strata, args=["serve", "-m", model]) as s:
        p = Page(1180, 860)
        try:
            p.go(s.url)
            p.js("localStorage.setItem('strata.settings', JSON.stringify({temperature: '0'}))")
            p.reload()
            p.wait("the page", "return document.querySelector('#input')")
            p.say("What is gimp?")
            p.wait("an answer", ANSWERED, 1, seconds=200)
            p.js("document.activeElement.blur()")
            p.screenshot(os.path.join(folder, "page-chat.png"))
            p.say("Describe the package postgresql.")
            p.wait("an answer", ANSWERED, 2, seconds=200)
            p.js("localStorage.setItem('strata.settings', JSON.stringify({theme: 'dark'}))")
            p.size(390, 760, mobile=True)
            p.reload()
            p.wait("the list", "return document.querySelector('.conversations li')")
            p.js("document.querySelector('.conversations .open').click()")
            p.js("document.querySelector('.scroller').scrollTop = 1e6; document.activeElement.blur()")
            time.sleep(0.3)
            p.screenshot(os.path.join(folder, "page-phone.png"))
        finally:
            p.close()
    with Server(exe=strata, args=["serve", "-m", model, "-c", "2048", "--device", "sim:gfx1100:24G,sim:sm_89:8G", "--layer-split", "5,3",
                                  "--expert-cache", "60%", "--mtp", draft_layer]) as s:
        p = Page(1180, 1000)
        try:
            p.go(s.url)
            p.say("Describe the package postgresql.")
            p.wait("an answer under way", "return document.querySelector('.message.live .markdown')?.innerText.length > 60", seconds=200)
            p.keys("alt", "2")
            p.wait("counts of a while", "return document.querySelector('.experts')?.innerText.includes('lately')", seconds=60)
            time.sleep(5)
            p.screenshot(os.path.join(folder, "page-machine.png"))
        finally:
            p.close()


if len(sys.argv) > 2:
    screenshots(*sys.argv[2:6])
else:
    main()
