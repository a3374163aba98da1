# %% [markdown]
# # PCA on a shared Dask cluster, from a notebook
#
# The environment says where things are, so that this notebook needs no editing:
#
# * `DASK_SCHEDULER_ADDRESS`: the scheduler, such as `tls://10.0.0.1:8786`. Without it two threads of this process work.
# * `DASK_CONFIG`: the directory with the certificates of a scheduler that speaks TLS.
# * `SHARED_FOLDER`: a folder that this notebook and all workers see under the same path.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
from distributed import Client

import bigpca as bp

address = os.environ.get("DASK_SCHEDULER_ADDRESS")
here = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": "127.0.0.1:0"}
client = Client(address) if address else Client(**here)
client.dashboard_link

# %% [markdown]
# ## The data
#
# `bp.open` reads metadata only. Put your own store in the place of `rows.zarr`; where there is
# none, a small one is made.

# %%
folder = Path(os.environ.get("SHARED_FOLDER") or tempfile.mkdtemp(prefix="bigpca-jupyter-"))
if not (folder / "rows.zarr").exists():
    rng = np.random.default_rng(0)
    clusters = 4 * rng.standard_normal((5, 64))
    rows = clusters[rng.integers(0, 5, 20_000)] + rng.standard_normal((20_000, 64))
    bp.ingest(rows.astype("float32"), folder / "rows.zarr", chunk_rows=500)
X = bp.open(folder / "rows.zarr")
X

# %% [markdown]
# ## The plan
#
# What the fit will cost, and whether it fits the memory of the cluster's workers. Nothing is read.

# %%
pca = bp.PCA(n_components=8)
pca.plan(X)

# %% [markdown]
# ## The fit
#
# Interrupt this cell whenever you like: the workers are free again within a read, and what was finished is in the
# checkpoint. Run it again, with a new kernel or a new scheduler too: the bar begins at what is done, and the result has
# the same bits as if it had never stopped. The bar itself is drawn anew with every update, so it is there again when
# the browser comes back.

# %%
pca.fit(X, checkpoint=folder / "run.ckpt", progress=True)

# %% [markdown]
# Nothing of the fit stays in the cluster's memory; the checkpoint can go when the model is saved.

# %%
pca.save(folder / "model.zarr", overwrite=True)
client.who_has()

# %% [markdown]
# ## The results
#
# Components and eigenvalues are small and are here. Scores are as long as the data: `transform` is lazy, so look at a
# few rows, draw a sample of whole chunks, and let the workers write them all.

# %%
captured = pca.explained_variance_ratio_.sum()
print(f"{pca.n_components_} components capture {captured:.1%} of the variance")
pca

# %%
scores = pca.transform(X)
scores[:5].compute().round(2)

# %%
sample = scores.blocks[:: max(1, scores.numblocks[0] // 2)].compute()
bp.plots.scores(pca, sample)

# %%
pca.transform(X, out=folder / "scores.zarr", overwrite=True, progress=True)

# %%
client.close()
