"""The testbed's rooms. docs/concepts/architecture.md says what each is for, and what it imports.

To add a room: a package here, a line there, and its place in the layers of pyproject.toml.
"""
