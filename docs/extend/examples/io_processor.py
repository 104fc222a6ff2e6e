"""Temperatures in, words out: `{"temperatures": [21, 23]}` becomes a prompt, and the answer a dict."""

from modulm.interfaces.io_processor import IOProcessor


def entry() -> str:
    """The entry point: where the class is, or None where it cannot serve."""
    return "your_package.io_processor.Temperatures"


class Temperatures(IOProcessor):
    """Constructed by whoever asks for it by name."""

    def parse_data(self, data):
        values = data.get("temperatures") if isinstance(data, dict) else None
        if not values or not all(isinstance(value, int | float) for value in values):
            raise ValueError(f"data={data!r} is refused: it must be {{'temperatures': [numbers]}}.")
        return values

    def pre_process(self, prompt, request_id=None, **kwargs):
        return f"Temperatures today: {', '.join(map(str, prompt))}. The weather was"

    def post_process(self, model_output, request_id=None, **kwargs):
        return {"weather": [output.outputs[0].text for output in model_output]}
