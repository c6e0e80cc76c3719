"""The work of the devices under a plan (loads and traffic), and the cost of a plan."""
