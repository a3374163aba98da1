"""One read of X: rows in, mergeable states or mapped rows out. No Dask graph is built above this package.

What estimators use:

- ``rows``      ``Rows``: X as the engine sees it: a source or graph, a view, row maps, weights, policies; and
  the checks of what reads require of rows: any order, dense values, states that use their weights
- ``side_by_side``  rows of several origins as one: pairs, layers, covariates
- ``prices``    what a block of rows takes, and what a read costs: bytes, peak memory, operations; and how fast
  this machine multiplies and reads, for estimates of time
- ``fold``      all rows into accumulators, group by group, merged in a fixed tree: one read
- ``panels``    pairs of row panels, or blocks of columns, of stores that are chunked in rows or in columns
- ``sweeps``    every pair of tiles of a kernel matrix; none is kept
- ``project``   rows mapped to rows: lazily, in memory, or into a new Zarr array or table
- ``summaries``  what there is in each column: which have no values, means that fill missing ones, the rows at its ends
- ``residuals``  what covariates leave: of sums, of a second read and of each row, and the regression behind it
- ``graphs``    Dask arrays without a direct source: their graphs are cut lazily, one group at a time

Below them, bottom to top; and ``bigpca/engine`` executes, checkpoints and reports one pass, here or on a cluster:

- ``reading/``       rows become blocks
- ``accumulators/``  what blocks are folded into

A ``Read`` is a value. Made, it declares how rows are cut, the precision of products, and the cost; a plan is the sum of
such costs. Called, it is executed: it cuts rows into group tasks and passes a ``Pass`` to ``engine.driver``, which
checks it against the plan, resumes from a checkpoint, runs the rest on threads or a cluster,
and merges states in an order that depends on the layout alone. In each task a reader applies the view, ``row_maps``
map the finite rows, and a ``Block`` with the shift and the rows' weights goes to the accumulators.

Add a new kind of read only if none fits: it is a subclass of ``Read`` with a ``job`` of its own, and a task body.
"""
