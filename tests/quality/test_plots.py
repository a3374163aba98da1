"""Images, spectra, scores and errors as they are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from bigpca.quality.plots import (
    Portrait,
    component_tiles,
    draw_captured,
    draw_eigenvalues,
    draw_errors,
    draw_scores,
    image_tiles,
    picture_of_components,
    picture_of_portraits,
    picture_of_strips,
    save_picture,
)


def test_a_tile_holds_its_component_scaled_to_its_own_peak() -> None:
    components = np.array([[1.0, -2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0]])
    tiles = component_tiles(components, (2, 2), columns=2, gap=1)
    assert tiles.shape == (5, 5, 3)
    np.testing.assert_allclose(tiles[:2, :2, 0], [[0.75, 0.0], [0.5, 1.0]])
    np.testing.assert_allclose(tiles[:2, 3:], 0.5)
    np.testing.assert_allclose(tiles[3:, :2], 1.0)
    np.testing.assert_allclose(tiles[2], 1.0)


def test_colour_tiles_keep_their_channels() -> None:
    red = np.zeros((1, 12))
    red[0, ::3] = 1.0
    tiles = component_tiles(red, (2, 2, 3), columns=1)
    np.testing.assert_allclose(tiles, np.broadcast_to([1.0, 0.5, 0.5], (2, 2, 3)))


@pytest.mark.parametrize("shape", [(3, 2), (4,), (2, 2, 1), (1, 2, 2)])
def test_an_image_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"image_shape = .* components of 4 features .* Give the shape of one image"):
        component_tiles(np.eye(4), shape)


def test_the_picture_is_a_png_and_leaves_zero_variance_off_the_log_axis(tmp_path: Path) -> None:
    ratio = np.array([0.7, 0.3, 0.0, 0.0])
    path = save_picture(picture_of_components(np.eye(4), ratio, (2, 2), title="four"), tmp_path / "four.png")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("limits", "expected"), [((0, 255), [0, 0.2, 1, 1]), ((255, 0), [1, 0.8, 0, 0])])
def test_image_tiles_share_one_scale_and_are_cut_at_its_ends(
    limits: tuple[float, float], expected: list[float]
) -> None:
    tiles = image_tiles(np.array([[-0.0, 51.0], [255.0, 300.0]]), (1, 2), columns=2, gap=0, limits=limits)
    assert tiles.shape == (1, 4, 3)
    np.testing.assert_allclose(tiles, np.broadcast_to(np.array(expected)[:, None], (1, 4, 3)))


def test_image_tiles_refuse_limits_without_a_range_and_a_shape_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"limits = \(3, 3\) are equal.*Give for example \(0, 1\)"):
        image_tiles(np.eye(4), (2, 2), limits=(3, 3))
    with pytest.raises(ValueError, match="image_shape"):
        image_tiles(np.eye(4), (2, 3))


def test_eigenvalues_are_drawn_at_their_numbers_and_those_without_a_logarithm_left_out() -> None:
    axes = Figure().subplots()
    draw_eigenvalues(axes, np.array([4.0, 2.0, 0.0, 1.0, -1e-20]))
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[1, 4], [2, 2], [4, 1]])
    assert axes.get_yscale() == "log"


def test_the_marked_counts_hold_their_levels_and_one_component_less_does_not() -> None:
    ratio = 0.7 ** np.arange(30)
    ratio /= ratio.sum() / 0.97  # all of them hold 97 %
    axes = Figure().subplots()
    counts = draw_captured(axes, ratio, levels=(0.5, 0.9, 0.95, 0.99))
    held = np.cumsum(ratio)
    assert len(counts) == 3
    for k, level in zip(counts, (0.5, 0.9, 0.95), strict=True):
        assert held[k - 1] >= level > held[k - 2]
    curve, marks = axes.lines
    np.testing.assert_allclose(curve.get_ydata(), 100 * np.append(0.0, held))
    np.testing.assert_array_equal(marks.get_xdata(), counts)
    assert axes.texts[0].get_text().splitlines()[0] == f"{counts[0]} hold 50 %"
    assert draw_captured(Figure().subplots(), ratio[:1]) == []


@pytest.mark.parametrize(("pair", "columns", "numbers"), [((0, 1), (0, 1), (1, 2)), ((0, -1), (0, 3), (1, 4))])
def test_scores_of_each_kind_are_drawn_in_its_colour(
    pair: tuple[int, int], columns: tuple[int, int], numbers: tuple[int, int]
) -> None:
    scores, labels = np.random.default_rng(0).standard_normal((9, 4)), np.array(list("aabbbaacc"))
    axes = Figure().subplots()
    draw_scores(axes, scores, pair, labels)
    assert [points.get_label() for points in axes.collections] == ["a", "b", "c"]
    for points, kind in zip(axes.collections, "abc", strict=True):
        np.testing.assert_array_equal(points.get_offsets(), scores[labels == kind][:, columns])
    assert len({tuple(points.get_facecolor()[0]) for points in axes.collections}) == 3
    assert (axes.get_xlabel(), axes.get_ylabel()) == (f"score on component {numbers[0]}", f"on component {numbers[1]}")


def test_errors_are_drawn_by_name_with_ticks_that_do_not_touch() -> None:
    axes = Figure().subplots()
    curves = {"one": ([500, 1000], [4.0, 2.0]), "two": ([1280], [3.0])}
    draw_errors(axes, curves, xlabel="q", ylabel="error")
    for line, (name, (sizes, errors)) in zip(axes.lines, curves.items(), strict=True):
        assert line.get_label() == name
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([sizes, errors]))
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["500", "1,000"]


@pytest.mark.parametrize(("n_kinds", "named"), [(1, False), (2, True), (10, True), (11, False)])
def test_a_portrait_has_four_pictures_and_names_two_to_ten_kinds(n_kinds: int, named: bool, tmp_path: Path) -> None:
    scores = np.random.default_rng(0).standard_normal((22, 3))
    drawn = Portrait("some", np.array([3.0, 2.0, 1.0]), np.array([0.5, 0.3, 0.2]), scores, np.arange(22) % n_kinds)
    figure = picture_of_portraits([drawn, Portrait("others", *_plain(drawn))], title="two")
    assert len(figure.axes) == 8
    assert figure.axes[0].get_title(loc="left") == "some"
    legend = figure.axes[3].get_legend()
    assert (legend is not None) == named
    assert legend is None or len(legend.get_texts()) == n_kinds
    assert figure.axes[7].get_legend() is None
    assert save_picture(figure, tmp_path / "portraits.png").read_bytes().startswith(b"\x89PNG")


def _plain(portrait: Portrait) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return portrait.explained_variance, portrait.explained_variance_ratio, portrait.scores


def test_strips_of_any_resolution_are_drawn_as_wide(tmp_path: Path) -> None:
    strips = {"fine": np.zeros((20, 100, 3)), "coarse": np.ones((5, 25, 3))}
    figure = picture_of_strips(strips, title="strips")
    save_picture(figure, tmp_path / "strips.png")  # lays it out
    fine, coarse = (axes.get_window_extent() for axes in figure.axes)
    assert fine.width == pytest.approx(coarse.width, rel=0.01)
    assert fine.height == pytest.approx(coarse.height, rel=0.01)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(strips)
