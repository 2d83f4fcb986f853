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


# What a model writes is text: no element but those of markdown, no link but to http, nothing that runs.
NASTY = ["<script>window.hit = 1</script>", '<img src=x onerror="window.hit = 1">', "[a](javascript:window.hit=1)", '[a](https://x" onmouseover="window.hit=1)',
         "![a](https://outside.invalid/x.png)", "`<img src=x onerror=window.hit=1>`", '[`" onfocus=window.hit=1 autofocus="`](https://x)',
         "| <svg onload=window.hit=1> | b |\n|---|---|\n| <iframe src=javascript:window.hit=1> | c |", "```\n</code></pre><script>window.hit = 1</script>\n```",
         '[a](https://x/`"onclick=window.hit=1`)', "\0000\0", "<a href='data:text/html,x'>y</a>", "[a](data:text/html,<script>window.hit=1</script>)",
         "# <style>* { display: none }</style>", "> <base href=//outside.invalid>", "1. <form action=//outside.invalid><button>", "[a](//outside.invalid)"]


def check_markdown(p):
    for text in NASTY:
        found = p.run(f"""(() => {{ const d = document.createElement("div"); d.id = "nasty"; d.innerHTML = markdown({json.dumps(text)}); document.body.append(d);
            const all = [...d.querySelectorAll("*")], wrong = all.filter(e => !/^(P|STRONG|EM|DEL|A|CODE|PRE|H[1-6]|UL|OL|LI|BR|HR|TABLE|TBODY|TR|TH|TD|BLOCKQUOTE)$/.test(e.tagName)
                || [...e.attributes].some(a => a.name.startsWith("on")) || (e.tagName == "A" && !/^https?:\\/\\//.test(e.getAttribute("href"))));
            const bad = wrong.map(e => e.outerHTML).join(" ") + (d.textContent.includes("undefined") ? "undefined" : ""); d.remove(); return bad; }})()""")
        assert not found, (text, found)
    time.sleep(0.3)
    assert p.run("window.hit === undefined"), "something of the model's has run"


def messages(p):
    return p.run("document.querySelectorAll('#talk .message').length")


def idle(p):
    p.wait("document.getElementById('go').innerText == 'Send'", "an answer does not end")


def check_acts(p):
    """Retry, edit and stop, as they change the conversation."""
    p.run("[...document.querySelectorAll('.acts button')].find(b => b.innerText == 'Retry').click()")
    idle(p)
    assert messages(p) == 2, messages(p)
    edit, edited = "[...document.querySelectorAll('.acts button')].find(b => b.innerText == 'Edit').click()", "document.querySelectorAll('.edited').length"
    said = p.run("document.getElementById('talk').innerText")
    p.run(edit)
    assert p.run("document.getElementById('say').value") == "What is the capital of France?" and p.run(edited) == 2
    p.key("Escape", 27)  # nothing is lost
    assert p.run("document.getElementById('say').value") == "" and p.run(edited) == 0 and p.run("document.getElementById('talk').innerText") == said
    p.run(edit)
    p.send("Input.insertText", text=" Please.")
    p.key("Enter", 13)
    idle(p)
    p.wait("document.getElementById('talk').innerText.includes('France? Please.')", "an edited message does not show")
    assert messages(p) == 2, messages(p)
    p.run("document.getElementById('max_tokens').value = 60; document.getElementById('max_tokens').dispatchEvent(new Event('change'))")
    talk(p, "Go on")
    p.key("Escape", 27)  # stops what is still being written
    idle(p)
    assert messages(p) == 4 and not p.run("document.querySelectorAll('.error').length"), p.run("document.getElementById('talk').innerText")


def check_keyboard(p):
    """What is drawn anew keeps the focus where it was."""
    where = "document.activeElement.textContent + (document.activeElement.className || '')"
    p.run("[...document.querySelectorAll('.acts button')].filter(b => b.innerText == 'Retry').pop().focus()")
    p.key("Enter", 13)
    idle(p)
    assert p.run(where) == "Retry", p.run(where)
    p.run("document.querySelector('#list .open').focus()")
    p.key("Enter", 13)
    assert p.run(where).endswith("open here"), p.run(where)
    p.run("document.getElementById('say').focus()")


def check_phone(p, picture):
    """390 px wide, light and dark: nothing is cut off, and the settings open."""
    p.send("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    colors = []
    for scheme in ("light", "dark"):
        p.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        assert p.run("document.documentElement.scrollWidth") <= 390, p.run("document.documentElement.scrollWidth")
        colors.append(p.run("getComputedStyle(document.body).backgroundColor"))
        if picture:
            open(picture.replace(".png", f"-{scheme}.png"), "wb").write(base64.b64decode(p.send("Page.captureScreenshot", format="png")["data"]))
    assert colors[0] != colors[1], colors
    p.run("document.getElementById('menu').click()")
    assert p.run("document.getElementById('settings').getBoundingClientRect().height") > 0, "the settings do not open"
    p.run("document.getElementById('close').click()")
    p.send("Emulation.clearDeviceMetricsOverride")
    p.send("Emulation.setEmulatedMedia", features=[])


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
    check_markdown(p)
    check_acts(p)
    check_keyboard(p)
    check_phone(p, os.environ.get("PHONE", ""))
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
