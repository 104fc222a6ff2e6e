"""Without pyzmq an engine process is refused, with what to install; everything else works."""

import sys

import pytest

from modulm.errors import NotInstalled


def test_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "modulm.transport.socket", raising=False)
    with pytest.raises(NotInstalled, match=r"pyzmq is not installed.*pip install 'modulm-core\[serve\]'.*in_process"):
        import modulm.transport.socket  # noqa: F401
