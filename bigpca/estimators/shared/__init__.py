"""The parts that estimators of all families share.

- ``transformer``  the base of all: ``fit``, ``save``, and what a class of its own must have
- ``opening``      rows, weights and labels of a fit, opened; ``plan``
- ``transforming`` ``transform`` and other methods that map rows: lazily, in memory, or to a store
- ``outputs``      where mapped rows go: to the caller, or to a store
- ``finite``       NaN, infinities and overflow in mapped rows: rejected, or NaN rows
- ``frames``       Dask DataFrames out of Dask DataFrames, after ``set_output``
- ``land``         columns of labelled arrays that have no values: found before a fit, and left out
- ``grids``        labelled arrays out of labelled arrays: scores, and rows on the grid of the fit
- ``datasets``     a linear model as an xarray.Dataset
- ``waiting``      solves after added rows, postponed until a fitted attribute is accessed
- ``seeding``      the seed of a fit
- ``display``      what a notebook shows; the report
- ``fit``          ``Fit``: one way to solve a problem, whose passes are declared once; ``choose`` compares fits by cost
- ``inputs``       what users may pass as X, checked once at the entrance
- ``policies``     the parameters about missing values and chunks, checked
- ``names``        scikit-learn's parameter names, translated
- ``running``      a run and its surroundings: progress, the locked checkpoint, the check that the input is unchanged
- ``files``        a fitted estimator as arrays and JSON values
- ``records``      parameters that are records, in those files
- ``references``   rows with which a kernel compares new rows: in memory, or read again from their store

``fit`` opens X (``inputs``), gets the ``Fit`` of the class, raises if its plan does not fit in memory, and executes it
inside ``running``, whose ``Run`` rejects every pass that was not declared. The class then sets its attributes from the
result.

Nothing here depends on a solver or a family: such code belongs in the folder of the family.
"""
