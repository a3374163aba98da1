"""URLs in the form that may be shown, logged and stored: without user names, passwords, queries and signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, unquote

from bigpca.errors import brief

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*://"
_USER = re.compile(rf"({_SCHEME})[^\s/?#'\"]*@")
_QUERY = re.compile(rf"({_SCHEME}[^\s?#'\"]*)[?#][^\s'\"]*")
HIDDEN = "***"
_PASSED = (OSError, ValueError, TypeError, LookupError, ImportError)
MIN_SECRET_LENGTH = 8  # shorter query values are numbers and names, which would be masked wherever they occur


def public(text: str) -> str:
    """Return a text without the credentials of the URLs in it: the part before ``@``, and their queries.

    Examples
    --------
    >>> public("s3://key:secret@bucket/x.zarr"), public("https://host/x.zarr?X-Amz-Signature=1f")
    ('s3://bucket/x.zarr', 'https://host/x.zarr')
    >>> public("/data/what?.zarr")
    '/data/what?.zarr'
    """
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))


def secrets_of(url: str) -> list[str]:
    """Return the parts of a URL that :func:`public` removes, as they may appear in messages; longest first.

    Examples
    --------
    >>> secrets_of("https://me:pass@host/x?sig=4be9a0c1&part=1")
    ['sig=4be9a0c1&part=1', '4be9a0c1', 'me:pass', 'pass']
    """
    user = [part[:-1] for part in re.findall(rf"{_SCHEME}([^\s/?#'\"]*@)", url)]
    query = re.findall(rf"{_SCHEME}[^\s?#'\"]*[?#]([^\s'\"]*)", url)
    passwords = [part.partition(":")[2] for part in user]
    values = [value for part in query for _, value in parse_qsl(part) if len(value) >= MIN_SECRET_LENGTH]
    found = {form for part in (*user, *query, *passwords, *values) for form in (part, unquote(part))}
    return sorted(filter(None, found), key=lambda part: (-len(part), part))


@contextmanager
def without_credentials(url: str) -> Iterator[None]:
    """Pass errors of other libraries through, except those that show what :func:`public` removes.

    Errors that are only of a client of a store (no credentials, no network) become an OSError that names the URL.

    Raises
    ------
    FileNotFoundError, OSError, RuntimeError
        Instead of an error whose text contains a secret: the same text with ``***`` in its place.
    """
    try:
        yield
    except Exception as error:
        text, secrets = public(str(error)), secrets_of(url)
        if not any(secret in str(error) for secret in secrets):
            if isinstance(error, _PASSED) or type(error).__module__.partition(".")[0] in ("builtins", "bigpca"):
                raise
            raise OSError(
                f"{public(url)} cannot be read ({type(error).__name__}: {brief(text)}). Check the address, the network "
                "and the credentials of this process."
            ) from error
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        kinds = (FileNotFoundError, PermissionError, OSError, ValueError)
        kind = next((one for one in kinds if isinstance(error, one)), RuntimeError)
        raise kind(f"{public(url)}: {text} ({type(error).__name__})") from None
