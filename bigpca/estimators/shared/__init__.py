"""The parts that estimators of all families share.

- ``transformer``   ``Estimator``, the base of all: ``plan``, ``fit``, ``transform``, ``save``; what a subclass writes
- ``opening``       the way of rows, labels and what belongs to them into a fit, and of new rows into a fitted model;
  one planned read of them for what is said of all
- ``fit``           ``Fit``: one way to solve a problem, whose passes are declared once; ``choose`` compares fits by
  cost; a run and its surroundings; the seed of a fit
- ``inputs``        what users may pass as X, checked once at the entrance; what a fit made of its rows; scikit-learn's
  base classes, with types
- ``outputs``       rows mapped by a fitted model, and where they go: to the caller, lazily or at once, or to a store
- ``labelled``      labelled arrays in and out: columns without values, scores, rows on the grid of the fit, Datasets
- ``growing``       ``partial_fit`` and what ``merge`` needs, for all families
- ``exporting``     what a fitted model gives: names, tables, the report, its display; maps for other libraries
- ``results``       the fitted numbers: a frozen record, or in its place the solve that will return it
- ``certificates``  bounds of the error of approximate fits, and their warnings
- ``files``         a fitted estimator as arrays and JSON values; rows with which a kernel compares new rows

``fit`` opens X (``inputs``), gets the ``Fit`` of the class, raises if its plan does not fit in memory, and executes it
inside ``running``, whose ``Run`` rejects every pass that was not declared. The attributes of the model are those of the
record that it returns (``results``).

Nothing here depends on a solver or a family: such code belongs in the folder of the family.
"""
