"""Rows become blocks: which rows are read at a time, how, and in which precision. Everything here runs inside tasks.

- ``layout``      chunks to reads, slabs, groups and segments: a function of shape, dtype and chunks only
- ``readers``     one range of rows, read from a store or computed by Dask nodes, cut by a view, with one read ahead
- ``arithmetic``  the four operations with which accumulators are written; another array library is one more record
- ``blocks``      the ``Block`` that accumulators receive: rows checked, converted and shifted, dense or CSR
- ``row_maps``    functions from rows to rows, and the chain of them that is applied before the shift
- ``casts``       those that change the dtype of what is stored
- ``preprocessing``   those that users give to estimators: norms, powers

A group task iterates over its reads. A dense slab without maps becomes one ``Block``, checked and shifted in one
traversal of memory. With maps, incomplete rows are rejected or omitted first, and each mapped tile becomes a ``Block``.
Blocks exist only in that task and are never pickled. The shift is the same for all blocks of a group: sums are of
``x - shift``, so an offset of the data costs no precision. Sparse rows have shift 0, and are made dense strip by strip
for the accumulators that require it.

Add a reader for a new origin of rows (a seekable stream; a reader may return CSR), a row map for a
preprocessing of rows. Bad values are found in ``prepare_block`` (dense rows) and ``sparse_block``.
"""
