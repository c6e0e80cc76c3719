"""The work that plans give devices (loads and traffic), and the costs of plans."""
