"""The page of `maxc serve` in a headless Chromium, by its debugging protocol. usage: page.py CHROMIUM URL [PICTURE.png]
Standard library alone: a WebSocket is opened by hand."""
import base64, json, os, re, socket, struct, subprocess, sys, tempfile, time, urllib.request

chromium, url = sys.argv[1:3]
picture = sys.argv[3] if len(sys.argv) > 3 else ""
home = tempfile.mkdtemp()
browser = subprocess.Popen([chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,800",
                            "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={home}", "about:blank"],
                           stderr=subprocess.PIPE, text=True)


class Page:
    def __init__(self, address):
        host, path = re.match(r"ws://([^/]+)(/.*)", address).groups()
        name, port = host.split(":")
        self.s = socket.create_connection((name, int(port)), timeout=300)
        self.s.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                       f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.f = self.s.makefile("rb")
        while self.f.readline().strip():
            pass
        self.n = 0

    def send(self, method, **params):
        self.n += 1
        data, mask = json.dumps({"id": self.n, "method": method, "params": params}).encode(), os.urandom(4)
        size = struct.pack("!B", 128 | len(data)) if len(data) < 126 else struct.pack("!BH", 254, len(data))
        self.s.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))
        while True:
            n = self.f.read(2)[1] & 127
            n = struct.unpack("!H", self.f.read(2))[0] if n == 126 else struct.unpack("!Q", self.f.read(8))[0] if n == 127 else n
            answer = json.loads(self.f.read(n))
            if answer.get("id") == self.n:
                assert "error" not in answer, answer
                return answer["result"]

    def run(self, js):
        r = self.send("Runtime.evaluate", expression=js, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def wait(self, js, what):
        for _ in range(1200):
            if self.run(js):
                return
            time.sleep(0.1)
        raise SystemExit(f"{what}: {self.run('document.body.innerText')}")

    def key(self, name, code):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, text="\r" if name == "Enter" else "")


def talk(p, text):
    p.run("document.getElementById('say').focus()")
    p.send("Input.insertText", text=text)
    p.key("Enter", 13)


# A picture is made in a canvas, dropped on the page, removed, dropped again, and sent with a text.
DROP = """new Promise(done => { const c = document.createElement("canvas"); c.width = c.height = 40;
    c.getContext("2d").fillRect(5, 5, 20, 10); c.toBlob(b => { const d = new DataTransfer(); d.items.add(new File([b], "a.png", {type: "image/png"}));
    document.dispatchEvent(new DragEvent("drop", {dataTransfer: d, bubbles: true, cancelable: true})); done(1); }, "image/png"); })"""


def send_picture(p):
    shown = "document.querySelectorAll('#pictures img').length"
    p.run(DROP)
    p.wait(shown + " == 1", "a dropped picture does not show")
    p.run("document.querySelector('#pictures button').click()")
    p.wait(shown + " == 0", "a picture is not removed")
    p.run(DROP)
    p.wait(shown + " == 1", "a second picture does not show")
    talk(p, "What is on it?")
    p.wait("document.querySelectorAll('.user .pictures img').length == 1", "the picture is not in the message")
    p.wait("document.getElementById('go').innerText == 'Send' && document.getElementById('talk').children.length >= 2", "no answer to a picture")
    assert not p.run("document.querySelectorAll('.error').length"), p.run("document.getElementById('talk').innerText")


try:
    address = next(m.group(1) for line in browser.stderr if (m := re.search(r"(ws://\S+)", line)))
    port = re.search(r":(\d+)/", address).group(1)
    tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
    p = Page(next(t["webSocketDebuggerUrl"] for t in tabs if t["type"] == "page"))
    p.send("Page.navigate", url=url)
    p.wait("document.readyState == 'complete' && !!document.getElementById('say')", "the page does not open")
    for name, value in (("max_tokens", 24), ("temperature", 0)):
        p.run(f"document.getElementById('{name}').value = {value};"
              f"document.getElementById('{name}').dispatchEvent(new Event('change', {{bubbles: true}}))")
    talk(p, "What is the capital of France?")
    p.wait("document.getElementById('talk').innerText.includes('capital of France')", "the message does not show")
    p.wait("document.getElementById('go').innerText == 'Send' && document.getElementById('talk').children.length >= 2", "no answer")
    first = p.run("document.getElementById('talk').innerText")
    assert len(first) > len("What is the capital of France?") + 5, first
    if picture:
        open(picture, "wb").write(base64.b64decode(p.send("Page.captureScreenshot", format="png")["data"]))
    p.send("Page.reload")
    p.wait("document.readyState == 'complete' && document.getElementById('talk').innerText.includes('capital of France')", "the conversation is not kept")
    p.run("document.getElementById('new').click()")
    p.wait("!document.getElementById('talk').innerText.includes('capital of France')", "a new conversation is not empty")
    takes = "image" in json.load(urllib.request.urlopen(url + "/v1/models"))["data"][0]["input_modalities"]
    p.wait(f"document.getElementById('attach').hidden == {'false' if takes else 'true'}", "the button for images")
    if takes:
        send_picture(p)
    outside = p.run("performance.getEntriesByType('resource').filter(e => !e.name.startsWith(location.origin)).length")
    assert outside == 0, f"{outside} requests to the outside"
    print("page ok" + (", with images" if takes else ""))
finally:
    browser.kill()
