"""What every estimator is made of, whatever family it belongs to.

- ``transformer``  the base of all: ``plan``, ``fit``, ``transform`` (lazy, in memory, or to a store), ``save``
- ``waiting``      answers to added rows, which are solved when they are asked for
- ``fit``          ``Fit``: one way to solve a problem, whose passes are declared once; ``choose`` compares fits by cost
- ``inputs``       what may be given as X, checked once at the entrance
- ``running``      what a run needs around it: progress, the locked checkpoint, an input that does not change
- ``files``        a fitted estimator as arrays and JSON values
- ``references``   rows that new rows meet in a kernel: held in memory, or read again from their store

``fit`` opens X (``inputs``), asks the class for its ``Fit``, raises if its plan does not fit the memory, and runs it
inside ``running``, which opens a ``Run`` that rejects whatever the plan does not have; the class then sets its
attributes from what came back.

Nothing here knows a solver or a family: what is specific to one belongs to that family's room.
"""
