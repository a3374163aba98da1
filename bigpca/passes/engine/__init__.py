"""One pass executed: resumed from a checkpoint, run on threads or a cluster, merged in a fixed order, reported.

- ``jobs``        a pass described as data, and the functions that its tasks run on any scheduler
- ``run``         one execution: numbers passes, rejects those that exceed the plan, counts reads and evaluations
- ``states``      the state of a pass: its accumulators over some groups, with counts and stamps
- ``events``      what a run reports, as frozen records; ``progress`` displays them: terminal, notebook, log, JSON
- ``checkpoint``  finished segments and one growing prefix, as files that are complete or absent
- ``resources``   threads, memory limit and idle memory of the processes of a run
- ``speed``       the measured speed of one core, for the time estimated by a plan
- ``solving``     the BLAS threads of solves, here and in the last task of a pass
- ``forks``       Dask threads and clients that a forked child must discard
- ``cancel``      flags that tasks check between slabs
- ``local``       a pass on Dask's local schedulers
- ``ordered``     a pass over rows in one order, as batches come: this thread reads, others fold
- ``cluster/``    a pass on a ``distributed.Client``
- ``driver``      ``run_pass``: the one entry point, on top of the others

A verb passes a ``Pass`` (templates, a function that cuts a group, a finish) to ``run_pass``. It is checked against the
plan and gets a number, finished segments are read from the checkpoint, the remaining groups run as tasks, and the
finish is applied to the merged state. The merge tree depends only on the layout, so the bits do not depend on workers,
threads, kills or resumes.

Add a consumer of events in ``progress``; a fault that a run must survive belongs to ``cluster`` or ``checkpoint``,
with a row in ``tests/faults``.
"""
