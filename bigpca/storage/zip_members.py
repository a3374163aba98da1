"""Arrays in untrusted ``.npz`` files: a declared size is rejected if the file's own bytes cannot produce it."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigpca.errors import brief
from bigpca.storage.regular import open_regular

DEFLATE_RATIO = 1032  # deflate's largest compression ratio (zlib's manual)


def check_member(info: zipfile.ZipInfo, header_bytes: int, nbytes: int) -> None:
    """Reject a member whose header declares a size other than its own, or more than its compressed bytes can hold.

    Parameters
    ----------
    info : zipfile.ZipInfo
    header_bytes : int
        Length of its ``.npy`` header.
    nbytes : int
        Bytes of values that the header declares.

    Raises
    ------
    ValueError
        States the sizes.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{info.filename} is compressed by method {info.compress_type}; stored or deflated was expected"
        )
    ratio = 1 if info.compress_type == zipfile.ZIP_STORED else DEFLATE_RATIO
    if info.file_size != header_bytes + nbytes or info.file_size > ratio * info.compress_size:
        raise ValueError(
            f"{info.filename} declares {nbytes:,} bytes of values, but has {info.file_size:,} bytes in "
            f"{info.compress_size:,} compressed ones"
        )


def check_place(info: zipfile.ZipInfo, held: int) -> None:
    """Reject an entry that starts outside its file of ``held`` bytes; seeking there would be an unexplained OSError.

    Raises
    ------
    zipfile.BadZipFile
    """
    if not 0 <= info.header_offset < held:
        raise zipfile.BadZipFile(f"{info.filename} would start at byte {info.header_offset:,} of {held:,}")


def read_arrays(path: str | os.PathLike[str], limit: int) -> dict[str, NDArray[Any]]:
    """Read all arrays of a ``.npz`` file that :func:`numpy.savez` wrote, of at most ``limit`` bytes; never unpickles.

    Raises
    ------
    zipfile.BadZipFile, ValueError, EOFError
        If it is truncated or altered, or its arrays have more bytes; raised before any memory is allocated for it.
    """
    arrays = {}
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        held = os.fstat(file.fileno()).st_size
        if (promised := sum(info.file_size for info in archive.infolist())) > limit:
            raise ValueError(f"its arrays have {promised:,} bytes, and at most {limit:,} were expected")
        for info in archive.infolist():
            check_place(info, held)
            if info.compress_size > held:
                raise ValueError(f"{info.filename} has {info.compress_size:,} bytes in a file of {held:,}")
            with archive.open(info) as member:
                shape, _, dtype = read_npy_header(member)
                check_member(info, member.tell(), math.prod(shape) * dtype.itemsize)
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = np.lib.format.read_array(member, allow_pickle=False)
    return arrays


def read_npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, Fortran order and dtype of a ``.npy`` with NumPy's reader, which leaves the file at the first value.

    Raises
    ------
    ValueError
        For another version and a damaged header, of which NumPy's parser raises errors of many kinds.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its version is {version[0]}.{version[1]}; 1.0, 2.0 or 3.0 was expected")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(file)
    except (MemoryError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if min(shape, default=0) < 0:
        raise ValueError(f"its header states the impossible shape {brief(shape)}")
    return shape, fortran, dtype
