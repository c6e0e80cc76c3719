"""The work that a plan gives to the devices (loads and traffic), and the cost of a plan."""
