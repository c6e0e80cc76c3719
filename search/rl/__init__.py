"""Learned policies for placement: AutoShard (Zha et al., KDD 2022) and DreamShard (Zha et al., NeurIPS 2022)."""
