"""NeuroShard's published search: beam search over column splits, each placed greedily under a grid of caps."""
