"""What is right, computed in the plainest way there is: float64 and definitions. Never a plugin's own arithmetic."""
