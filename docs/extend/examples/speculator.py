"""Expects the prompt to be said again: `--speculative-config '{"method": "echo", "skip": 2}'`."""

from dataclasses import dataclass

from modulm.interfaces.speculator import Speculator


@dataclass
class Settings:
    """What the user may give beside method and number of tokens; `__post_init__` checks it."""

    skip: int = 0

    def __post_init__(self):
        if self.skip < 0:
            raise ValueError(f"skip={self.skip!r} is refused: it must be 0 or more")


class Echo(Speculator):
    name = "echo"
    Settings = Settings

    def __init__(self, settings, limits):
        self.skip = settings.skip

    def propose(self, sequences):
        """One draft for each sequence; nothing of it is believed before the model has said the same."""
        drafts = []
        for one in sequences:
            at = self.skip + len(one.output_ids)
            drafts.append(one.prompt_ids[at : at + one.most])
        return drafts
