"""Writes the report's folder, its timeline, and the results that are kept; may import all rooms.

A program of `templates/` runs only on pages that name it in their `policy`.
"""
