"""The ground floor: what several rooms need, and what needs none of them.

Imports no other room; files that the transport uses import the standard library alone. Add only
what two rooms would otherwise write twice.
"""
