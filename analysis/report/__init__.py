"""Writes the report's folder, its timeline, and the results that are kept; may import all rooms.

To add to the page, edit `templates/`, whose programs a page names in its `policy`.
"""
