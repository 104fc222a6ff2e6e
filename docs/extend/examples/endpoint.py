"""GET /queue: how many requests run and wait. Serve with VLLM_PLUGINS=+NAME, as endpoint plugins must be named."""

from fastapi import FastAPI


class Queue:
    """The entry point names this class: calling it makes the plugin."""

    name = "queue"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add routes; they are called when the engine is there."""

        @app.get("/queue")
        def queue() -> dict:
            scheduler = self.llm.stats().scheduler
            return {"running": scheduler.num_running_reqs, "waiting": scheduler.num_waiting_reqs}

    async def init_state(self, engine_client, state, args) -> None:
        """Keep the engine's door."""
        self.llm = engine_client
