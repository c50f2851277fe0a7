"""The machine view over a real engine: layers and experts over two simulated devices, guesses, unload and load.

test_machine.py STRATA MODEL DRAFT_LAYER"""
import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "api"), os.path.join(HERE, "..")]
from harness import Server  # noqa: E402
from page import Page  # noqa: E402
from tap import main, run, test  # noqa: E402

STRATA, MODEL, DRAFT_LAYER = sys.argv[1:4]
ARGS = ["serve", "-m", MODEL, "-c", "512", "--parallel", "1", "--device", "sim:gfx1100:8G,sim:sm_89:8G", "--layer-split", "5,3", "--expert-cache", "30%",
        "--mtp", DRAFT_LAYER, "--spec", "3", "--temp", "0"]
STATE = "return document.querySelector('.control .state')?.innerText === arguments[0]"
TIERS = ["this device", "another device", "memory, over the link", "memory, by the CPU", "file"]


def shares(card):
    """Percent of each tier as a card says it."""
    found = [re.search(rf"{tier}\s*([\d.]+) %", card) for tier in TIERS]
    assert all(found), card
    return [float(f[1]) for f in found]


@test
def what_the_page_says_is_what_the_engine_counted():
    with Server(exe=STRATA, args=ARGS) as s:
        p = Page(1180, 900)
        try:
            p.go(s.url)
            p.keys("alt", "2")
            p.wait("the stages", "return document.querySelectorAll('.stage').length === 2")
            cards = p.js("return [...document.querySelectorAll('.stage')].map(c => c.innerText)")
            assert "sim:0 gfx1100" in cards[0] and "layers 0 to 4 (5)" in cards[0] and "sim:1 sm_89" in cards[1] and "layers 5 to 7 (3)" in cards[1], cards
            assert all("none chosen" in card for card in cards), cards
            assert "8 layers over 2 devices" in p.text(".layers") and "None was checked yet" in p.text(".drafts")
            question = [{"role": "user", "content": "What is gimp?"}]
            answer = s.json("/v1/chat/completions", {"messages": question, "max_tokens": 40})
            machine = s.json("/v1/status")["machine"]
            for stage in machine["stages"]:
                e = stage["experts"]
                assert e["chosen"] > 0 and e["in_slots"] > 0 and e["by_cpu"] > 0, e
                assert e["chosen"] == e["in_slots"] + e["by_helper"] + e["over_link"] + e["by_cpu"] and e["from_file"] <= e["by_cpu"], e
            assert machine["drafts"]["drafted_tokens"] == answer["timings"]["draft_n"] > 0, (machine["drafts"], answer["timings"])
            assert machine["drafts"]["accepted_tokens"] == answer["timings"]["draft_n_accepted"]
            e = machine["stages"][0]["experts"]
            told = f"{e['chosen']:,}"
            card = p.wait("the counts", "const t = document.querySelector('.stage').innerText; return t.includes(arguments[0]) && t", told)
            counted = [e["in_slots"], e["by_helper"], e["over_link"], e["by_cpu"] - e["from_file"], e["from_file"]]
            for said, n in zip(shares(card), counted):
                assert abs(said - 100 * n / e["chosen"]) < 0.06, (card, e)
            p.wait("the guesses", "return document.querySelector('.drafts').innerText.includes(arguments[0])",
                   f"{machine['drafts']['accepted_tokens']} of {machine['drafts']['drafted_tokens']}")
            p.click(".control button:last-of-type")
            p.wait("it is unloaded", STATE, "The model is unloaded")
            note = p.wait("what was done", "return document.querySelector('.control .note').innerText")
            assert re.search(r"Unloaded in .* of devices are free again; conversations kept: 1", note), note
            assert p.count(".stage") == 0
            p.click(".control button")
            p.wait("it is loaded", STATE, "The model is loaded")
            p.wait("the stages again", "return document.querySelectorAll('.stage').length === 2")
            assert all("none chosen" in card for card in p.js("return [...document.querySelectorAll('.stage')].map(c => c.innerText)")), "a new engine has counted nothing"
            question += [answer["choices"][0]["message"], {"role": "user", "content": "And vlc?"}]
            again = s.json("/v1/chat/completions", {"messages": question, "max_tokens": 2})
            assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, "the conversation goes on"
            p.clean()
        finally:
            p.close()


@test
def experts_that_host_memory_has_no_room_for_come_from_the_file():
    args = ["-m", MODEL, "-c", "512", "--prefill", "64", "--device", "sim:gfx1100:8G", "--expert-cache", "30%"]
    code, out, err = run(STRATA, "plan", "--json", *args)
    assert code == 0, err
    host = json.loads(out)["host"]
    with Server(exe=STRATA, args=["serve", "--parallel", "1", *args, "--ram-limit", str(host["total"] - host["expert_arena"] * 3 // 4)]) as s:
        assert s.json("/v1/completions", {"prompt": "What is", "max_tokens": 30, "temperature": 0})["choices"]
        e = s.json("/v1/status")["machine"]["stages"][0]["experts"]
        assert 0 < e["from_file"] <= e["by_cpu"] and e["chosen"] == e["in_slots"] + e["over_link"] + e["by_cpu"], e
        p = Page()
        try:
            p.go(s.url)
            p.keys("alt", "2")
            card = p.wait("the stage", "return document.querySelector('.experts .legend') && document.querySelector('.stage').innerText")
            assert abs(shares(card)[4] - 100 * e["from_file"] / e["chosen"]) < 0.06, (card, e)
            p.clean()
        finally:
            p.close()


@test
def without_devices_and_guesses_there_is_one_place_and_no_more():
    with Server(exe=STRATA, args=["serve", "-m", MODEL, "-c", "512"]) as s:
        p = Page()
        try:
            p.go(s.url)
            p.keys("alt", "2")
            p.wait("the stage", "return document.querySelectorAll('.stage').length === 1")
            card = p.text(".stage")
            assert card.startswith("cpu") and "layers 0 to 7 (8)" in card and "chosen" not in card, card
            assert "8 layers over 1 device" in p.text(".layers") and p.count(".drafts") == 0
            p.clean()
        finally:
            p.close()


main()
