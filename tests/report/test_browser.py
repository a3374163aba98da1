"""Reports opened in a browser, on a telephone and a screen, light and dark: no error, no request, nothing cut off."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import bigpca as bp
from bigpca.report import write_report

CHROMIUM = Path("/usr/bin/chromium")
playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

STATE = """() => {
  const page = document.documentElement, texts = [];
  for (const svg of document.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const own = text.getBoundingClientRect();
      const across = own.left > box.left - 1 && own.right < box.right + 1;
      const inside = across && own.top > box.top - 1 && own.bottom < box.bottom + 1;
      if (!inside) texts.push(text.textContent);
    }
  }
  const light = (colour) => colour.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0);
  const shades = [...document.querySelectorAll('svg text')].map((text) => light(getComputedStyle(text).fill));
  return {
    overflow: page.scrollWidth - page.clientWidth,
    missing: [...document.images].filter((image) => !image.naturalWidth).length,
    pictures: document.images.length,
    outside: texts,
    paper: light(getComputedStyle(document.body).backgroundColor),
    faintest: [Math.min(...shades), Math.max(...shades)],
  };
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of pictures with hostile names in 30 classes, and one of a kernel model of one component."""
    folder = tmp_path_factory.mktemp("reports")
    rows = np.random.default_rng(0).standard_normal((120, 48)) * np.linspace(4, 1, 48)
    lines = ["path,class"]
    for number in range(len(rows)):
        Image.new("RGB", (40, 30), (2 * number, 90, 120)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,<script>document.title = 'hacked'</script> class {number % 30} of a long name")
    (folder / "labels.csv").write_text("\n".join(lines))
    pca = bp.PCA(7, solver="krylov", tol=0.3).fit(rows)
    kernel = bp.NystromKernelPCA(1, kernel="rbf", gamma=0.001, n_landmarks=30).fit(rows)
    labels, keys = str(folder / "labels.csv"), [f"{number}.png" for number in range(len(rows))]
    names = [f"<img src=x onerror=alert(1)> {i}" for i in range(48)]
    return {
        "pictures": write_report(
            pca, folder / "a.html", scores=pca.transform(rows), labels=labels, keys=keys, image_shape=(4, 4, 3)
        ),
        "names": write_report(
            pca, folder / "b.html", scores=pca.transform(rows), labels=labels, keys=keys, feature_names=names
        ),
        "kernel": write_report(kernel, folder / "c.html", scores=kernel.transform(rows), labels=rows[:, 0]),
    }


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_a_report_opens_without_errors_requests_missing_pictures_or_overflow(
    width: int, scheme: str, browser: Any, reports: dict[str, Path]
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(request.url[:80]))
    page.on("request", lambda request: request.url[:5] in ("file:", "data:") or troubles.append(request.url))
    for name, path in reports.items():
        page.goto(path.as_uri())
        state = page.evaluate(STATE)
        assert (name, troubles) == (name, [])
        assert (name, state["overflow"], state["missing"], state["outside"]) == (name, 0, 0, [])
        assert state["pictures"] == (0 if name == "kernel" else 60)
        dark = state["paper"] < 200
        assert dark == (scheme == "dark")
        darkest, lightest = state["faintest"]
        assert darkest > 500 if dark else lightest < 250  # text of figures follows the page
        assert page.title() != "hacked"
    context.close()


def test_tables_download_from_the_file_itself(browser: Any, reports: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(reports["kernel"].as_uri())
    link = page.locator("a[download='components.csv']")
    with page.expect_download() as waiting:
        link.click()
    content = Path(waiting.value.path()).read_bytes()
    assert content == base64.b64decode(link.get_attribute("href").partition(",")[2])
    assert content.startswith(b"component,eigenvalue,variance,% of the variance,% so far,lower bound,upper bound\r\n")
    page.close()
