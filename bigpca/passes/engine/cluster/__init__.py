"""Everything that talks to ``distributed``, which no other module of the engine imports.

- ``run``            one pass on a client: a window of segments, waits with limits, states moved off the workers
- ``segments``       segments in flight: submitted, watched, folded in order
- ``tasks``          the graph of one segment, and the tasks that store its state in a checkpoint
- ``release``        tasks are found by their keys and released when the work ends, wherever it was interrupted
- ``shared_copies``  broadcast values, one copy on every worker that folds groups
- ``watch``          waits with limits: no worker for too long, or a lost scheduler, is an error
- ``joining``, ``versions``   what a worker needs before its first read: software, files, memory
- ``stalls``         workers that make no progress: reported, and their segments submitted elsewhere too
- ``suspects``       groups whose workers died: retried, retried alone, or blamed
- ``outcomes``       the result of a future, or an error that a user can act on
- ``get``            a small graph computed where the passes run, with their limits

``run`` submits segments in a window, ``watch`` checks the cluster meanwhile, ``suspects`` decides which tasks to submit
again. The first result of a group counts, and results are merged by group number, so retries do not change a bit.
"""
