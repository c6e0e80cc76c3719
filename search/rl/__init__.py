"""Reinforcement-learning searchers: AutoShard (Zha et al., KDD 2022) and DreamShard (Zha et al., NeurIPS 2022)."""
