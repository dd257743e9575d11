"""Puts numbers and findings into words: formatting, headline, cautions and methods.

It may import `data`, `statistics` and `summary`. To add a caution, write a function in
`cautions.py` that returns sentences, and name it in `sentences`. A sentence never says more than
its interval.
"""
