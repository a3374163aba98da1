"""The names in bigpca of parameters that scikit-learn names differently."""

from __future__ import annotations

from collections.abc import Iterable

from bigpca.errors import closest

# scikit-learn's name -> (bigpca's name or "", a remark).
TRANSLATIONS = {
    "svd_solver": ("solver", '"full" and "covariance_eigh" are "covariance", "randomized" and "arpack" are "krylov".'),
    "eigen_solver": ("solver", '"dense", "krylov" or "auto".'),
    "iterated_power": ("max_passes", "solver='krylov' iterates until tol or max_passes."),
    "max_iter": ("max_passes", "An iteration stops at tol, or after max_passes reads of X."),
    "n_oversamples": ("tol", "solver='krylov' chooses its block and stops at tol."),
    "power_iteration_normalizer": ("", "solver='krylov' always orthonormalizes. Leave it out."),
    "shrinkage": ("regularization", "It is added to the scatter within classes."),
    "batch_size": ("", "X is read in blocks that memory_limit allows. Leave it out."),
    "copy": ("", "X is never changed. Leave it out."),
    "copy_X": ("", "X is never changed. Leave it out."),
    "n_jobs": ("", "Dask's scheduler sets the threads: dask.config.set(num_workers=...). Leave it out."),
    "kernel_params": ("kernel", "Give a kernel with its parameters, such as bigpca.kernels.RBF(gamma=0.1)."),
    "remove_zero_eig": ("", "Components of eigenvalue 0 have scores of 0. Leave it out."),
    "component_indices": ("sampling", "Give the numbers of the rows."),
    "store_covariance": ("", "PCA(...).get_covariance() returns it. Leave it out."),
    "priors": ("", "Classes have the shares that they have in y. Leave it out."),
    "seed": ("random_state", ""),
    "k": ("n_components", ""),
}


def check_parameter_names(estimator: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for a keyword argument that the estimator does not have, with the right name.

    Parameters
    ----------
    estimator : str
        Name of the class.
    given, known : names of the arguments, and of the parameters of the estimator

    Raises
    ------
    TypeError
        For a name of scikit-learn or a misspelt one; Python reports other unknown names.

    Examples
    --------
    >>> check_parameter_names("PCA", ["copy"], ["solver"])
    Traceback (most recent call last):
    TypeError: PCA has no parameter 'copy'. X is never changed. Leave it out.
    """
    own = list(known)
    for name in given:
        if name in own:
            continue
        ours, remark = TRANSLATIONS.get(name, ("", ""))
        if ours in own:
            hint = f" It is called {ours} here. {remark}".rstrip()
        elif not ours and remark:
            hint = f" {remark}"
        else:
            hint = closest(name, own)
        if hint:
            raise TypeError(f"{estimator} has no parameter {name!r}.{hint}")
