"""Stage 1: augmented table combinations and imbalanced exchanges, measured on real hardware."""
