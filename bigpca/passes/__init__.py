"""One read of X: rows go in, mergeable states or mapped rows come out. Nothing above this room builds a Dask graph.

The verbs, which are what estimators call:

- ``rows``      ``RowInput``: X as the engine sees it: where rows come from, a view, row maps, weights, policies
- ``fold``      all rows into accumulators, group by group, merged in a fixed tree: one read
- ``columns``   the same over blocks of columns, for stores that are chunked in columns
- ``panels``    pairs of row panels, for the dot matrix of a store chunked in rows
- ``sweeps``    every pair of tiles of a kernel matrix, none of them kept
- ``project``   rows mapped to rows: lazily, in memory, or into a new Zarr array
- ``graphs``    Dask graphs that are no plain source: cut lazily, one group at a time
- ``sampling``  which rows a sample takes

and the rooms below them, bottom to top: ``reading`` (rows become blocks), ``accumulators`` (what blocks are folded
into), ``engine`` (one pass executed, checkpointed and reported), ``engine.cluster`` (all that talks to
``distributed``).

Each verb has two halves. ``row_pass`` declares a read: how rows are cut, in which precision they are multiplied, and
what it costs; a plan is the sum of such declarations. ``fold`` executes it: it cuts rows into group tasks and hands a
``Pass`` to ``engine.driver``, which holds it to the plan, resumes from a checkpoint, runs the rest on threads or a
cluster, and merges states in an order that depends on the layout alone.

Add a new kind of read only if no verb fits: it is a declaration, a task body, and a call of ``run_pass``.
"""
