"""The part of the page on verdicts that says of each gate what causes a failure and what to do."""

from __future__ import annotations

from testbed.verdict.gate_explanations import GATES


def reference() -> str:
    """One paragraph for each gate; two keys with one explanation share it."""
    found: dict[str, list[str]] = {}
    for key, about in GATES.items():
        found.setdefault(about.title, []).append(key)
    parts = []
    for title, keys in found.items():
        about = GATES[keys[0]]
        parts.append(
            f"### Gate: {title}\n\n{about.measured}\n\n"
            f"- Evidence: `{about.evidence}`\n"
            f"- Usual cause: {about.causes}\n"
            f"- What to do: {about.remedy}\n"
        )
    return "\n".join(parts)
