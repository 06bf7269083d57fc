"""Reports the order that a program gives the streams of a GPU to the recorder, during a profile.

torch calls back for each event that is recorded, awaited or destroyed and each synchronisation, in
C++ as well (`torch.cuda._gpu_trace`). A recording knows nothing of waits that do not pass through
torch; then less memory is shared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from stalloc import _core

# The runtime that records, and the number of its device.
_recording: tuple[_core.Runtime, int] | None = None
_installed = False


def follow(runtime: _core.Runtime, device: int, follows: bool) -> None:
    """Begins to report events of a device, or ends that.

    torch cannot be told to call back no more: from the first profile on, each event of the process
    costs a call from C++ into Python, some microseconds.
    """
    global _recording, _installed
    _recording = (runtime, device) if follows else None
    if not follows or _installed:
        return
    try:
        from torch.cuda import _gpu_trace as trace
    except ImportError:  # this torch tells nothing: streams share no addresses
        return
    _installed = True
    trace.register_callback_for_event_record(_on("record_event"))
    trace.register_callback_for_event_wait(_on("await_event"))
    trace.register_callback_for_event_deletion(_on("forget_event", anywhere=True))
    trace.register_callback_for_event_synchronization(_on("synchronize_event"))
    trace.register_callback_for_stream_synchronization(_on("synchronize_stream"))
    trace.register_callback_for_device_synchronization(_on("synchronize_device"))
    torch._C._activate_gpu_trace()


def _on(method: str, anywhere: bool = False) -> Any:
    """A callback that passes its arguments on, if they belong to the device that is recorded.

    Streams and events are known by their handles, and each device has a default stream 0: the
    device of an operation is the current one.
    """

    def report(*handles: int) -> None:
        recording = _recording
        if recording is None:
            return
        runtime, device = recording
        if anywhere or torch._C._cuda_getDevice() == device:
            getattr(runtime, method)(*handles)

    return report
