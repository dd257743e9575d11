"""How often Python looks for cycles of objects that nobody needs any more, while a run lasts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made, and passes over the younger ones, before a pass over older ones.
_SELDOM = (50_000, 20, 20)


@contextmanager
def seldom() -> Iterator[None]:
    """Hardly ever: each pass walks over all workers' objects, and transfers leave no cycles."""
    # With 600 workers it was a third of the time. Learning and code of users may leave some.
    thresholds = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
