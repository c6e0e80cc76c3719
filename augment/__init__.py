"""Stage 1 of NeuroShard: draws random combinations of tables and imbalanced exchanges, and measures their times on real
hardware.
"""
