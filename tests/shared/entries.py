"""Every entry of a registry as a text, for tests that hold for all of them."""

from typing import Any

from testbed.shared.registry import Registry


def every(registry: Registry[Any], *texts: str, **options: Any) -> list[str]:
    """The texts, then each entry that none of them names, if it needs no options.

    A new built-in entry so comes under test without an edit.
    """
    named = {text.partition(":")[0] for text in texts}
    assert named <= set(registry)
    return [
        *texts,
        *(name for name in registry if name not in named and _works(registry, name, options)),
    ]


def listed(registry: Registry[Any]) -> str:
    return f"valid: {', '.join(registry)}, "


def _works(registry: Registry[Any], name: str, options: dict[str, Any]) -> bool:
    try:
        registry.create(name, **options)
    except ValueError:
        return False
    return True
