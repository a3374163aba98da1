"""Outputs at object stores: chunks are put at their final keys, and the root metadata last.

What an output replaces stays until it is complete: the keys of its chunks have another separator than those of the old
one. Then the old root goes, and what it named.

A Zarr array exists if its ``zarr.json`` does, so the one request that creates this object publishes all of them. What
an unfinished output needs is below ``.bigpca/`` in it, and deleted after publishing: the claim, which says whose output
it is; and the keys of rows. Chunks are created only if absent, and carry the mark of their run and their CRC-32: no run
overwrites what another has put, and one that is resumed need not get them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bigpca.blas import numerical_environment
from bigpca.errors import OutputExistsError, OutputLockedError, OutputWriteError, brief
from bigpca.storage.files import (
    Content,
    Contents,
    OccupiedError,
    Stored,
    canonical_json,
    check_size,
    parsed_document,
    temporary_folder,
)
from bigpca.storage.grammar import (
    CONTROL,
    MEMBERS,
    NEXT,
    PROVENANCE,
    ROOT,
    ROOTS,
    Kind,
    check_begins,
    check_replaced,
    declared,
    described,
    sort_keys,
    there,
    waiting,
)
from bigpca.storage.outputs import (
    Annotations,
    ChunkRecord,
    ChunkWriter,
    First,
    Form,
    Output,
    OutputLayout,
    Reserved,
    TableForm,
    partial_document,
    rows_at_end,
    with_manifest,
)
from bigpca.storage.places import Entry, ObjectStore
from bigpca.storage.requests import Request, get_part, in_order, requests, together

log = logging.getLogger("bigpca")
CLAIM = f"{CONTROL}/claim"
ROWS = f"{CONTROL}/rows"
KEYS = f"{CONTROL}/keys-"  # of a chunk's rows
MARKED = re.compile(r"([^:]*):(\d+):(\d+):([0-9a-f]{8})")  # of a chunk: the mark of its run, number, size and CRC-32


@dataclass(frozen=True)
class Claim:
    """Whose unfinished output a prefix holds: one object, created if absent, changed if it is still the same.

    Attributes
    ----------
    identity : str
        Of what is written; equal runs write equal bytes.
    layout : list
        Shape, dtype and rows per chunk.
    writer : str
        The run that holds it.
    marks : tuple of str
        Of the chunks that count as its own.
    kind : {"array", "model", "table"}
    members : tuple of str
        Of the output and of what it replaces: with the grammar of outputs, they name all keys that may be deleted here.
    clearing : bool
        Whether what was there before is still being deleted.
    replaces : str
        The ETag of the root that stands until this output is complete; empty for none.
    separator : {"/", "."}
        In keys of its chunks; those of what it replaces have the other one.
    host, pid, since
        For messages.
    """

    identity: str
    layout: list[Any]
    writer: str
    marks: tuple[str, ...]
    kind: Kind = "array"
    members: tuple[str, ...] = MEMBERS
    clearing: bool = False
    replaces: str = ""
    separator: str = "/"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Claim:
        """Return the claim in an object.

        Raises
        ------
        OutputExistsError
            If it is not one.
        """
        try:
            claim = cls(**json.loads(data))
            claim = replace(claim, marks=tuple(claim.marks), members=tuple(claim.members))
            texts = (claim.identity, claim.writer, claim.host, claim.since, *claim.marks, *claim.members)
            known = claim.kind in ROOTS and claim.separator in ("/", ".")
            if not all(isinstance(text, str) for text in (*texts, claim.replaces)) or not known:
                raise TypeError("a field has another type")
            if claim.layout or claim.kind != "model":
                shape, dtype, chunk_rows = claim.layout
                if min(*shape, chunk_rows - 1) < 0 or np.dtype(dtype).hasobject:
                    raise ValueError(f"its layout is {brief(claim.layout)}")
            return claim
        except (ValueError, TypeError, RecursionError) as error:
            raise OutputExistsError(
                f"{where} is not a claim of bigpca ({brief(error)}): it is damaged or forged. Delete it and the chunks "
                "beside it (c/), and run this again."
            ) from error

    def naming(self, members: Collection[str]) -> Claim:
        """Return the claim with these members, too."""
        return replace(self, members=tuple(sorted({*self.members, *members})))

    def over(self, place: ObjectStore, listed: Mapping[str, Entry]) -> Claim:
        """Return the claim of an output that leaves what is visible as it is; of a model, its whole copy does."""
        if self.kind == "model" or (root := listed.get(ROOTS[self.kind])) is None:
            return self
        before = "" if self.kind == "table" else str((_document(place) or {}).get("chunk_key_encoding"))
        return replace(self, replaces=root.etag, separator="." if "/" in before else "/")

    def leaves(self, key: str) -> bool:
        """Whether a key is of what it replaces."""
        return self.replaces != "" and not key.startswith((f"{CONTROL}/", f"c{self.separator}"))

    def encoded(self) -> bytes:
        """Return the object."""
        return json.dumps(asdict(self)).encode()

    def describe(self) -> str:
        """Return who holds it."""
        return f"run {self.writer} ({self.identity[:24]}), pid {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True)
class ObjectChunks(ChunkWriter):
    """Chunks as objects.

    Attributes
    ----------
    place : ObjectStore
    mark : str
        Of the run, or of all runs of an equal identity.
    """

    place: ObjectStore
    mark: str
    separator: str = "/"

    def chunk_key(self, index: int) -> str:
        """Return the key of one chunk."""
        return super().chunk_key(index).replace("/", self.separator)

    def _stored(self) -> Iterator[bytes]:
        """Get the chunks; in memory are one, and those in flight."""
        reads = (partial(self.place.get, self.chunk_key(index)) for index in range(self.n_chunks))
        return (found.data for found in in_order(self.nbytes, reads))

    def _begin(self, index: int, data: bytes, first: First) -> Future[ChunkRecord]:
        """Put the chunk; one that exists counts if it is this run's, or equal.

        Raises
        ------
        OutputLockedError
            If another run has put other bytes there.
        """

        def put() -> ChunkRecord:
            if first is not None:
                first()
            mark = f"{self.mark}:{index}:{len(data)}:{zlib.crc32(data):08x}"
            stored, etag, _ = created(self.place, self.chunk_key(index), data, mark)
            if stored is not data:  # by an equal run on another processor, which may round in another way
                self.decoded(index, stored)
            return ChunkRecord(index, zlib.crc32(stored), len(stored), etag=etag)

        return requests().begin(len(data), put)


def occupied(place: ObjectStore, key: str, mark: str, own: str) -> OutputLockedError:
    """Return the error for an object of another run."""
    return OutputLockedError(
        f"{place.describe(key)} exists with other values, of the run {mark or 'of another program'}; this is the run "
        f"{own}. Stop the other one, and run this again with overwrite=True."
    )


def created(place: ObjectStore, key: str, data: bytes, mark: str) -> Content:
    """Create an object of a run; return it, or the one with other bytes that a run of the same mark has put.

    Raises
    ------
    OutputLockedError
        If another run has put one.
    """
    try:
        return Content(data, place.put(key, data, if_absent=True, mark=mark), mark)
    except OccupiedError as error:
        if error.found.mark.partition(":")[0] != mark.partition(":")[0]:
            raise occupied(place, key, error.found.mark, mark) from None
        return error.found


class ObjectOutput(Output):
    """An output at an object prefix; see :func:`begin`."""

    writer: ObjectChunks
    path: str
    place: ObjectStore

    def __init__(
        self,
        place: ObjectStore,
        writer: ObjectChunks,
        layout: OutputLayout,
        claim: Claim,
        form: Form,
        *,
        joins: bool,
        published: bool,
    ) -> None:
        super().__init__(place.describe(), writer, joins=joins)
        self.place, self._layout, self._claim, self._form = place, layout, claim, form
        self._open, self.published = True, published
        self._records: dict[int, ChunkRecord] = {}

    def resume(self, listed: dict[str, Entry]) -> None:
        """Take over the chunks that earlier runs put."""
        if ROWS in listed:  # killed at its end, where its last chunk may be a short one
            where, remedy = self.place.describe(ROWS), "Run this again with overwrite=True."
            n = rows_at_end(self.place.get(ROWS).data, where, remedy)
            last = self.writer.chunk_key(n // self.writer.chunk_rows)
            self.place.delete([last, ROWS] if n % self.writer.chunk_rows else [ROWS])
            listed.pop(last if n % self.writer.chunk_rows else ROWS, None)
        looks = []
        for index in range(self.n_chunks):
            if (entry := listed.get(self.writer.chunk_key(index))) is not None:
                looks.append((1, partial(self._checked, index, None, entry)))
            elif not self.joins:  # rows in order, continued where the first chunk is missing: what was in flight goes
                before = {key for i in range(index) for key in (self.writer.chunk_key(i), f"{KEYS}{i}.json")}
                own, _ = sort_keys(key for key in listed if key.startswith((f"c{self.writer.separator}", KEYS)))
                self.place.delete([key for key in own if key not in before])
                break
        self._records = {record.index: record for record in together(looks) if record is not None}

    def _checked(self, index: int, record: ChunkRecord | None, entry: Entry) -> ChunkRecord | None:
        """Return the record of a stored chunk: the known one if the object is still the same, else that of its mark.

        None for one that is gone: an equal run has published a table meanwhile, and deleted its chunks.
        """
        if record is not None and (record.etag, record.size) == (entry.etag, entry.size):
            return record
        try:
            found = MARKED.fullmatch(mark := self.place.mark(entry.key))
        except FileNotFoundError:
            return None
        if found is None or found[1] not in self._claim.marks:
            raise occupied(self.place, entry.key, mark, self.writer.mark)
        # A copy of another chunk brings its mark along, and a cut one keeps its own.
        crc32 = int(found[4], 16)
        if (int(found[2]), int(found[3])) != (index, entry.size) or crc32 != (record.crc32 if record else crc32):
            raise occupied(self.place, entry.key, mark, self.writer.mark)
        return ChunkRecord(index, crc32, entry.size, etag=entry.etag)

    def note(self, record: ChunkRecord) -> None:
        """Record a chunk."""
        self._records[record.index] = record

    def keep(self, name: str, data: bytes) -> None:
        """Put the record, in place of one of this run only."""
        found = created(self.place, f"{CONTROL}/{name}", data, self.writer.mark)
        if found.data is not data:
            self.place.put(f"{CONTROL}/{name}", data, if_etag=found.etag, mark=self.writer.mark)

    def kept(self, name: str) -> bytes | None:
        """Get the record."""
        with suppress(FileNotFoundError):
            return self.place.get(f"{CONTROL}/{name}").data or None
        return None

    def _finished(self) -> dict[int, ChunkRecord]:
        return dict(self._records)

    def _is_visible(self) -> bool:
        return self.published

    def _is_open(self) -> bool:
        return self._open

    def _publish(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        try:
            self._publish_listed(finished, annotations)
        except (FileNotFoundError, OutputLockedError):
            if not self._is_table_of_ours():  # whose run, of equal identity, has deleted its chunks
                raise

    def _publish_listed(self, finished: dict[int, ChunkRecord], annotations: Annotations) -> None:
        """List all chunks once more, and put what makes them visible: if each is the object that this run recorded."""
        listed = {entry.key: entry for entry in self.place.list()}
        self._check_claim()  # else members of another run would get mixed in
        for index in range(self.n_chunks):
            entry = listed.get(self.writer.chunk_key(index))
            record = None if entry is None else self._checked(index, finished[index], entry)
            if record is None:
                raise OutputLockedError(
                    f"chunk {index} of {self.path} was deleted since it was put, by another run or by hand. Run this "
                    "again: it writes what is missing."
                )
            finished[index] = record
        if isinstance(self._form, TableForm):
            with temporary_folder() as folder:
                file = Path(folder, "table")
                self._form.write(file, self.writer, annotations)
                try:
                    replaces = self._claim.replaces if self.place.exists("") else ""
                    data: Any = np.memmap(file, np.uint8, "r").data
                    self.place.put("", data, if_absent=not replaces, if_etag=replaces or None, mark=self.writer.mark)
                except OccupiedError as error:
                    if error.found.mark != self.writer.mark:
                        raise _appeared(self.path) from None
            return
        document = partial_document(self._layout)
        document["chunk_key_encoding"]["configuration"]["separator"] = self.writer.separator
        if self._claim.replaces:
            root = listed.get(ROOT, Entry(ROOT, 0, None, ""))
            if root.size and root.etag != self._claim.replaces and self.place.mark(ROOT) != self.writer.mark:
                raise _appeared(self.place.describe(ROOT))
            self._withdraw()
        members = put_members(self.place, annotations.files(), self.writer.mark, over=self._claim.replaces != "")
        if self._claim.replaces:
            self._check_claim()
        kept = {*members, ROOT, *(self.writer.chunk_key(index) for index in range(self.n_chunks))}
        own, _ = sort_keys(listed, self._claim.members)
        self.place.delete([key for key in own if key not in kept and not key.startswith(f"{CONTROL}/")])
        # Checked last: who takes the output over changes it before anything else.
        if self._check_claim():
            self._publish_listed(finished, annotations)  # and has left again, perhaps without these chunks: list again
            return
        try:
            self.place.put(
                ROOT,
                json.dumps(with_manifest(document, self.writer, finished, annotations)).encode(),
                if_absent=True,
                mark=self.writer.mark,
            )
        except OccupiedError as error:
            raise _appeared(self.place.describe(ROOT)) from error

    def _withdraw(self) -> None:
        """Take away the root of what is replaced, if it is still the same: it is empty until the new one is put.

        NOTE: It is not deleted, which no store does only if it is the same; an equal run may have put the new one.
        """
        log.warning("Replacing %s. Readers that have it open get fill values from now on, without an error.", self.path)
        with suppress(FileNotFoundError, OccupiedError):
            self.place.put(ROOT, b"", if_etag=self._claim.replaces)

    def _is_table_of_ours(self) -> bool:
        if isinstance(self._form, TableForm):
            with suppress(FileNotFoundError):
                return self.place.mark("") == self.writer.mark
        return False

    def _check_claim(self) -> bool:
        """Raise OutputLockedError if another run has taken over the claim; return whether there was none."""
        data = self.kept("claim")
        if absent := data is None:
            with suppress(OccupiedError):
                self.place.put(CLAIM, self._claim.encoded(), if_absent=True)
            data = self.kept("claim") or self._claim.encoded()
        found = Claim.parse(data, self.place.describe(CLAIM))
        if found.identity != self._claim.identity or not (self.joins or found.writer == self._claim.writer):
            raise OutputLockedError(
                f"the output {self.path} was taken over by {found.describe()}; this is {self._claim.describe()}. Only "
                "one of them may write it: stop the other one, and run this again."
            )
        return absent

    def _close(self) -> None:
        below = "" if self._form.kind == "table" else CONTROL
        self.place.delete(_needless(self._form.kind, (entry.key for entry in self.place.list(below))))
        self._open = False

    def abort(self) -> None:
        """Keep finished chunks for the next run; remove the claim of this run if there are none."""
        if not self._open:
            return
        self._open = False
        with suppress(OSError):  # of a store that does not answer, for which this run has ended
            own = [key for key in sort_keys(self.place.survey())[0] if not self._claim.leaves(key)]
            if all(key.startswith(f"{CONTROL}/") for key in own):
                data = self.kept("claim")
                if data is None or Claim.parse(data, CLAIM).writer == self._claim.writer:
                    self.place.delete(own)


def _needless(kind: Kind, keys: Iterable[str]) -> list[str]:
    """Return what of these an output needs no more once it is visible: its records, and chunks that a table has."""
    own, _ = sort_keys(keys, ())
    return [key for key in own if key and (kind == "table" or key.startswith(f"{CONTROL}/"))]


def _appeared(where: str) -> OutputExistsError:
    return OutputExistsError(
        f"{where} appeared while this run wrote its rows: another run created it, or another program, such as "
        "zarr.open in its default mode. It was left as it is; run this again with overwrite=True to replace it."
    )


def put_members(
    place: ObjectStore, contents: Iterable[tuple[str, bytes]], mark: str, *, over: bool = False
) -> list[str]:
    """Create objects, given by their keys: all chunks, then the metadata of members, and the root last.

    Provenance has the time of its run, and replaces that of another one, as all do that are put ``over`` those of an
    output that is replaced. Returns their keys.
    """
    documents, keys = list[tuple[str, bytes]](), list[str]()

    def put(key: str, data: bytes) -> None:
        try:
            place.put(key, data, if_absent=True, mark=mark)
        except OccupiedError as error:
            if not (over or key.startswith(PROVENANCE)):
                raise occupied(place, key, error.found.mark, mark) from None
            if error.found.mark != mark:  # late, of a run whose output was taken over
                place.put(key, data, if_etag=error.found.etag, mark=mark)

    def chunks() -> Iterator[tuple[int, Callable[[], None]]]:
        for key, data in contents:
            keys.append(key)
            if key.endswith(ROOT):
                documents.append((key, data))
            else:
                yield len(data), partial(put, key, data)

    together(chunks())
    together((len(data), partial(put, key, data)) for key, data in documents if key != ROOT)
    together((len(data), partial(put, key, data)) for key, data in documents if key == ROOT)
    return keys


def put_group(out: Any, contents: Contents, identity: str, members: Collection[str], *, overwrite: bool) -> None:
    """Put the files of a group; see :func:`put_members`.

    One that replaces another is first put beside it, where it is read from until it has its place.

    Raises
    ------
    OutputExistsError, OutputLockedError, OutputWriteError
        As for :func:`bigpca.storage.carriers.create_output`.
    """
    place = ObjectStore(out)
    place.check_exclusive()
    mark = identity[:24]
    ours = Claim(identity, [], uuid.uuid4().hex[:12], (mark,), "model", (*members, PROVENANCE))

    def staged() -> None:
        put_members(place.at(f"{NEXT}{mark}"), contents(), mark)

    if not _claimed(place, ours, overwrite=overwrite, resume=False, joins=True, staged=staged)[1]:
        put_members(place, contents(), mark)
    place.delete([entry.key for entry in place.list(CONTROL)])


def got_group(out: Any) -> Stored:
    """Return what reads a group, with the requests of several arrays at the same time."""
    place = ObjectStore(out)
    found = _standing(place)
    if not found.exists(ROOT) and next(place.list(), None) is None:
        raise FileNotFoundError(f"{place.describe()} does not exist. Check the URL.")

    def get(key: str, most: int) -> bytes:
        if (got := get_part(found, Request(key, 1, most=most))) is None:
            raise FileNotFoundError(f"{found.describe(key)} does not exist.")
        return bytes(got.data)

    return Stored(place.describe(), get, lambda reads: together((1, read) for read in reads))


def _standing(place: ObjectStore) -> ObjectStore:
    """Return where what belongs at a place is: there, or where a model waits until what it replaces is deleted."""
    if not place.exists(ROOT) and (found := waiting(entry.key for entry in place.list(CONTROL))):
        return place.at(found[0])
    return place


def reserve(out: Any, kind: Kind, *, overwrite: bool, resume: bool) -> Reserved:
    """Return the layout of the unfinished output that is to be resumed at a prefix, if there is one.

    Raises
    ------
    OutputExistsError, OutputLockedError
        If something is there that is neither to be resumed nor overwritten.
    """
    place = ObjectStore(out)
    place.check_exclusive()
    listed = place.survey(ROOTS[kind])
    claim = _unfinished_claim(place, listed)
    if claim is None and listed and not overwrite:
        raise there(place.describe(), describe_objects(place, listed))
    if claim is not None and not (resume or overwrite):
        raise OutputLockedError(_unfinished(place, claim, "Continue it with resume=True if that run has ended."))
    if listed and overwrite:
        replaced(place, listed, kind, claim)
    if claim is None or claim.clearing or not resume or claim.kind != kind:
        return Reserved(place)
    shape, dtype, chunk_rows = claim.layout
    return Reserved(place, OutputLayout(tuple(shape), np.dtype(dtype), chunk_rows, claim.identity))


def tidy(out: Any) -> None:
    """Remove what a run has left that was killed after its output was visible."""
    place = ObjectStore(out)
    _unfinished_claim(place, place.survey(""))


def _unfinished_claim(place: ObjectStore, listed: Collection[str]) -> Claim | None:
    """Return the claim of an unfinished output; that of a run which was killed after it had published is deleted."""
    claim = _held(place, listed)
    if claim is not None and ROOTS[claim.kind] in listed and place.mark(ROOTS[claim.kind]) in claim.marks:
        place.delete(_needless(claim.kind, listed))
        return None
    return claim


def begin(
    reserved: Reserved, layout: OutputLayout, form: Form, *, overwrite: bool, resume: bool, joins: bool
) -> ObjectOutput:
    """Claim a prefix for an output, or join or resume one: see :func:`bigpca.storage.carriers.create_output`."""
    place = ObjectStore(reserved.target)
    if form.kind == "table" and (place._held is not None or place.options or not place.prefix):
        raise OutputWriteError(
            f"Tables need a URL, not an open store: pass the URL of {place.describe()}, with its settings in the "
            "environment, or write a Zarr array (.zarr)."
        )
    place.check_exclusive()
    import numcodecs

    # Runs of an equal identity write equal bytes: with the libraries, the BLAS kernel and the codecs.
    made = [layout.identity, numerical_environment(), numcodecs.__version__]
    full = f"{zlib.crc32(canonical_json(made)):08x}-{layout.identity}" if joins else layout.identity
    kept = [list(layout.shape), *layout.fields[1:]]
    run = uuid.uuid4().hex[:12]
    ours = Claim(full, kept, run, (full[:24] if joins else run,), form.kind)
    claim, published, listed = _claimed(place, ours, overwrite=overwrite, resume=resume, joins=joins)
    writer = ObjectChunks(place.describe(), *layout.fields, place, ours.marks[0], claim.separator)
    output = ObjectOutput(place, writer, layout, claim, form, joins=joins, published=published)
    if not published:
        try:
            output.resume(listed)
        except OutputLockedError:
            if not (joins and overwrite):
                raise
            # What an equal run has claimed holds chunks of another one: they are no more than an output to replace.
            output._claim, _, _ = _claimed(place, ours, overwrite=True, resume=False, joins=False)
            output.writer = replace(writer, separator=output._claim.separator)
    return output


def _claimed(
    place: ObjectStore,
    ours: Claim,
    *,
    overwrite: bool,
    resume: bool,
    joins: bool,
    staged: Callable[[], object] | None = None,
) -> tuple[Claim, bool, dict[str, Entry]]:
    """Return the claim under which this run writes, whether its output is published, and what is there."""
    root = ROOTS[ours.kind]
    while True:
        listed = place.survey(root)
        if CLAIM not in listed:
            if listed and not overwrite:
                raise there(place.describe(), describe_objects(place, listed))
            claim, condition = replace(ours, clearing=bool(listed)), None
            if listed:
                claim = claim.naming(replaced(place, listed, ours.kind, None)).over(place, listed)
        else:
            try:
                found = place.get(CLAIM)
            except FileNotFoundError:  # meanwhile: look again
                continue
            held, condition = Claim.parse(found.data, place.describe(CLAIM)), found.etag
            same = (held.identity, held.layout, held.kind) == (ours.identity, ours.layout, ours.kind)
            stands = held.replaces != "" and root in listed and listed[root].etag == held.replaces
            if stands and not overwrite:
                raise there(place.describe(), describe_objects(place, listed))
            if same and joins and not held.clearing:
                if root not in listed or stands:
                    return held, False, listed
                if place.mark(root) in held.marks:
                    return held, True, listed
                if not overwrite:
                    raise there(place.describe(), f"a {root or 'file'} of another program in an unfinished output")
                replaced(place, listed, ours.kind, held)  # checks
                place.delete([root])
                return held, False, listed
            if same and not joins and resume and not held.clearing:
                if root in listed and not stands:
                    raise there(place.describe(), "a zarr.json of another program in an unfinished output")
                claim = replace(held, writer=ours.writer, marks=(*ours.marks, *held.marks))
                with suppress(OccupiedError):
                    place.put(CLAIM, claim.encoded(), if_etag=condition)
                    return claim, False, listed
                continue
            if not overwrite:
                more = "Continue it with resume=True if that run has ended." if same and not joins else ""
                raise OutputLockedError(
                    _unfinished(place, held, f"This is the run {ours.identity[:24]}. {more}".strip())
                )
            claim = replace(ours, clearing=True).naming(replaced(place, listed, ours.kind, held)).over(place, listed)
        try:
            etag = place.put(CLAIM, claim.encoded(), if_absent=condition is None, if_etag=condition)
        except (OccupiedError, FileNotFoundError):  # another run was faster: look again
            continue
        if claim.clearing:
            listed = place.survey(root)  # the run whose claim this was may have published meanwhile
            if claim.kind != "model" and (listed[root].etag if root in listed else "") != claim.replaces:
                place.delete([CLAIM])
                continue
            if staged is not None:
                staged()
                listed = {key: entry for key, entry in listed.items() if not key.startswith(f"{NEXT}{claim.marks[0]}/")}
            clear(place, listed, claim)
            claim = replace(claim, clearing=False)
            place.put(CLAIM, claim.encoded(), if_etag=etag)
        return claim, False, {}


def replaced(place: ObjectStore, listed: Collection[str], kind: Kind, held: Claim | None) -> tuple[str, ...]:
    """Return the members of the output that one of a kind replaces: visible, or only claimed.

    Raises
    ------
    OutputExistsError
        If it is not of that kind, or keys of others are below it.
    """
    found = None if held is None else (held.kind, held.members)
    if kind == "table" and "" in listed:
        _check_begins(place)
    if ROOTS[kind] in listed:
        shown = ("table", ()) if kind == "table" else declared(_document(place))
        found = shown if held is None or shown is None else (shown[0], (*held.members, *shown[1]))
    return check_replaced(place.describe(), lambda: describe_objects(place, listed), listed, kind, found)


def reject_output(out: Any, overwrite: bool, kind: Kind, instead: str = "") -> None:
    """Raise OutputExistsError before the work if an output of this kind could not be put here after it."""
    place = ObjectStore(out)
    _reject_object(place, overwrite, ROOTS[kind], instead)
    if overwrite and (listed := place.survey(ROOTS[kind])):
        replaced(place, listed, kind, _held(place, listed))


def _check_begins(place: ObjectStore) -> None:
    """Check that an object, if there is one, begins as its extension says."""
    if place.exists("") and (head := get_part(place, Request("", 64, (0, 64)))) is not None:
        check_begins(place.describe(), bytes(head.data))


def _reject_object(place: ObjectStore, overwrite: bool, key: str = "", instead: str = "") -> None:
    """Raise OutputExistsError if an object is there, and ``overwrite`` is False; or if none can be there."""
    if not place.prefix:
        raise OutputExistsError(f"{place.describe()} is a bucket. Add a name, such as {place.describe('report.html')}.")
    place.check_exclusive()
    if not overwrite and place.exists(key):
        raise there(place.describe(), "an object", instead)


def write_file(out: Any, data: bytes, *, overwrite: bool) -> str:
    """Put one object, if absent or in place of another one, and return its URL."""
    place = ObjectStore(out)
    try:
        place.put("", data, if_absent=not overwrite)
    except OccupiedError:
        raise there(place.describe(), "an object") from None
    return place.describe()


def got_bytes(store: Any, key: str, limit: int) -> bytes:
    """Return an object of a store, or of the model that waits there."""
    place = _standing(ObjectStore(store))
    if not (data := place.get(key).data):
        raise FileNotFoundError(f"{place.describe(key)} has no bytes.")
    check_size(len(data), str(store), limit)
    return data


def _held(place: ObjectStore, listed: Collection[str]) -> Claim | None:
    return Claim.parse(place.get(CLAIM).data, place.describe(CLAIM)) if CLAIM in listed else None


def _document(place: ObjectStore) -> Any:
    with suppress(FileNotFoundError, ValueError):
        return parsed_document(place.get(ROOT).data, place.describe(ROOT))
    return None


def clear(place: ObjectStore, listed: Collection[str], claim: Claim) -> None:
    """Delete an output, its root first: readers see that it is absent, and then the rest goes.

    Or what is beside one that is to be replaced once the new one is complete.
    """
    root, (own, _) = ROOTS[claim.kind], sort_keys(listed, claim.members)
    own = [key for key in own if not claim.leaves(key)]
    if root in own:
        log.warning(
            "Deleting %s to write it again. Readers that have it open get fill values until it is complete, without "
            "an error.",
            place.describe(),
        )
        place.delete([root, *(key for key in own if key.startswith(f"{PROVENANCE}/"))])
    place.delete([start + ROOT for start in waiting(listed)])
    place.delete([key for key in own if key not in (root, CLAIM)])


def _unfinished(place: ObjectStore, claim: Claim, more: str) -> str:
    return (
        f"{place.describe()} holds the unfinished output of {claim.describe()}. {more} Wait for that run or stop it; "
        "if it has ended, overwrite=True (--overwrite on the command line) deletes what it wrote."
    )


def describe_objects(place: ObjectStore, keys: Collection[str]) -> str:
    """Describe what is at a prefix in a few words."""
    if ROOT in keys:
        with suppress(OSError, ValueError, LookupError, TypeError):
            return described(_document(place))
    if CLAIM in keys:
        return "an unfinished output of another kind"
    return "a file" if "" in keys else f"{len(keys):,} objects"
