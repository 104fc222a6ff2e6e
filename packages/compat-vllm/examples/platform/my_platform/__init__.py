"""Says that the platform serves on this machine, and where its class is."""


def probe() -> str | None:
    """Return the class path, or None where the device is missing."""
    return "my_platform.platform.MyPlatform"
