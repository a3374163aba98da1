"""Everything that talks to ``distributed``: no other module of the engine imports it.

- ``run``            one pass on a client: a window of segments, waits with limits, states that leave the workers
- ``segments``       segments on their way: sent, watched, folded in order
- ``tasks``          the graph of one segment, and the tasks that keep its state in a checkpoint
- ``shared_copies``  what all groups need, once on every worker that has groups
- ``watch``          waits have limits: no worker for too long, or a lost scheduler, is an error
- ``joining``, ``versions``   what a worker must have before its first read: software, files, memory
- ``suspects``       groups whose workers died: tried again, tried alone, or blamed
- ``outcomes``       what became of a future: its result, or the error that a user can act on
- ``get``            a small graph computed where the passes run, with their limits

``run`` sends segments in a window, ``watch`` wakes it when anything changes, ``suspects`` decides what to send again;
the first result of a group counts, and by its number, so that retries do not change a bit.
"""
