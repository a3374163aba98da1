"""From stored data of any format to a row-chunked Dask array, without reading it; and labels aligned with its rows.

In reading order:

- ``sources``      ``bp.open``: any path, array or table to one Dask array, and back to the source behind an array
- ``stored``       the source of rows in anything but Dask arrays and tables
- ``files``        which format a path holds: by extension and content
- ``storages``     the protocol ``Storage`` that every format implements: shape, dtype, row chunks, a range of rows
- ``row_source``   the (n, d) view of a storage that tasks read from; small, picklable, no open handles
- ``flat_files``, ``npz``, ``shards``, ``hdf5``, ``parquet``, ``zarr_*``   one format each
- ``bfloat16``     a dtype that NumPy does not have, in safetensors and Zarr
- ``members``   which array of a file or store that holds several
- ``sparse_groups``, ``sparse_rows``   three arrays as one sparse matrix; ``sparse``, its form in tasks
- ``cells``, ``cell_files``   AnnData in memory and in files: its matrices, the names of its cells and genes
- ``batches``, ``batch_stream``   ``bp.from_batches``: rows that come in batches, cut again by absolute row
- ``batch_labels``   the labels that come with them, known once their rows were read
- ``feature_writer``   ``bp.FeatureWriter``: batches to one Zarr array, resumable
- ``patterns``, ``choices``, ``pooling``   what is a row, as a user describes it, and which positions are used
- ``views``        what is a row, and which columns: applied where rows are read, carried by the Dask array
- ``grids``, ``stored_grids``   dimensions and coordinates of a DataArray, kept beside its rows and by models
- ``marks``        records that a Dask array carries in its graph, such as a view or a grid
- ``samples``      back from rows to samples: scores as maps, labels of samples for their rows
- ``checks``, ``decoded_sizes``, ``urls``   checks before a row is read, and which part of a URL may be shown
- ``labels``, ``label_*``   labels for the rows: read, checked, aligned by absolute row number
- ``weights``      weights of the rows: read like labels, checked; ``bp.reliability``
- ``alignment``    weights and labels joined to rows by key; ``bp.by_key``
- ``keys``, ``provenance``   beside the numbers of a store: a key for each row; how a model or scores were made
- ``growth``       which rows of a store a model has seen, for stores that grow
- ``ingest``, ``verify``    commands on whole stores; ``ingest`` alone may import ``passes``

``bp.open`` gets a storage from ``files``, wraps it in a ``RowSource`` and creates one Dask task per chunk; a fit gets
that record back from ``source_of`` and reads it directly, without the graph.

Add a format: one file with a frozen record that implements ``Storage``, its extension in ``files``, one row in
``tests/data/savers.py``. Data that cannot be read faithfully are rejected here, by their metadata, before any task
runs.
"""
