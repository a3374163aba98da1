# %% [markdown]
# # PCA on a shared Dask cluster, from a notebook
#
# This notebook takes its settings from environment variables, so you do not need to edit it:
#
# * `DASK_SCHEDULER_ADDRESS`: the scheduler, such as `tls://10.0.0.1:8786`. Without it, two threads of this process
#   work.
# * `DASK_CONFIG`: the directory with the certificates of a scheduler that uses TLS.
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
# `bp.open` reads only metadata. Replace `rows.zarr` by your own store; if there is none, the cell writes a small one.

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
# The plan says what the fit will cost, and whether it fits the memory of the cluster's workers. It reads nothing.

# %%
pca = bp.PCA(n_components=8)
pca.plan(X)

# %% [markdown]
# ## The fit
#
# You can interrupt this cell at any time. The workers are free again within one read, and finished work is in the
# checkpoint. Run the cell again, even with a new kernel or a new scheduler: the bar starts at the finished share, and
# the result has the same bits as if the fit had never stopped. The bar is redrawn with every update, so you see it
# again after the browser reconnects.

# %%
pca.fit(X, checkpoint=folder / "run.ckpt", progress=True)

# %% [markdown]
# The fit leaves nothing in the cluster's memory. You can delete the checkpoint after you have saved the model.

# %%
pca.save(folder / "model.zarr", overwrite=True)
client.who_has()

# %% [markdown]
# ## The results
#
# Components and eigenvalues are small, so they are in this kernel's memory. There are as many scores as rows.
# `transform` is lazy: look at a few rows, draw a sample of whole chunks, and let the workers write all scores.

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
