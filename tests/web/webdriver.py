"""The few calls of the W3C WebDriver protocol that the page's test needs, over the standard library."""
import base64
import http.client
import json
import re
import subprocess
import time

from picture import small

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"enter": "\ue007", "escape": "\ue00c", "shift": "\ue008", "alt": "\ue00a", "control": "\ue009", "up": "\ue013",
        "null": "\ue000", "backspace": "\ue003"}


class WebDriverError(Exception):
    pass


class Browser:
    """Headless Chromium behind chromedriver, both ended by close()."""

    def __init__(self, width=1200, height=800, profile=None, dark=False, scale=1):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.port = None
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.port = int(found.group(1))
                break
        if not self.port:
            raise WebDriverError("chromedriver did not start")
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                f"--force-device-scale-factor={scale}", f"--window-size={width},{height}"]
        if dark:
            args.append("--blink-settings=preferredColorScheme=0")
        if profile:
            args.append(f"--user-data-dir={profile}")
        options = {"args": args}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        value = self.call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.session = "/session/" + value["sessionId"]

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise WebDriverError(f"{answer['error']}: {answer['message'].splitlines()[0]}")
        return answer

    def do(self, method, path, body=None):
        return self.call(method, self.session + path, body)

    def open(self, url):
        self.do("POST", "/url", {"url": url})

    def reload(self):
        self.do("POST", "/refresh", {})

    def js(self, script, *args):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(args)})

    def cdp(self, command, **params):
        return self.do("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def find(self, css):
        return self.do("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.do("POST", f"/element/{self.find(css)}/click", {})

    def type(self, css, text):
        self.do("POST", f"/element/{self.find(css)}/value", {"text": text})

    def keys(self, *names):
        """Presses names together, as a person would."""
        held = [KEYS.get(n, n) for n in names]
        actions = [{"type": "keyDown", "value": k} for k in held] + [{"type": "keyUp", "value": k} for k in reversed(held)]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def text(self, css):
        return self.js("return document.querySelector(arguments[0])?.innerText ?? null", css)

    def count(self, css):
        return self.js("return document.querySelectorAll(arguments[0]).length", css)

    def wait(self, what, script, *args, seconds=30):
        """Until the script returns something true, which is returned."""
        end = time.monotonic() + seconds
        while True:
            value = self.js(script, *args)
            if value:
                return value
            if time.monotonic() > end:
                raise AssertionError(f"waited {seconds} s for {what}; the page says: {self.js('return document.body.innerText')[:600]}")
            time.sleep(0.03)

    def size(self, width, height, mobile=False, scale=1):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.cdp("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(small(base64.b64decode(self.do("GET", "/screenshot"))))

    def log(self):
        """Messages of the browser's console since the last call."""
        return self.do("POST", "/se/log", {"type": "browser"})

    def close(self):
        try:
            self.do("DELETE", "")
        except (OSError, WebDriverError):
            pass
        self.driver.terminate()
        self.driver.wait(20)
        self.driver.stdout.close()
