"""What a search method is, and the one that goes around any other."""
