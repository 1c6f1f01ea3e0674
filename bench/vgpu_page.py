"""Measures the page of `gpuwhy vgpu --html` of a generated host with 64 CPUs and 100 virtual GPUs, in a headless Chromium.

A copy of the page, without the policy that forbids scripts of others, gets a script that presses the page's own keys, one a
frame: zooming in and out and moving. A frame's time is that between two calls of requestAnimationFrame; the browser draws
60 a second at most, so that it is a multiple of 16.7 ms. Without a GPU the browser paints by CPU, which takes most of it; what
the page's own script takes of a frame is measured apart.
"""

import http.server
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading

from measure import DATA, GPUWHY, figure, made, run, write

EVENTS = int(os.environ.get("EVENTS", "300000"))
FRAMES = int(os.environ.get("FRAMES", "400"))
LIMIT_S = 180
SIZES = {"large": (1600, 1000), "small": (800, 600)}
SCRIPT = """<script>
addEventListener("load", () => setTimeout(() => {
  const plot = document.querySelector(".plot");
  plot.setAttribute("tabindex", "0");
  plot.focus();
  const keys = "wwwwddddaaaassss".split("");
  const times = [], spent = [];
  const frame = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) => frame((now) => {
    const began = performance.now();
    draw(now);
    spent.push(performance.now() - began);
  });
  let before = 0, at = 0;
  const step = (now) => {
    if (before) times.push(now - before);
    before = now;
    if (at >= FRAMES) return fetch("/done", { method: "POST", body: JSON.stringify({
      times, spent, lanes: document.querySelectorAll(".lane").length,
      range: document.getElementById("range").textContent }) });
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: keys[at++ % keys.length], bubbles: true }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}, 1000));
</script>"""


def shown(browser, page, size):
    """What the page's own script measured at a size of the window."""
    answer, done = {}, threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(page if self.path == "/" else b"")

        def do_POST(self):
            answer.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            done.set()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        child = subprocess.Popen(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
             f"--window-size={size[0]},{size[1]}", "--remote-debugging-port=0",
             f"http://127.0.0.1:{server.server_address[1]}/"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        is_done = done.wait(LIMIT_S)
        child.terminate()
        child.wait()
    server.shutdown()
    return answer if is_done else None


def main():
    os.makedirs(DATA, exist_ok=True)
    os.makedirs("target/traces", exist_ok=True)
    results = {"made": made("make bench-vgpu-page"), "figures": {}, "rows": []}
    ctf, trace, html = (f"{DATA}/page.{kind}" for kind in ("ctf", "trace", "html"))
    shutil.rmtree(ctf, ignore_errors=True)
    subprocess.run([GPUWHY, "bench", "trace-data", "--ctf", str(EVENTS), "-o", ctf], check=True, capture_output=True)
    subprocess.run([GPUWHY, "import", ctf, "-o", trace, "--force"], check=True, capture_output=True)
    drawn = run([GPUWHY, "vgpu", trace, "--html", html])
    if "error" in drawn:
        raise SystemExit(drawn["error"])
    results["figures"]["page_mib"] = figure([os.path.getsize(html) / 2**20])
    results["figures"]["page_s"] = figure([drawn["wall_s"]])
    results["figures"]["page_rss_mib"] = figure([drawn["rss_mib"]])
    browser = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
    if browser is None:
        print("skipped: there is no Chromium")
    with open(html, encoding="utf-8") as file:
        page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", file.read())
    page = (page + SCRIPT.replace("FRAMES", str(FRAMES))).encode()
    for name, size in SIZES.items() if browser else ():
        told = shown(browser, page, size)
        if told is None:
            raise SystemExit(f"the page did not answer within {LIMIT_S} s")
        times = sorted(told["times"])
        at = lambda share: times[min(int(share * len(times)), len(times) - 1)]
        row = {"window": f"{size[0]} x {size[1]}", "lanes": told["lanes"], "frames": len(times)}
        row |= {"p50_ms": at(0.5), "p95_ms": at(0.95), "max_ms": times[-1]}
        results["rows"].append(row)
        figure_of = {"value": at(0.95), "spread": [at(0.5), times[-1]], "n": len(times)}
        results["figures"][f"frame_p95_ms_{name}"] = figure_of
        spent = sorted(told["spent"])
        of_script = {"value": spent[int(0.95 * len(spent))], "spread": [spent[len(spent) // 2], spent[-1]], "n": len(spent)}
        results["figures"][f"script_p95_ms_{name}"] = of_script
        print(row, flush=True)
    print({name: round(one["value"], 2) for name, one in results["figures"].items()})
    write("vgpu-page", results)
    for path in (ctf, trace):
        shutil.rmtree(path, ignore_errors=True)
    os.remove(html)


main()
