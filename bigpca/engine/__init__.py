"""Rows are read, folded into small states, and merged: planned, bounded, resumable, here or on a cluster.

Seven nouns, in reading order; ``docs/engine.md`` walks one group through them:

    Source -> State -> Plan -> Group -> Tree -> Checkpoint -> Run

- ``interfaces``  Source and State: what the engine requires of others, in small protocols. It never looks inside a
  block, and knows no kind of rows.
- ``layout``  Plan: how rows are divided, depending only on shape, dtype and chunks, never on memory limits, workers or
  threads.
- ``planning``  Plan: what a run will cost, computed before any row is read: what passes and solves cost, and their sum.
- ``group``  Group: its rows are read, one read ahead, and folded into one state. The only loop over rows.
- ``jobs``  Tree: one pass described as data, the state that its groups make, and the fixed order in which states are
  merged.
- ``checkpoint``  Checkpoint: finished segments and one growing prefix, as files that are complete or absent.
- ``run``  Run: numbers the passes of a fit, checks them against the plan, and counts their reads.
- ``resources``  What the processes of a run may use: threads, memory limit and idle memory, queried from Dask or the
  machine.
- ``events``  What a run reports, as frozen records, and the consumers that display them: terminal, notebook, log.
- ``local``  A pass in this process: in its threads, or over rows that come in one order, which this thread reads.
- ``cluster/``  a pass on a ``distributed.Client``
- ``driver``  One pass, from its plan to its result: load what a checkpoint holds, run the rest here or on a cluster.

A verb passes a ``Pass`` (templates, a function that cuts a group, a finish) to ``run_pass``. It is checked against the
plan and gets a number, finished segments are read from the checkpoint, the remaining groups run as tasks, and the
finish is applied to the merged state. The merge tree depends only on the layout, so the bits do not depend on workers,
threads, kills or resumes.

The engine imports errors, settings, BLAS threads, arrays, seeds, records and storage, and nothing else of the package.
Add a consumer of events in ``events``; a fault that a run must survive belongs to ``cluster`` or ``checkpoint``,
with a row in ``tests/faults``.
"""
