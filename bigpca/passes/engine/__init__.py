"""One pass executed: resumed from a checkpoint, run on threads or a cluster, merged in a fixed order, reported.

- ``jobs``        a pass described as data, and the functions that its tasks run on any scheduler
- ``run``         one execution: numbers passes, rejects those that the plan does not have, adds up reads
- ``states``      the state of a pass: what all accumulators hold, with the bookkeeping that travels with it
- ``events``      what a run reports, as frozen records; ``progress`` shows them on a terminal, in a notebook, as JSON
- ``checkpoint``  finished segments and one growing prefix, as files that are complete or absent
- ``resources``   threads, memory limit and idle memory of the processes of a run
- ``speed``       how fast one core is, for the time that a plan states
- ``cancel``      flags that tasks check between slabs
- ``local``       a pass on Dask's local schedulers
- ``cluster/``    a pass on a ``distributed.Client``
- ``driver``      ``run_pass``: the one entry point, on top of the others

The merge tree depends only on the layout, so the bits do not depend on workers, threads, kills or resumes.

Add a consumer of events in ``progress``; a fault that a run must survive belongs to ``cluster`` or ``checkpoint``,
with a row in ``tests/faults``.
"""
