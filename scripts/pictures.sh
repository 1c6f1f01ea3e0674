#!/usr/bin/env bash
# Takes the README's pictures of what `make demo` left: docs/images/report.png and timeline.png.
#
#   scripts/pictures.sh [target/demo/report.html]
#
# A headless Chromium shows a copy of the page with a script that presses its buttons, which the policy of
# the page itself forbids.
set -euo pipefail
cd "$(dirname "$0")/.."
page=${1:-target/demo/report.html}
browser=$(command -v chromium chromium-browser google-chrome | head -n1) ||
    { echo "no Chromium here: apt-get install chromium" >&2; exit 1; }
[ -f "$page" ] || { echo "$page is not there: run \`make demo\` first" >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# picture NAME HEIGHT SCRIPT: the page after SCRIPT, 1200 pixels wide, without the machine's control groups.
picture() {
    { sed "s/<meta http-equiv=\"Content-Security-Policy\"[^>]*>//" "$page"; echo "<script>addEventListener('load', () => { $anonymous $3 })</script>"; } >"$scratch/page.html"
    "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync \
        --disable-background-networking --disable-component-update --user-data-dir="$scratch/profile" \
        --hide-scrollbars --virtual-time-budget=3000 --window-size="1200,$2" \
        --screenshot="$scratch/$1.png" "file://$scratch/page.html" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; exit 1; }
    mkdir -p docs/images
    install -m 644 "$scratch/$1.png" "docs/images/$1.png"
    echo "docs/images/$1.png"
}

anonymous="
    for (const e of document.querySelectorAll('*'))
        if (!e.children.length && /^v[12]:/.test(e.textContent.trim())) e.textContent = '';"
picture report 1010 ""
# Only the timeline, over the slowest step and what lies around it.
picture timeline 700 "
    document.querySelector('[data-do=slowest]').click();
    for (let i = 0; i < 4; i++) document.querySelector('[data-do=out]').click();
    const title = [...document.querySelectorAll('h2')].find(h => h.textContent.startsWith('What happened'));
    for (let e = title.parentElement; e !== document.documentElement; e = e.parentElement)
        for (const other of e.children)
            if (!other.contains(title) && (e !== title.parentElement ||
                title.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_PRECEDING)) other.style.display = 'none';
    scrollTo(0, 0);"
