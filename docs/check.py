"""Look at the built site as a reader does: ``python docs/check.py OUT [--pictures FOLDER] [--notebooks PYTHON]``.

Without a browser: every link inside the site leads to a file, every anchor to an element, and every class of the
reference shows the parameters that it documents, in its signature. In headless Chromium, on
a phone (400 px): nothing is cut off but what scrolls in its own box, no request fails or leaves the machine, no script
raises. With ``--pictures`` some pages are drawn at 400 and 1,280 px, light and dark. With ``--notebooks`` each notebook
of the gallery runs alone, in an empty folder, by an interpreter that has ``bigpca[plot]`` and nothing else.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

CHROMIUM = Path("/usr/bin/chromium")
DRAWN = ("index", "gallery", "gallery/01_quickstart", "generated/bigpca.PCA", "coming-from", "explanation")
CUT = """() => [...document.querySelectorAll("article *")].filter(element => {
    const box = element.getBoundingClientRect();
    const spills = element.matches("h1, h2, h3, p, li, dt, dd") && element.scrollWidth > element.clientWidth + 1;
    return box.width > 0 && (spills || box.right > window.innerWidth + 1)
        && !element.closest("pre, table, math, div.formula, .sd-tab-set, .headerlink");
}).map(element => element.tagName + " " + (element.textContent || "").trim().slice(0, 40)).slice(0, 3)"""

CELLS = """
import json, sys
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv.pop()))["cells"]:
    first, _, rest = "".join(cell["source"]).partition("\\n")
    if first.startswith("%%writefile "):
        open(first.split()[1], "w").write(rest)
    elif cell["cell_type"] == "code":
        exec(compile(f"{first}\\n{rest}", "cell", "exec"), names)
"""


class Page(HTMLParser):
    """The links and the anchors of one page, and the signature of the class that it documents, if it does."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.signature = ""
        self._in_signature = False
        text = path.read_text()
        self.feed(text)
        fields = text.split('<dt class="field-', 2)[1:2]  # the first field is Parameters, where a class has some
        documented = fields[0] if fields and ">Parameters<" in fields[0] else ""
        self.parameters = re.findall(r"<dt><strong>([\w, *]+)</strong>", documented)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "dt" and not self.signature:
            self._in_signature = "sig-object" in (dict(attrs).get("class") or "")
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)

    def handle_endtag(self, tag: str) -> None:
        self._in_signature &= tag != "dt"

    def handle_data(self, data: str) -> None:
        if self._in_signature:
            self.signature += data


def pages_of(site: Path) -> list[Path]:
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def broken_links(site: Path) -> list[str]:
    pages = {path.resolve(): Page(path) for path in pages_of(site)}
    found = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            missing_anchor = parts.fragment and target in pages and parts.fragment not in pages[target].anchors
            if not target.exists() or (missing_anchor and path.name not in ("genindex.html", "search.html")):
                found.append(f"{path.relative_to(site.resolve())}: {link} leads nowhere")
    return found


def lost_signatures(site: Path) -> list[str]:
    """Classes whose signature lacks a parameter that their page describes, such as ``PCA(*args, **parameters)``."""
    found = []
    for path in sorted((site / "generated").glob("*.html")):
        page = Page(path)
        shown = set(re.findall(r"\w+", page.signature.partition("(")[2]))
        names = [name for one in page.parameters for name in re.findall(r"\w+", one)]
        missing = [name for name in names if name not in shown] if page.signature.lstrip().startswith("class") else []
        if missing or "*args" in page.signature:
            found.append(f"{path.relative_to(site)}: the signature lacks {', '.join(missing) or 'its parameters'}")
    return found


def seen_in_browser(site: Path, pictures: Path | None) -> list[str]:
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        name = ""
        page.on("requestfailed", lambda request: found.append(f"{name}: {request.url} failed"))
        page.on("pageerror", lambda error: found.append(f"{name}: {error}"))
        page.route("http*://**", lambda route: route.abort())
        for path in pages_of(site):
            name = str(path.relative_to(site))
            page.goto(path.resolve().as_uri(), wait_until="load")
            found += [f"{name}: cut off on a screen of 400 px: {element}" for element in page.evaluate(CUT)]
        for width in (400, 1280) if pictures else ():
            for scheme in ("light", "dark"):
                drawn = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                for name in DRAWN:
                    drawn.goto((site / f"{name}.html").resolve().as_uri(), wait_until="load")
                    drawn.screenshot(path=pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png")
                drawn.close()
        browser.close()
    return found


def notebooks_that_fail(site: Path, python: str) -> list[str]:
    found = []
    for path in sorted((site / "_downloads").rglob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            command = [python, "-W", "error", "-c", CELLS, path.resolve()]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        *_, last = ["nothing was printed", *(done.stderr if done.returncode else done.stdout).splitlines()]
        print(f"{path.name}: {last}", flush=True)
        if done.returncode or not done.stdout:
            found.append(f"{path.name} does not run alone: {last}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--pictures", type=Path, help="folder for pictures of some pages")
    parser.add_argument("--notebooks", metavar="PYTHON", help="interpreter that runs each notebook alone")
    given = parser.parse_args()
    found = broken_links(given.site) + lost_signatures(given.site)
    if given.notebooks:
        found += notebooks_that_fail(given.site, given.notebooks)
    if CHROMIUM.exists():
        found += seen_in_browser(given.site, given.pictures)
    else:
        print(f"without {CHROMIUM}: widths, requests and scripts were not looked at")
    print("\n".join(found) or f"{len(pages_of(given.site))} pages: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
