"""What a run will cost, computed before any row is read; plans that do not fit are rejected.

Pure arithmetic on shapes and limits. The limits come from :mod:`bigpca.passes.engine.resources`, which queries Dask
and the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html import escape
from math import inf

from bigpca.errors import EvaluationBudgetError, MemoryBudgetError, format_bytes

SAFE_SHARE = 0.75  # of a worker's memory limit; Dask pauses the worker at 0.80


@dataclass(frozen=True)
class Resources:
    """What one process of the run may use.

    Attributes
    ----------
    threads : int
        Task threads per process.
    limit_bytes : int
        Memory limit of one process.
    baseline_bytes : int
        Memory that the idle process holds.
    where : str
        Where the limit comes from.
    local : bool
        Whether passes run in the planning process, which then also holds what an iteration keeps between passes.
    """

    threads: int
    limit_bytes: int
    baseline_bytes: int
    where: str
    local: bool = True

    @property
    def room_bytes(self) -> int:
        """Bytes available to the run: three quarters of the limit, less the baseline."""
        return int(SAFE_SHARE * self.limit_bytes) - self.baseline_bytes


def peak_bytes(read_bytes: int, copy_bytes: int, product_bytes: int, state_bytes: int) -> int:
    """Return the peak bytes of one worker thread: 3 reads + 1 slab (if it is copied) + product + 4 states.

    Two reads are held (one in use, the next being read) and a third accounts for the decoder's buffers. A slab is a
    copy if rows are upcast or owned by someone else, and otherwise a view of its read.
    """
    return 3 * read_bytes + copy_bytes + product_bytes + 4 * state_bytes


@dataclass(frozen=True)
class Plan:
    """Cost of a run, before it runs.

    Attributes
    ----------
    solver, reason : str
        What will run, and why it was chosen.
    passes : float
        Reads of the whole input.
    bytes_read : int
        Bytes decoded over all passes.
    flops : float
        Floating-point operations of passes and solve.
    tasks : int
        Dask tasks.
    state_bytes : int
        One accumulator state.
    block_rows : int
        Largest number of rows multiplied at a time.
    peak_bytes : int
        Peak memory of one worker thread above the idle process.
    output_bytes : int
        Bytes of the model (and of scores, where they are written).
    resources : Resources
    notes : tuple of str
    evaluations : float
        Kernel evaluations; 0 without a kernel.
    most_evaluations : float
        Budget of kernel evaluations; a plan above it is rejected.
    most_passes : float or None
        Upper limit of the reads if their number depends on the data; ``passes`` is then the typical number. None if
        ``passes`` is exact.
    """

    solver: str
    reason: str
    passes: float
    bytes_read: int
    flops: float
    tasks: int
    state_bytes: int
    block_rows: int
    peak_bytes: int
    output_bytes: int
    resources: Resources
    notes: tuple[str, ...] = field(default=())
    evaluations: float = 0.0
    most_evaluations: float = inf
    most_passes: float | None = None

    @property
    def process_bytes(self) -> int:
        """Peak of one process above idle: every thread's peak, plus three states for merging."""
        return self.resources.threads * self.peak_bytes + 3 * self.state_bytes

    @property
    def fits(self) -> bool:
        """Whether it fits the memory of a process and the budget of kernel evaluations."""
        return self.process_bytes <= self.resources.room_bytes and self.evaluations <= self.most_evaluations

    @property
    def limit_bytes(self) -> int:
        """Memory limit of one process."""
        return self.resources.limit_bytes

    @property
    def baseline_bytes(self) -> int:
        """Memory that the idle process holds."""
        return self.resources.baseline_bytes

    def with_solver(self, solver: str, reason: str) -> Plan:
        """Return the plan with another solver's name and reason."""
        return replace(self, solver=solver, reason=reason)

    def shortage(self) -> str:
        """Describe what does not fit, with the numbers."""
        room = self.resources
        return (
            f"{self.solver} needs {format_bytes(self.process_bytes)} per process ({room.threads} threads x "
            f"{format_bytes(self.peak_bytes)} + 3 states of {format_bytes(self.state_bytes)}), but "
            f"{format_bytes(max(0, room.room_bytes))} are left of {room.where} = {format_bytes(room.limit_bytes)} "
            f"({SAFE_SHARE:.0%} of it, less {format_bytes(room.baseline_bytes)} that the idle process holds)"
        )

    def check(self) -> None:
        """Raise if the plan does not fit.

        Raises
        ------
        EvaluationBudgetError
            If it needs more kernel evaluations than ``max_kernel_evaluations``.
        MemoryBudgetError
            If its peak does not fit the memory limit; the message has the numbers and the alternatives.
        """
        if self.evaluations > self.most_evaluations:
            raise EvaluationBudgetError(
                f"{self.solver} needs about {self.evaluations:.2g} kernel evaluations, over max_kernel_evaluations = "
                f"{self.most_evaluations:.2g}. Use NystromKernelPCA(n_landmarks=1000), "
                "which needs 1,000 per row and read and reports "
                'its error (with labels: form="direct"), or raise max_kernel_evaluations.'
            )
        if not self.fits:
            raise MemoryBudgetError(
                f"{self.shortage()}. Give each process more memory or fewer threads, store the input in smaller chunks "
                "(bp.ingest(source, out, chunk_rows=...)), or reduce the number of columns."
            )

    def rows(self) -> list[tuple[str, str]]:
        """Return the plan as (name, text) pairs for display."""
        reads = f"{self.passes:g} read{'' if self.passes == 1 else 's'} of X, {format_bytes(self.bytes_read)}"
        if self.most_passes is not None:
            reads += f"; at most {self.most_passes:g} reads"
        return [
            ("solver", f"{self.solver}: {self.reason}"),
            ("reads", reads),
            (
                "work",
                f"{self.flops / 1e9:,.4g} Gflop in {self.tasks:,} tasks, blocks of up to {self.block_rows:,} rows",
            ),
            *([("kernel", f"{self.evaluations:.3g} evaluations")] if self.evaluations else []),
            ("state", format_bytes(self.state_bytes)),
            (
                "peak memory",
                f"{format_bytes(self.peak_bytes)} per thread, {format_bytes(self.process_bytes)} per process "
                f"({self.resources.threads} thread{'s' if self.resources.threads > 1 else ''}) above "
                f"{format_bytes(self.baseline_bytes)} idle",
            ),
            (
                "limit",
                f"{format_bytes(self.limit_bytes)}, {self.resources.where}: {'fits' if self.fits else 'DOES NOT FIT'}",
            ),
            ("output", format_bytes(self.output_bytes)),
            *(("note", note) for note in self.notes),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _repr_html_(self) -> str:
        """Return the rows as a table, for notebooks."""
        cells = (
            f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(text)}</td></tr>'
            for name, text in self.rows()
        )
        return f"<table>{''.join(cells)}</table>"
