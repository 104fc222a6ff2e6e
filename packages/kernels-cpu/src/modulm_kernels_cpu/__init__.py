"""Native CPU kernels for modulm."""
