"""The wall between frontend and engine: messages go over it, nothing else.

`client.py` is the frontend's view; `inprocess.py` puts both sides in one process; `codec.py` turns messages into bytes.
"""
