"""The page as its tests use it."""
from webdriver import Browser

ANSWERED = """const m = [...document.querySelectorAll('.message.assistant')];
return m.length === arguments[0] && !document.querySelector('.message.live') && m.at(-1).querySelector('.actions') && m.at(-1).innerText"""


class Page(Browser):
    def go(self, url):
        self.open(url)
        self.wait("the page", "return document.querySelector('#input') && document.querySelector('.banner').hidden")

    def say(self, text):
        self.type("#input", text)
        self.keys("enter")

    def answered(self, count):
        return self.wait(f"answer {count}", ANSWERED, count)

    def titles(self):
        return self.js("return [...document.querySelectorAll('.conversations .open')].map(b => b.innerText)")

    def button(self, label):
        self.js("document.querySelector(`[aria-label='${arguments[0]}']`).focus()", label)
        self.click(f"[aria-label='{label}']")

    def clean(self):
        """Nothing was blocked by the policy, failed in a script, or asked for from another place."""
        bad = [m for m in self.log() if m["level"] == "SEVERE" and "favicon" not in m["message"]]
        assert not bad, bad
        outside = self.js("return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith(location.origin))")
        assert not outside, outside
