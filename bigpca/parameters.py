"""Parameters of constructors and settings of runs, declared once: what each may be, in words, and its option.

A parameter means the same wherever an estimator has it, so the table is by name; its default is in the constructor.
From the table come the check where a fit begins, and the options of the command line with their help. Only the
standard library is imported, so that ``bigpca --help`` is fast.

Add a parameter: a row of ``PARAMETERS``, if it has a range or an option. An estimator for which the values of a name
differ has them in its traits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bigpca.errors import check_choice, check_switch, closest, real_number

RULES = ("mle", "elbow", "gavish-donoho", "marchenko-pastur", "parallel-analysis", "cross-validated")
ANY = "(-inf, inf)"


@dataclass(frozen=True)
class Parameter:
    """What a parameter may be: a number in an interval, True or False, a word, or None; any of those that are set.

    Attributes
    ----------
    help : str
        Of the option of the command line; a parameter without help has none.
    interval : str
        Which numbers are allowed, such as "(0, 1]"; "" for none.
    what : str
        What is expected, for messages. Numbers without it are checked where they are used.
    whole : bool
        Whether numbers are integers.
    switch : bool
        Whether True and False are allowed.
    words : tuple of str, or a function that returns it
        A function for words that other packages may add to.
    foreign : mapping of str to str
        Our words for scikit-learn's.
    others : bool
        Whether values of other types are allowed, such as arrays, which are checked where they are used.
    none : str
        How the command line writes None; "" if that is not allowed.
    many : bool
        Whether the command line takes several numbers, separated by commas.
    form : str
        How a value is written, in the help, if neither numbers nor words say so. Without any, an option is a switch.
    flags : str
        Names of the option, if they are not that of the parameter.
    panel : str
        Of the help.
    acts : str
        When the parameter acts: on the "sums" of rows, to which no others can be added if it was changed; on their
        "solve"; or on the "scores" of a model that is fitted.
    """

    help: str = ""
    interval: str = ""
    what: str = ""
    whole: bool = False
    switch: bool = False
    words: tuple[str, ...] | Callable[[], tuple[str, ...]] = ()
    foreign: Mapping[str, str] = field(default_factory=dict)
    others: bool = False
    none: str = ""
    many: bool = False
    form: str = ""
    flags: str = ""
    panel: str = ""
    acts: str = "solve"

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are known now."""
        return self.words() if callable(self.words) else self.words

    @property
    def metavar(self) -> str:
        """How a value is written; "" for a switch."""
        number = f"{'INT' if self.whole else 'NUMBER'}{'S' * self.many}" if self.interval and not self.switch else ""
        return self.form or "|".join(filter(None, (number, *self.choices, self.none)))

    def check(self, name: str, value: Any) -> None:
        """Reject a value that the parameter may not have.

        Raises
        ------
        TypeError, ValueError

        Examples
        --------
        >>> PARAMETERS["tol"].check("tol", 1.5)
        Traceback (most recent call last):
        ValueError: tol = 1.5 is outside (0, 1); a relative error such as 1e-3 was expected.
        """
        from numpy import bool_

        if (self.none and value is None) or (self.switch and isinstance(value, bool | bool_)):
            return
        if self.interval and self.what:
            real_number(name, value, self.interval, self.what, whole=self.whole)
        elif self.words and not self.interval and (isinstance(value, str) or not self.others):
            check_choice(name, value, self.choices, self.foreign)
        elif self.switch:
            check_switch(name, value)

    def read(self, text: str) -> Any:
        """Return the value that a text stands for; raises ValueError if it stands for none.

        >>> PARAMETERS["n_components"].read("0.95"), PARAMETERS["max_passes"].read("none")
        (0.95, None)
        """
        if self.none and text == self.none:
            return None
        if not self.interval or text in self.choices:
            return text
        if self.many:
            found = [number_of(one) for one in text.split(",")]
            return found if len(found) > 1 else found[0]
        return number_of(text, (self.none, *self.choices))


def number_of(text: str, besides: Iterable[str] = ()) -> int | float:
    """Return the number that a text stands for: an int, of any size, if it is one.

    Raises
    ------
    ValueError
        For other texts; with the nearest word of those that are allowed ``besides``.
    """
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    except ValueError:
        raise ValueError(f"it is not a number.{closest(text, besides)}") from None


SWITCH = Parameter(switch=True)
FACTOR = Parameter("", "[0, 1]", "a Roweis factor such as 0.5")
PANELS = {
    "Model": {
        "n_components": Parameter(
            "How many: an integer, a fraction such as 0.95, all (default; 2 for cca, plssvd and pls), or a rule: "
            f"{', '.join(RULES)} (or cross-validated:FOLDS:likelihood).",
            ANY,
            words=RULES,
            none="all",
            form="K",
            flags="--n-components -k",
        ),
        "center": Parameter(
            "Subtract the mean, the default (--no-center: latent semantic analysis).", flags="--center/--no-center"
        ),
        "scale": Parameter("Divide each feature by its standard deviation.", flags="--scale/--no-scale"),
        "whiten": Parameter("Scores of unit variance.", flags="--whiten", acts="scores"),
        "preprocess": Parameter(
            "Applied to each row first: l2, power:0.5, power:0.5,l2 or normalize-total:1e4,log1p.", form="STEPS"
        ),
        "nan_policy": Parameter(
            "Rows with NaN: an error (default), left out, filled in by means; pca: left out of pairs, or estimated.",
            words=("raise", "omit", "mean", "pairwise", "em"),
        ),
        "solver": Parameter(
            "auto (default), covariance, dot, krylov; with a kernel auto, dense, krylov, features; supervised: "
            "landmarks (default), pairs.",
            form="NAME",
        ),
        "random_state": Parameter("Seed of everything random (default: 0).", ANY, whole=True, flags="--seed"),
        "memory_limit": Parameter("Reject a plan over this size, e.g. 2GiB.", form="SIZE"),
        "solve_threads": Parameter("BLAS threads of the final solve.", "[1, inf)", "a number of threads", whole=True),
        "metric": Parameter("generalized: the metric of columns, a matrix in a .npy file.", form="FILE"),
        "lag": Parameter(
            "tica: rows between the two rows of a pair (default: 1).",
            "[1, inf)",
            "a number of rows such as 10,",
            whole=True,
            acts="sums",
        ),
        "width": Parameter(
            "mnf: pixels of a line of an image, whose rows are its pixels.",
            "[1, inf)",
            "a number of pixels, or None,",
            whole=True,
            none="none",
            acts="sums",
        ),
        "rotation": Parameter(words=("varimax", "quartimax", "promax")),
        "power": Parameter("", "(1, inf)", "a power that sharpens the loadings, such as 4,"),
    },
    "Where it runs": {
        "workers_timeout": Parameter("", "[0, inf]", "a number of seconds"),
        "keep_state_bytes": Parameter("", "[0, inf]", "a number of bytes"),
    },
    "Labels": {
        "missing_labels": Parameter("Rows without a label: an error (default), or left out.", words=("raise", "drop")),
        "label_kernel": Parameter(
            "supervised: how labels are compared (default: linear).", words=("linear", "rbf"), acts="sums"
        ),
        "label_gamma": Parameter(
            "",
            "(0, inf)",
            "a number such as 0.1, or None for 1 / the variance of the labels,",
            none="none",
            acts="sums",
        ),
        "r1": replace(FACTOR, help="roweis: weight of the labels (default: 0.5; supervised PCA: 1)."),
        "r2": replace(FACTOR, help="roweis: weight of the scatter within (default: 0.5; Fisher: 1)."),
        "preprocess_y": Parameter(acts="sums"),
        "robust": Parameter(
            "fisher, roweis: raise small eigenvalues within classes.",
            "(0, 1)",
            "True, False or a share of the eigenvalues such as 0.98",
            switch=True,
            flags="--robust",
        ),
        "normalize": SWITCH,
        "regularization": Parameter(
            "fisher, roweis: added to the within-class scatter; cca: to both covariances.", ANY, words=("pinv",)
        ),
        "alpha": Parameter(
            "contrast: weight of the background. ridge: penalties, such as 0.1,1,10; folds choose one (default: 1).",
            ANY,
            many=True,
        ),
        "background": Parameter(
            "contrast: label of the rows of the background (default: 0); others are of interest.",
            form="LABEL",
            acts="sums",
        ),
        "cv": Parameter("ridge: folds by row number (default: 5).", "[2, 20]", "a number of folds", whole=True),
        "fit_intercept": SWITCH,
        "alpha_per_target": SWITCH,
        "n_features": Parameter(
            "random-projection: number of random features of the labels (default: 100).",
            "[1, inf)",
            "a number such as 100",
            whole=True,
            flags="--features",
            acts="sums",
        ),
        "n_features_to_select": Parameter(
            "scored: number or share of columns to keep (default: 0.5); cv chooses by cross-validation.",
            ANY,
            words=("cv",),
            flags="--select",
            acts="sums",
        ),
    },
    "Kernels: nonlinear components": {
        "kernel": Parameter(
            "linear, cosine, rbf and laplacian (gamma), poly (gamma, degree, coef0), sigmoid (gamma, coef0); for "
            "histograms ChiSquare, Hellinger, HistogramIntersection, JensenShannon, ...",
            form="NAME",
            acts="sums",
        ),
        "gamma": Parameter("For rbf, poly, sigmoid, laplacian; 1 / columns if not given.", ANY, acts="sums"),
        "degree": Parameter("Of poly (default: 3).", "[1, inf)", "a degree such as 3", whole=True, acts="sums"),
        "coef0": Parameter("For poly and sigmoid (default: 1).", ANY, "a number such as 1", acts="sums"),
        "n_landmarks": Parameter(
            "Nystrom approximation with this many landmark rows, for large n.",
            "[1, inf)",
            "a number of rows such as 1000, or None,",
            whole=True,
            none="none",
            form="INT",
            flags="--landmarks",
            acts="sums",
        ),
        "sampling": Parameter(
            "How landmarks are chosen: rpcholesky (default), uniform, kmeans, ...",
            words=("rpcholesky", "uniform", "diagonal", "column-norm", "kmeans"),
            others=True,
            form="NAME",
            acts="sums",
        ),
        "components_from": Parameter(words=("rows", "landmarks")),
        "fit_inverse_transform": Parameter(
            "", "(0, inf)", "True, False or the penalty of the regression, which for True is 1.0,", switch=True
        ),
        "max_kernel_evaluations": Parameter(
            "Reject a plan that needs more (default: 2e11).", "[1, inf]", "a number of at least 1"
        ),
    },
    "Few reads: eigenvalues to a tolerance": {
        "tol": Parameter(
            "krylov: relative error of the eigenvalues at which it stops (default: 0.001).",
            "(0, 1)",
            "a relative error such as 1e-3",
        ),
        "max_passes": Parameter(
            "krylov: maximum number of reads, or none to iterate until tol is met (default: 10).",
            "[2, inf)",
            "a number of reads of at least 2, or None for no limit,",
            whole=True,
            none="none",
        ),
    },
    "One read: an approximation with bounds": {
        "sketch": Parameter(
            "gaussian:500, sparse-sign:500, feature-hash:2000, srht:500, or for images downsample:3x224x224:3x56x56.",
            form="KIND:COLUMNS",
            acts="sums",
        ),
        "approximation": Parameter(
            "How components are computed from the sketch (default: nystrom); ritz needs one more read.",
            words=("nystrom", "tutorial", "ritz"),
        ),
    },
}
PARAMETERS = {name: replace(own, panel=panel) for panel, rows in PANELS.items() for name, own in rows.items()}
