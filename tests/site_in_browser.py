"""The built documentation in headless Chromium, from the disk, on the screens of a desktop and a phone.

    python tests/site_in_browser.py site      # a part of `make docs`

The exit code is 1 if a page complains, loads something from elsewhere, has a broken picture or is wider than the
screen, or if the search finds nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from chromium import Page, find_browser, page

SCREENS = {"desktop": (1400, 1000, False), "phone": (390, 844, True)}
BROKEN = "[...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src)"
FOUND = "[...document.querySelectorAll('#search-results li > a')].map(link => link.text)"
SEARCHES = {"load_policy": "warpsac.load_policy", "Slurm": "GPUs and clusters"}


def faults(tab: Page, path: Path) -> list[str]:
    """What is wrong with a page that is shown."""
    tab.complaints.clear()
    tab.requests.clear()
    tab.visit(path.as_uri())
    tab.wait_for("document.readyState === 'complete'")
    found = [f"complains: {text[:300]}" for text in tab.complaints]
    found += [f"loads {url}" for url in tab.requests if not url.startswith(("file:", "data:", "about:"))]
    found += [f"broken picture {source}" for source in tab.value(BROKEN)]
    shown, screen = tab.value("[document.documentElement.scrollWidth, innerWidth]")
    return found + ([f"is {shown} wide"] if shown > screen else [])


def main(folder: str) -> int:
    site = Path(folder).resolve()
    browser = find_browser()
    if browser is None:
        print("docs: not looked at, there is no Chromium (make browser)")
        return 0
    wrong = []
    pages = sorted(site.rglob("*.html"))
    with page(browser) as tab:
        for screen, (width, height, mobile) in SCREENS.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
            tab.call("Emulation.setDeviceMetricsOverride", **size)
            for path in pages:
                wrong += [f"{path.relative_to(site)}, {screen}: {fault}" for fault in faults(tab, path)]
        for words, title in SEARCHES.items():
            tab.visit(f"{(site / 'search.html').as_uri()}?q={words}")
            try:
                tab.wait_for(f"{FOUND}.includes({json.dumps(title)})", 10)
            except TimeoutError:
                wrong.append(f"search for {words}: {title} is not found")
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    print(f"docs: {len(pages)} pages looked at in Chromium, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
