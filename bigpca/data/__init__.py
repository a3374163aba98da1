"""From stored data of any format to a row-chunked Dask array, without reading it; and labels aligned with its rows.

In reading order:

- ``sources``      ``bp.open``: any path, array or table to one Dask array
- ``dask_arrays``  what a Dask array carries beside its blocks; the source behind one, and whose rows and columns it has
- ``source``       ``Source``, what every format is: a range of rows read into new memory; which member, which index
- ``files``        which format a path holds: by extension and content
- ``flat_files``   .npy, safetensors, .pt, memory maps, folders of shards
- ``hdf5``         one format
- ``genotypes``    .bed and .pgen of PLINK: variant by variant
- ``tables``       Parquet: a file, a folder, a glob or partitions
- ``zarr_arrays``, ``zarr_format``   Zarr: stored objects, reads and groups; what its metadata may say
- ``sparse``       sparse rows: their form in tasks, in memory, and as three arrays of a file or store
- ``batches``      ``bp.from_batches``: rows that come in batches, cut again by absolute row, and their labels
- ``containers``   arrays, tables and AnnData in memory, recognised without importing their libraries
- ``views``        what is a row, as a user describes it by a pattern; applied where rows are read
- ``grids``        dimensions and coordinates of a DataArray, kept beside its rows and by models
- ``lags``         windows of a time series as rows, and the series of windows
- ``checks``       checks before a row is read
- ``labels``, ``label_files``   labels for the rows: checked, aligned by absolute row number; whatever stands beside
  X and is read whole, as X is read: columns of files, also of AnnData and 10x Genomics, stores, Dask
- ``weights``  weights of the rows: read like labels, checked; how many rows they count as, and degrees of freedom;
  ``bp.reliability``
- ``keys``         a key for each row beside the numbers of a store; the rules of a join; weights and labels joined to
  rows by key; ``bigpca.data.by_key``
- ``provenance``   how a model or scores were made; and whether an array holds rows, or a model's scores
- ``stores``       whole stores: ``bp.ingest``, ``bp.FeatureWriter`` and ``bp.verify``; alone may import ``passes``

``bp.open`` gets a ``Source`` from ``files`` and creates one Dask task per chunk; a fit gets that record back from
``source_of`` and reads it directly, without the graph.

Add a format: one file with a frozen subclass of ``Source``, its extension in ``files``, one row in
``tests/data/savers.py``. Data that cannot be read faithfully are rejected here, by their metadata, before any task
runs.
"""

from typing import TYPE_CHECKING

from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca.data.keys import by_key as by_key
    from bigpca.data.keys import stored_keys as stored_keys
    from bigpca.data.lags import lagged as lagged
    from bigpca.data.lags import unlagged as unlagged
    from bigpca.data.provenance import provenance_of as provenance_of
    from bigpca.data.stores import verify as verify
    from bigpca.data.weights import reliability as reliability

HOMES = {
    "bigpca.data.keys": "by_key stored_keys",
    "bigpca.data.lags": "lagged unlagged",
    "bigpca.data.provenance": "provenance_of",
    "bigpca.data.stores": "verify",
    "bigpca.data.weights": "reliability",
}

__getattr__, __dir__, __all__ = lazily(__name__, HOMES)
