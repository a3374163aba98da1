"""Rows become blocks: which rows are read at a time, how, and in which precision. Everything here runs inside tasks.

- ``layout``    chunks to reads, slabs, groups and segments: a function of shape, dtype and chunks only
- ``readers``   read one range of rows, from a store or by running the Dask nodes that compute it, one read ahead
- ``arithmetic``  the four operations that accumulators are written with: another library of arrays is one record
- ``blocks``    a slab of rows shifted, checked and converted: the ``Block`` that accumulators receive
- ``row_maps``  functions from rows to rows, and the chain of them that acts before the shift

A group task iterates over its reads; each slab of a read becomes one ``Block``, which exists only in that task and is
never pickled. The shift is the same for all slabs of a group: sums are of ``x - shift``, so an offset of the data costs
no precision.

Add a reader for a new origin of rows (a seekable stream, sparse chunks: a reader may return CSR); a preprocessing of
rows as a row map; a policy for bad values in ``prepare_block``, the one place that examines every dense value.
"""
