"""Every example runs as the main program, with warnings as errors, and draws its picture.

Those of the tutorial and of kernels run on small files in the forms of the real data, so that they run everywhere.
"""

import ast
import gzip
import importlib.util
import runpy
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import bigpca as bp

FOLDER = Path(__file__).resolve().parent.parent / "examples"
OF_DATA = {path.stem for path in FOLDER.glob("0[345]_*_*.py")}  # of faces, clothes and features of networks
EXAMPLES = sorted(path for path in FOLDER.glob("[0-9][0-9]_*.py") if path.stem not in OF_DATA)
NOWHERE = ("--faces", "nowhere", "--fashion", "nowhere")
# Example of data -> its arguments, where a word in braces is what is made here; and its pictures.
RUNS: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "03_tutorial_number_of_axes": (("--fashion", "{fashion}"), ()),
    "03_tutorial_eigenfaces": (("--faces", "{faces}"), ("eigenfaces",)),
    "03_tutorial_dot_products": (
        ("--features", "{maps}", "--maps", 32, 4, 4, "-q", 16, 256), ("dot_products",),
    ),
    "03_tutorial_spectra": (
        ("--faces", "{faces}", "--fashion", "{fashion}", "--network-rows", 150), ("spectra",),
    ),
    "03_tutorial_denoising": (("--fashion", "{fashion}"), ("denoising",)),
    "03_tutorial_large_shapes": (("--networks", "VGG16", "--rows", 60, "-q", 40), ("large_shapes",)),
    "04_kernel_approximations": (
        ("--seeds", 1, "-q", 60, "--kernels", "tanh", "RBF", "--faces", "{faces}"),
        ("figure_8_similarity", "figure_9_difference"),
    ),
    "04_kernel_denoising": (("--rows", 800), ("kernel_denoising",)),
    "04_kernel_faces": (("--pixels", 8, "--faces", "{faces}"), ("kernel_faces", "kernel_faces_scores")),
    "04_kernel_fashion": (("--fashion", "{fashion}", "--landmarks", 150), ("kernel_fashion",)),
    "04_kernel_novelty": (("--fashion", "{fashion}", "--landmarks", 100, "-k", 20), ("kernel_novelty",)),
    "04_kernel_scaling": (("--rows", 200), ("kernel_scaling",)),
    "04_kernel_words": ((), ("kernel_words",)),
    "05_supervised_faces": (("--pixels", 4, "--faces", "{faces}"), ("supervised_faces_scores", "roweisfaces")),
    "05_supervised_fashion": (
        ("--fashion", "{fashion}", "--landmarks", 60, "--grid", 3), ("supervised_fashion",),
    ),
    "05_supervised_network": (
        ("--fashion", "{fashion}", "--rows", 300, "--test-rows", 200, "--landmarks", 60, "--grid", 3,
         "--features", "{train}", "{test}"),
        ("supervised_network_fashion",),
    ),
}  # fmt: skip
PNG = b"\x89PNG\r\n\x1a\n"


def run(path: Path, *arguments: object) -> str:
    """Run an example as the main program of this process, which has imported the libraries; returns what it printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.syspath_prepend(str(FOLDER))
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
    return said.getvalue()


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _few_drawn(monkeypatch: pytest.MonkeyPatch, tutorial_pictures: ModuleType) -> None:
    """Of the models and strips of pictures only the first and the last are drawn, which takes long."""
    draw_portraits, draw_strips = tutorial_pictures.picture_of_portraits, tutorial_pictures.picture_of_strips

    def two(given: list[Any]) -> list[Any]:
        return given[:: max(1, len(given) - 1)]

    def two_strips(strips: dict[str, Any], **options: Any) -> Figure:
        return draw_strips(dict(two([*strips.items()])), **options)

    monkeypatch.setattr(
        tutorial_pictures, "picture_of_portraits", lambda given, **options: draw_portraits(two(given), **options)
    )
    monkeypatch.setattr(tutorial_pictures, "picture_of_strips", two_strips)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path, fashion: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if "fashion" in path.stem:
        example = load(path)
        monkeypatch.setattr(example, "find_data", lambda: fashion)
        with redirect_stdout(StringIO()) as printed:
            example.main()
        said = printed.getvalue()
    else:
        said = run(path)
    assert said.strip()
    if said.startswith("skipped: "):
        pytest.skip(said.removeprefix("skipped: ").strip())
    for picture in tmp_path.rglob("*.png"):
        assert picture.read_bytes().startswith(PNG)
    if "real_data" in path.stem:
        pytest.importorskip("matplotlib")
        assert len(list(tmp_path.rglob("*.png"))) == 1


@pytest.mark.parametrize("path", [path for path in EXAMPLES if "real_data" in path.stem], ids=lambda path: path.stem)
def test_an_example_without_its_data_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load(path)
    monkeypatch.setattr(example, "find_data", lambda: None)
    example.main()
    said = capsys.readouterr().out
    assert said.startswith("skipped: ")
    assert "install" in said


def test_a_notebook_holds_the_modules_that_its_example_imports_and_needs_no_file() -> None:
    """``python docs/check.py SITE --notebooks PYTHON`` runs them."""
    code = (FOLDER.parent / "docs" / "extensions" / "gallery.py").read_text()
    held = set(ast.literal_eval(code.partition("\nSHARED = ")[2].partition("  #")[0]))
    own = {path.stem for path in FOLDER.glob("*.py")}
    for path in [*FOLDER.glob("[0-9]*.py"), *(FOLDER / f"{name}.py" for name in held)]:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        assert named & own <= held, path.name
        assert "__file__" not in path.read_text(), path.name


def test_an_extraction_that_is_interrupted_goes_on_where_it_stopped(
    tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    example, folder = load(FOLDER / "07_images_to_neighbours.py"), tmp_path / "images"
    example.write_synthetic_images(folder, n=100)
    keys = sorted(file.relative_to(folder).as_posix() for file in folder.glob("s*/*.pgm"))
    seen: list[int] = []

    def network(images: np.ndarray) -> np.ndarray:
        seen.append(len(images))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return example.random_filters(images)

    with pytest.raises(KeyboardInterrupt):
        example.extract(network, folder, keys, tmp_path / "interrupted.zarr")
    example.extract(network, folder, keys, tmp_path / "interrupted.zarr")
    assert seen == [32, 32, 32, 32, 4]
    assert "64 of 100 images are done" in capsys.readouterr().out
    example.extract(example.random_filters, folder, keys, tmp_path / "whole.zarr")
    one, other = (tmp_path / name for name in ("interrupted.zarr", "whole.zarr"))
    np.testing.assert_array_equal(bp.open(one), bp.open(other))
    assert bp.data.stored_keys(one).tolist() == bp.data.stored_keys(other).tolist() == keys
    example.extract(example.random_filters, folder, keys[:40], one)  # a store of other images is replaced
    assert bp.data.stored_keys(one).tolist() == keys[:40]


# The tutorial's examples


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that of the ORL faces: s1 ... s40, each with ten mixtures of twelve smooth pictures, and noise."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("faces")
    down, across = np.linspace(0, 3, 112)[:, None], np.linspace(0, 3, 92)
    waves = np.stack([np.cos(i * down + j * across + i) for i in range(4) for j in range(1, 4)])
    for person in range(1, 41):
        (folder / f"s{person}").mkdir()
        for number in range(1, 11):
            weights = rng.standard_normal(12) * 0.75 ** np.arange(12)
            noise = 6 * rng.standard_normal((112, 92))
            picture = (128 + 30 * np.tensordot(weights, waves, 1) + noise).clip(0, 255).astype("uint8")
            picture[0, 0], picture[0, 1] = person, number
            (folder / f"s{person}" / f"{number}.pgm").write_bytes(b"P5\n92 112\n255\n" + picture.tobytes())
    return folder


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that of Fashion-MNIST, of 900 and 200 pictures: mixtures of 40 smooth ones with a little noise."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("fashion")
    waves = np.cos(np.outer(np.arange(1, 41), np.linspace(0, 3, 784)))
    for part, rows in (("train", 900), ("t10k", 200)):
        smooth = 128 + 20 * rng.standard_normal((rows, 40)) @ (waves / np.sqrt(np.arange(1, 41))[:, None])
        pixels = (smooth + 4 * rng.standard_normal((rows, 784))).clip(0, 255).astype("uint8")
        labels = (np.arange(rows) % 10).astype("uint8")
        for name, values, head in (("images-idx3", pixels, 16), ("labels-idx1", labels, 8)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(bytes(head) + values.tobytes()))
    return folder


@pytest.fixture
def tutorial_pictures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("tutorial_pictures")


@pytest.fixture
def tutorial_data(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("tutorial_data")


def line_of(said: str, start: str) -> list[str]:
    """Return the words of the line that begins so, after its beginning."""
    (line,) = (line for line in said.splitlines() if line.startswith(start))
    return line.removeprefix(start).split()


def test_the_readers_keep_the_order_of_people_and_the_names_of_clothes(
    faces: Path, fashion: Path, tutorial_data: ModuleType
) -> None:
    pictures = tutorial_data.read_faces(faces)
    assert pictures.shape == (400, 112 * 92)
    np.testing.assert_array_equal(pictures[:, 0], np.repeat(np.arange(1, 41), 10))
    np.testing.assert_array_equal(pictures[:, 1], np.tile(np.arange(1, 11), 40))
    images, kinds = tutorial_data.read_fashion(fashion, "t10k")
    assert images.shape == (200, 784)
    assert kinds[:10].tolist() == list(tutorial_data.CLOTHES)


def test_every_example_of_data_is_run_here() -> None:
    assert RUNS.keys() == OF_DATA


@pytest.mark.parametrize("name", RUNS)
def test_an_example_of_data_runs_and_draws(
    name: str, faces: Path, fashion: Path, tmp_path: Path, tutorial_data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That what they print is right is shown by the tests of what they use."""
    pytest.importorskip("matplotlib")
    rng, folder = np.random.default_rng(0), tmp_path / "features"
    folder.mkdir()
    made = {name: folder / f"{name}.npy" for name in ("maps", "train", "test")}
    for path, shape in zip(made.values(), ((60, 32 * 4 * 4), (300, 40), (200, 40)), strict=True):
        np.save(path, rng.exponential(size=shape).astype("float32"))

    def write(images: np.ndarray, shape: tuple[int, int], size: int, folder: Path) -> bool:
        folder.mkdir()
        np.save(folder / "maps_0.npy", rng.exponential(size=(len(images), 600)) * 0.9 ** np.arange(600))
        return True

    monkeypatch.setattr(tutorial_data, "write_network_features", write)
    arguments, pictures = RUNS[name]
    given = [str(argument).format(faces=faces, fashion=fashion, **made) for argument in arguments]
    said = run(FOLDER / f"{name}.py", *given, "--out", tmp_path)
    assert said.strip()
    assert "skipped: " not in said
    for picture in pictures:
        assert (tmp_path / f"{picture}.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    "name",
    [
        *(f"03_tutorial_{name}" for name in ("denoising", "dot_products", "eigenfaces")),
        *(f"04_kernel_{name}" for name in ("approximations", "faces", "fashion", "novelty")),
        *(f"05_supervised_{name}" for name in ("faces", "fashion", "network")),
    ],
)
def test_an_example_of_data_says_what_to_install_where_it_is_missing(
    name: str, tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    load(FOLDER / f"{name}.py").main([*NOWHERE, "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.startswith("skipped: ")
    assert "install" in said
    assert not list(tmp_path.iterdir())


def test_an_example_continues_without_the_data_that_is_not_there(
    faces: Path, fashion: Path, tmp_path: Path, tutorial_data: ModuleType,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "tutorial_pictures", None)  # nor Matplotlib
    for name in ("number_of_axes", "spectra"):
        load(FOLDER / f"03_tutorial_{name}.py").main([*NOWHERE, "--out", str(tmp_path)])
        said = capsys.readouterr().out
        assert "without Fashion-MNIST: Fashion-MNIST is not installed (apt-get install" in said
        assert line_of(said, "diabetes")[1] == "10"
    assert "without faces: the ORL faces are not installed (pip install" in said
    monkeypatch.setattr(tutorial_data, "write_network_features", lambda *_, **__: False)
    given = ["--faces", "nowhere", "--fashion", str(fashion), "--out", str(tmp_path)]
    load(FOLDER / "03_tutorial_spectra.py").main(given)
    assert "without a network's features: MobileNetV2 is not installed" in capsys.readouterr().out
    load(FOLDER / "03_tutorial_dot_products.py").main(["--faces", str(faces), "--out", str(tmp_path)])
    assert "skipped: MobileNetV2 is not installed" in capsys.readouterr().out
    network = load(FOLDER / "05_supervised_network.py")
    for there, missing in ((given[2:4], "MobileNetV2"), ([*NOWHERE, "--data", "faces"], "the ORL faces")):
        network.main([*there, "--out", str(tmp_path / "out")])
        assert f"skipped: {missing} " in capsys.readouterr().out


def test_features_of_another_network_need_the_shape_of_their_maps(
    tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load(FOLDER / "03_tutorial_dot_products.py").main(["--features", "dump.zarr", "--out", str(tmp_path / "out")])
    assert "--features needs --maps CHANNELS HEIGHT WIDTH" in capsys.readouterr().err


def test_errors_are_drawn_by_name_with_ticks_that_do_not_touch(tutorial_pictures: ModuleType) -> None:
    curves = {"one": ([500, 1000], [4.0, 2.0]), "two": ([1280], [3.0])}
    ax = tutorial_pictures.draw_errors(Figure().subplots(), curves, xlabel="q", ylabel="error", title="errors")
    for line, (sizes, errors) in zip(ax.lines, curves.values(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([sizes, errors]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["500", "1,000"]


def test_portraits_name_their_kinds_once_a_row_and_strips_are_equally_wide(tutorial_pictures: ModuleType) -> None:
    values, scores = (np.array([3.0, 2.0]), np.array([0.5, 0.3])), np.random.default_rng(0).normal(size=(40, 2))
    drawn = tutorial_pictures.Portrait("some", *values, scores, np.arange(40))
    figure = tutorial_pictures.picture_of_portraits([drawn, tutorial_pictures.Portrait("others", *values, scores)])
    assert [axes.get_title(loc="left") for axes in figure.axes[:4]] == ["some", "variance captured", "scores", "scores"]
    assert [axes.get_legend() is None for axes in figure.axes] == [True, True, True, False, *[True] * 4]
    assert len(figure.axes[3].get_legend().get_texts()) == 10
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), [0, 50, 80])
    strips = {"fine": np.zeros((20, 100, 3)), "coarse": np.ones((5, 25, 3))}
    figure = tutorial_pictures.picture_of_strips(strips, title="strips")
    figure.draw_without_rendering()
    fine, coarse = (axes.get_window_extent() for axes in figure.axes)
    assert fine.size == pytest.approx(coarse.size, rel=0.01)
