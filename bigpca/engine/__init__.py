"""One pass executed: resumed from a checkpoint, run on threads or a cluster, merged in a fixed order, reported.

- ``interfaces``  What the engine requires of others, in small protocols. It never looks inside a block, and knows no
  kind of rows.
- ``planning``  What a run will cost, computed before any row is read: what passes and solves cost, and the plan, their
  sum.
- ``layout``  How rows are divided, depending only on shape, dtype and chunks, never on memory limits, workers or
  threads.
- ``group``  One group: its rows are read, one read ahead, and folded into one state.
- ``jobs``  One pass described as data, the functions that its tasks run on any scheduler, and the state that they
  make.
- ``run``  One execution of a fit: numbers its passes, checks them against the plan, and counts their reads.
- ``events``  What a run reports, as frozen records, and the consumers that display them: terminal, notebook, log.
- ``checkpoint``  Checkpoints of a pass: finished segments and one growing prefix, as files that are complete or
  absent.
- ``resources``  What the processes of a run may use: threads, memory limit and idle memory, queried from Dask or the
  machine.
- ``local``  Run a pass in this process: as one Dask graph, or over rows that come in one order, which this thread
  reads.
- ``cluster/``  a pass on a ``distributed.Client``
- ``driver``  Drive one pass: load what a checkpoint holds, run the rest here or on a cluster, and report.

A verb passes a ``Pass`` (templates, a function that cuts a group, a finish) to ``run_pass``. It is checked against the
plan and gets a number, finished segments are read from the checkpoint, the remaining groups run as tasks, and the
finish is applied to the merged state. The merge tree depends only on the layout, so the bits do not depend on workers,
threads, kills or resumes.

Add a consumer of events in ``events``; a fault that a run must survive belongs to ``cluster`` or ``checkpoint``,
with a row in ``tests/faults``.
"""
