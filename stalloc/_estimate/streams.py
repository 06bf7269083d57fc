"""Streams and events of the pretended GPU.

Work takes no time, so every event has happened. The streams count for memory: torch's allocator
gives no stream what another one has freed. Requests are recorded with their stream, and so is the
order that the script gives its streams.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch

from stalloc._estimate.gpu import own_gpu
from stalloc._estimate.values import Unanswerable, script_line
from stalloc._frameworks.patches import Patches
from stalloc._torch_modules import torch_module

_POOL = 32
"""Streams that torch makes of each priority; then it gives them out again."""

_SPACING = 16
"""Numbers from one stream to the next: the first ones name special streams in CUDA."""


class Stream:
    """A stream, by its number; 0 is the default stream."""

    device_type = 1
    _next = itertools.count()
    _current: Stream

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self.cuda_stream = _SPACING * (1 + next(Stream._next) % _POOL)
        if priority < 0:
            self.cuda_stream += _SPACING * _POOL
        self._before: list[Stream] = []

    @property
    def device(self) -> torch.device:
        """The GPU of the process."""
        return own_gpu()

    @property
    def device_index(self) -> int:
        """Its number."""
        return own_gpu().index

    @property
    def stream_id(self) -> int:
        """The number of the stream."""
        return self.cuda_stream

    native_handle = stream_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return self.cuda_stream

    def __enter__(self) -> Stream:
        self._before.append(current())
        enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        enter(self._before.pop())

    def query(self) -> bool:
        """Always True: nothing takes time."""
        return True

    def is_capturing(self) -> bool:
        """Always False: nothing is captured."""
        return False

    def synchronize(self) -> None:
        """The host waits for the stream."""
        self.record_event().synchronize()

    def wait_event(self, event: Event) -> None:
        """The stream waits for the event."""
        torch_module().note_meta_event(True, event.number, self.cuda_stream)

    def wait_stream(self, stream: Stream) -> None:
        """The stream waits for all work that the other one has got."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """The stream records the event, or a new one."""
        event = event or Event()
        torch_module().note_meta_event(False, event.number, self.cuda_stream)
        return event


class Event:
    """An event, by its number."""

    _next = itertools.count(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number = next(Event._next)
        self._forget = torch_module().forget_meta_event  # which is there at the interpreter's end

    def __del__(self) -> None:
        self._forget(self.number)

    def query(self) -> bool:
        """Always True: nothing takes time."""
        return True

    def record(self, stream: Stream | None = None) -> None:
        """The stream, or the current one, records the event."""
        (stream or current()).record_event(self)

    def wait(self, stream: Stream | None = None) -> None:
        """The stream, or the current one, waits for the event."""
        (stream or current()).wait_event(self)

    def synchronize(self) -> None:
        """The host waits for the event."""
        torch_module().synchronize_meta(self.number)

    def elapsed_time(self, _: Any) -> float:
        """A millisecond."""
        return 1.0


class Graph:
    """A CUDA graph: a program may capture one, but what it replays is not recorded."""

    def replay(self) -> None:
        """Ends the program.

        Raises:
            Unanswerable: Always.
        """
        raise Unanswerable(
            f"{script_line()}: the script replays a CUDA graph, whose requests are made once in a "
            "pool of its own; run it without graphs"
        )

    def pool(self) -> tuple[int, int]:
        """The handle of its memory."""
        return 0, 0

    def _nothing(self, *_: object, **__: object) -> None:
        """Nothing is captured."""

    capture_begin = capture_end = instantiate = reset = enable_debug_mode = _nothing


class Context:
    """A context manager of a device, or of a stream if it is given one."""

    def __init__(self, stream: Any = None, *_: Any, **__: Any) -> None:
        self._stream = stream if isinstance(stream, Stream) else None

    def __enter__(self) -> Context:
        if self._stream is not None:
            self._stream.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.__exit__()


class Capture(Context):
    """A context manager in which a graph is captured: the work in it is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def current(*_: Any, **__: Any) -> Stream:
    """The current stream of the thread that trains."""
    return Stream._current


def default(*_: Any, **__: Any) -> Stream:
    """The default stream."""
    return _DEFAULT


def enter(stream: Stream | None) -> None:
    """Makes a stream the current one."""
    if stream is not None:
        Stream._current = stream
        torch_module().enter_meta_stream(stream.cuda_stream)


def synchronize(*_: Any, **__: Any) -> None:
    """The host waits for the device."""
    torch_module().synchronize_meta(0)


def patch(patches: Patches, cuda: Any, accelerator: Any) -> None:
    """Leads torch's streams and events of a GPU to these; the default stream is current."""
    Stream._next = itertools.count()
    enter(_DEFAULT)
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": Capture,
        "stream": Context,
        "StreamContext": Context,
        "device": Context,
        "device_of": Context,
        "current_stream": current,
        "default_stream": default,
        "set_stream": enter,
        "synchronize": synchronize,
    }.items():
        patches.replace(cuda, name, value)
    for name, value in {
        # Functions of their own: torch's compiler tells them from those of `torch.cuda`.
        "current_stream": partial(current),
        "set_stream": partial(enter),
        "synchronize": partial(synchronize),
    }.items():
        if hasattr(accelerator, name):
            patches.replace(accelerator, name, value)


_DEFAULT = Stream()
_DEFAULT.cuda_stream = 0
Stream._current = _DEFAULT
