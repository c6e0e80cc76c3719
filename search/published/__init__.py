"""NeuroShard's published search: beam search over column splits, and greedy placement under several caps on traffic."""
