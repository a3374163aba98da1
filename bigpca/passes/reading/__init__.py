"""Rows become blocks: which rows are read at a time, how, and in which precision. Everything here runs inside tasks.

- ``readers``  Readers: rows of X inside a task, from a store or by running the Dask nodes that compute them;
  and the row maps of rows as they are stored: limits of values, and what fills in missing ones.
- ``blocks``  The row step of a group: rows that count become blocks, checked, mapped, about one shift, weighted, in the
  precision of the pass; policies for incomplete rows, and their errors.
- ``row_maps``  Row maps: pure functions from rows to rows, applied in a chain inside the task that reads them; among
  them the preprocessing that users give to an estimator.

A group task iterates over its reads. A dense slab without maps becomes one ``Block``, checked and shifted in one
traversal of memory. With maps, incomplete rows are rejected or omitted first, and each mapped tile becomes a ``Block``.
Blocks exist only in that task and are never pickled. The shift is the same for all blocks of a group: sums are of
``x - shift``, so an offset of the data costs no precision. Sparse rows have shift 0, and are made dense strip by strip
for the accumulators that require it.

Add a reader for a new origin of rows (a seekable stream; a reader may return CSR), a row map for a
preprocessing of rows. Which rows count is decided first, by ``bigpca.data.weights.CountedRows``; bad values are found
in ``Preparing``.
"""
