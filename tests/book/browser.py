"""Headless Chromium, driven over its pipe (the DevTools protocol: a message is JSON and a zero byte), for the tests of the book."""

import base64
import json
import os
import pathlib
import subprocess
import tempfile
import time


class Browser:
    """One Chromium with one page. `complaints` gathers what its console and its network say is wrong, and what is fetched from outside."""

    def __init__(self, width=1280, height=900):
        self.profile = tempfile.TemporaryDirectory(prefix="book_browser.", ignore_cleanup_errors=True)
        commands, self.write_end = os.pipe()
        self.read_end, answers = os.pipe()
        for end, at in (commands, 3), (answers, 4):  # where Chromium looks for them
            assert end > 4 or end == at, f"file {end} is in the way of {at}"

        def into_place():
            os.dup2(commands, 3)
            os.dup2(answers, 4)

        # Without its sandbox, which root may not have: it opens nothing but the site that was built here.
        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={self.profile.name}",
             f"--window-size={width},{height}", "about:blank"],
            pass_fds=(3, 4, commands, answers), preexec_fn=into_place, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.buffer, self.number, self.session, self.complaints, self.loaded = b"", 0, None, [], False
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Log", "Network":
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.buffer:
            piece = os.read(self.read_end, 1 << 20)
            assert piece, "Chromium has ended"
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(message)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, event, of):
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.exceptionThrown":
            details = of["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in of["args"]))
        elif event == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning"):
            self.complaints.append(of["entry"]["text"] + " " + of["entry"].get("url", ""))
        elif event == "Network.requestWillBeSent" and not of["request"]["url"].startswith(("file:", "data:", "about:", "blob:")):
            self.complaints.append("fetches " + of["request"]["url"])

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, path, place=""):
        """Opens a file and waits until it has loaded."""
        self.loaded = False
        self.call("Page.navigate", url=pathlib.Path(path).resolve().as_uri() + place)
        while not self.loaded:
            self.receive()

    def ask(self, code):
        """The value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{code}: {answer['exceptionDetails']['exception']['description']}"
        return answer["result"].get("value")

    def wait_for(self, code, seconds=20):
        """The expression's value as soon as it is true."""
        end = time.monotonic() + seconds
        while not (value := self.ask(code)):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.05)
        return value

    def click(self, selector, count=1):
        """A mouse's click in the middle of what the selector finds."""
        for _ in range(count):
            at = self.ask(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
                          " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] })()")
            for kind in "mousePressed", "mouseReleased":
                self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def key(self, name):
        for kind in "keyDown", "keyUp":
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()
