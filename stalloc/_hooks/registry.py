"""Puts stalloc's hooks into torch's dictionaries of hooks, and keeps them out of every copy.

A module's hooks are part of its `__dict__`, so `torch.save(model)`, `pickle` and `copy.deepcopy`
copy them. A checkpoint must contain nothing of stalloc. So stalloc's entries have keys that begin
with `_MARK`, and while there are any, an OrderedDict is reduced without them (`copyreg`). pickle,
deepcopy and torch.save all use copyreg. The bytes of a pickle are the same as without stalloc.

torch numbers hooks with `RemovableHandle.next_id`, and these numbers are saved with the user's
hooks. stalloc's keys take no number.
"""

from __future__ import annotations

import copyreg
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any

from torch import nn
from torch.jit import _recursive as scripting
from torch.nn.modules import module as module_globals
from torch.optim import optimizer as optimizer_globals

_MARK = "stalloc's hook "

_keys = (f"{_MARK}{number}" for number in itertools.count())
_lock = threading.Lock()
_hooks = 0  # that are not removed yet
_reduce_before: Callable[[OrderedDict[Any, Any]], Any] | None = None
_any_before: Callable[[], Any] = module_globals._has_any_global_hook
_stubs_before: Callable[[nn.Module], Any] = scripting.get_hook_stubs

_OF_MODULE = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_always_called",
)

Hook = Callable[..., None]


class Handle:
    """Removes one hook of stalloc's. Keeps no module alive."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove: Callable[[], None] | None = remove

    def remove(self) -> None:
        """Removes the hook; may be repeated."""
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()


def before_forward(module: nn.Module, hook: Hook, *, with_kwargs: bool = False) -> Handle:
    """Calls `hook` before each forward of `module`, and before all other hooks."""
    key = _free_key(module)
    if with_kwargs:
        module._forward_pre_hooks_with_kwargs[key] = True  # type: ignore[index]
    module._forward_pre_hooks[key] = hook  # type: ignore[index]
    _move_to_front(module._forward_pre_hooks, key)
    return _on_module(module, key)


def after_forward(module: nn.Module, hook: Hook) -> Handle:
    """Calls `hook` after each forward of `module`, also after one that raised."""
    key = _free_key(module)
    module._forward_hooks_always_called[key] = True  # type: ignore[index]
    module._forward_hooks[key] = hook  # type: ignore[index]
    return _on_module(module, key)


def before_every_forward(hook: Hook, name: str) -> Handle:
    """Calls `hook` before each forward of any module.

    Compiled code is guarded by the hooks that there are and their keys: `hook` and `name` are to be
    the same ones each time, see `stalloc._hooks.modules.before_every_forward`.
    """
    return _in(module_globals._global_forward_pre_hooks, hook, f"{_MARK}{name}")


def before_every_step(hook: Hook) -> Handle:
    """Calls `hook` before each step of any optimizer."""
    return _in(optimizer_globals._global_optimizer_pre_hooks, hook)


def after_every_step(hook: Hook) -> Handle:
    """Calls `hook` after each step of any optimizer."""
    return _in(optimizer_globals._global_optimizer_post_hooks, hook)


def _in(hooks: MutableMapping[Any, Any], hook: Hook, key: str = "") -> Handle:
    key = key or next(_keys)
    hooks[key] = hook
    _count(1)

    def remove() -> None:
        hooks.pop(key, None)
        _count(-1)

    return Handle(remove)


def _free_key(module: nn.Module) -> str:
    """A key for a hook of the module: the same one in each module with as many hooks of stalloc's.

    Compiled code is guarded by the keys, and layers share it.
    """
    taken = [getattr(module, name) for name in _OF_MODULE]
    names = (f"{_MARK}of a module {number}" for number in itertools.count())
    return next(name for name in names if not any(name in hooks for hooks in taken))


def _on_module(module: nn.Module, key: str) -> Handle:
    reference = weakref.ref(module)
    _count(1)

    def remove() -> None:
        if (watched := reference()) is not None:
            for name in _OF_MODULE:
                getattr(watched, name).pop(key, None)
        _count(-1)

    return Handle(remove)


def _move_to_front(hooks: Any, key: str) -> None:
    hooks.move_to_end(key, last=False)


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith(_MARK)


# The three functions of torch and the standard library that look at hooks, in stalloc's version.


def _reduce(hooks: OrderedDict[Any, Any]) -> Any:
    if not any(map(_is_ours, hooks)):
        return hooks.__reduce__() if _reduce_before is None else _reduce_before(hooks)
    users = OrderedDict((key, hook) for key, hook in hooks.items() if not _is_ours(key))
    return users.__reduce__() if _reduce_before is None else _reduce_before(users)


def _has_any_global_hook() -> bool:
    """Makes torch.compile, which warns of global hooks, warn of the user's hooks only."""
    return any(
        not _is_ours(key)
        for name, hooks in vars(module_globals).items()
        if name.startswith("_global_") and isinstance(hooks, dict)
        for key in hooks
    )


def _get_hook_stubs(module: nn.Module) -> Any:
    """Hides stalloc's hooks from torch.jit.script, which compiles the hooks of a module."""
    ours = []
    for name in _OF_MODULE:
        hooks = getattr(module, name)
        ours.append((hooks, [(key, hooks.pop(key)) for key in list(hooks) if _is_ours(key)]))
    try:
        return _stubs_before(module)
    finally:
        for hooks, items in ours:
            hooks.update(items)
            if hooks is module._forward_pre_hooks:
                for key, _ in reversed(items):
                    _move_to_front(hooks, key)


def _count(more: int) -> None:
    """Puts these functions in place while there is a hook, and takes them away after the last."""
    global _hooks, _reduce_before, _any_before, _stubs_before
    table = copyreg.dispatch_table
    with _lock:
        _hooks += more
        if _hooks:
            if table.get(OrderedDict) is not _reduce:
                _reduce_before = table.get(OrderedDict)
                table[OrderedDict] = _reduce
            if module_globals._has_any_global_hook is not _has_any_global_hook:
                _any_before = module_globals._has_any_global_hook
                module_globals._has_any_global_hook = _has_any_global_hook
            if scripting.get_hook_stubs is not _get_hook_stubs:
                _stubs_before = scripting.get_hook_stubs
                scripting.get_hook_stubs = _get_hook_stubs
            return
        if table.get(OrderedDict) is _reduce:
            if _reduce_before is None:
                del table[OrderedDict]
            else:
                table[OrderedDict] = _reduce_before
        if module_globals._has_any_global_hook is _has_any_global_hook:
            module_globals._has_any_global_hook = _any_before
        if scripting.get_hook_stubs is _get_hook_stubs:
            scripting.get_hook_stubs = _stubs_before
