"""modulm."""
