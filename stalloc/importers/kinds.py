"""Recognises the kind of a file by its content, and explains what is wrong with other files.

A guess only: whoever reads that kind checks the rest. But it decides which words a refusal has, so
that an empty file is called empty by every command, and a pickle is never said to be bad JSON.
"""

from __future__ import annotations

import re
import zlib
from enum import Enum

from stalloc.errors import TraceError


class Kind(Enum):
    """The kinds of input files; the value is the name in messages."""

    TRACE = "a stalloc trace"
    PLAN = "a stalloc plan"
    SNAPSHOT = "a memory snapshot"
    KINETO = "a Kineto trace"
    CSV = "a MiniMalloc CSV"


_EXPECTED = "a stalloc trace or plan, a memory snapshot or a Kineto trace"
# The key comes first in what stalloc writes, but may come anywhere.
_OWN = re.compile(rb'"format"\s*:\s*"stalloc-(trace|plan)"')
_FORMAT = re.compile(rb'"format"\s*:\s*"([^"\\]{0,40})"')
_CSV = re.compile(rb"[ \t\w,]*\b(?:lower|upper|size)\b[ \t\w,]*[\r\n]")
# Older protocols have no header: the first bytes of containers, globals and similar objects.
_OLD_PICKLE = re.compile(rb"[(\]})](?:[lpdtqIFLMKNSUVX(\]}).\x85]|$)|c[\w.]+\n[\w.]+\n")
_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CHUNK = 1 << 24
_BOMB = 1 << 30  # bytes from which ...
_DENSEST = 300  # ... no recording is so many times as large as its compressed file


def unpacked(content: bytes, source: str) -> bytes:
    """A file's content without gzip around it, or a byte order mark before it.

    Raises:
        TraceError: The gzip file is damaged, or holds another.
    """
    if content[:2] == _GZIP:
        content = _inflated(content, source)
        if content[:2] == _GZIP:
            raise TraceError(f"{source}: gzipped twice: unpack it once with gunzip")
    return content.removeprefix(_BYTE_ORDER_MARK)


def kind_of(content: bytes, source: str) -> Kind:
    """The kind of an unpacked file.

    Raises:
        TraceError: The kind is unknown; the message describes the content.
    """
    if content[:1] == b"\x80" or _OLD_PICKLE.match(content):
        return Kind.SNAPSHOT
    head = re.match(rb"\s*(.?)", content, re.DOTALL)
    first = head[1] if head is not None else b""
    if not first:
        raise TraceError(f"{source}: the file is empty: was it written to its end?")
    if first == b"{":
        return _kind_of_object(content, source)
    if first == b"[":
        return Kind.KINETO
    if _CSV.match(content):
        return Kind.CSV
    raise TraceError(f"{source}: {_nothing_known(content)}; {_EXPECTED} is expected")


def _kind_of_object(content: bytes, source: str) -> Kind:
    own = _OWN.search(content)
    if own is not None:
        return Kind.TRACE if own[1] == b"trace" else Kind.PLAN
    if b'"traceEvents"' in content:
        return Kind.KINETO
    other = _FORMAT.search(content)
    if other is not None:
        name = other[1].decode(errors="replace")
        raise TraceError(f"{source}: JSON of the format {name!r}; {_EXPECTED} is expected")
    if not content.rstrip().endswith(b"}"):
        raise TraceError(f"{source}: JSON that is cut off: copy it completely")
    raise TraceError(
        f"{source}: JSON with neither 'format' nor 'traceEvents'; {_EXPECTED} is expected"
    )


def _nothing_known(content: bytes) -> str:
    if content[:2] == b"PK":
        return "an archive (of torch.save?)"
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "text in UTF-16: save it as UTF-8"
    if b"\0" in content[:4096]:
        return "no file of a known kind"
    return "text that is no JSON"


def _inflated(content: bytes, source: str) -> bytes:
    pieces: list[bytes] = []
    length = 0
    try:
        while content:
            stream = zlib.decompressobj(wbits=31)
            rest = content
            while not stream.eof:
                piece = stream.decompress(rest, _CHUNK)
                rest = stream.unconsumed_tail
                if not piece and not rest and not stream.eof:
                    raise TraceError(f"{source}: the gzip file is cut off: copy it completely")
                pieces.append(piece)
                length += len(piece)
                if length > _BOMB and length > _DENSEST * len(content):
                    raise TraceError(
                        f"{source}: unpacks to more than {_DENSEST} times its size, which no "
                        "recording does"
                    )
            # Several may stand one behind the other, and zeros behind the last.
            content = stream.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise TraceError(f"{source}: the gzip file is damaged: {error}") from None
    return b"".join(pieces)
