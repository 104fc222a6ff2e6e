"""Contracts: one file per thing that can be replaced. No torch at run time, no implementation, no knowledge of rooms.

Every docstring says who calls, how often, with which shapes, and what to raise. `API_VERSION` counts breaking changes.
"""

API_VERSION = 1
