"""What the product leaves for the collector: objects that hold one another, and would live until it looks."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

OURS = ("history_svc.", "orchestrator_svc.", "http_edge.", "svckit.", "launcher.")


@contextmanager
def collected() -> Iterator[list[str]]:
    """The names of what the collector finds that was made inside: objects, coroutines and frames of ours."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [name for one in gc.garbage if (name := _name_of(one)).startswith(OURS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _name_of(one: object) -> str:
    if isinstance(one, FrameType):
        return f"{one.f_globals['__name__']}.{one.f_code.co_qualname}"
    kind = one if isinstance(one, type) else type(one)
    frame = getattr(one, "cr_frame", None) or getattr(one, "ag_frame", None) or getattr(one, "gi_frame", None)
    module = frame.f_globals["__name__"] if frame is not None else getattr(one, "__module__", None) or kind.__module__
    return f"{module}.{getattr(one, '__qualname__', kind.__qualname__)}"
