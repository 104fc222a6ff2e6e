"""Conformance tests for plugins: subclass a suite, give it your plugin in one fixture, run pytest.

One module per contract, each with a class `...Conformance`; what they are made of stands beside them: `suite.py`,
oracles, samples and fakes. Importing this package imports neither torch nor modulm: see `plugin.py`.
"""
