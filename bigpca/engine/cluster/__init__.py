"""Everything that talks to ``distributed``, which no other module of the engine imports.

- ``run``  Drive one pass on a ``distributed.Client``: segments in a window, waits with limits, states moved off the
  workers.
- ``tasks``  The graph of one segment, and the tasks that store segments' states in a checkpoint that workers can
  write.
- ``watch``  Waits on a cluster have limits: no worker for too long, or a lost scheduler, is an error instead of a
  wait.

``run`` submits segments in a window, and its ``Suspects`` decide which tasks to submit again; ``watch`` checks the
cluster meanwhile. The first result of a group counts, and results are merged by group number, so retries do not change
a bit.
"""
