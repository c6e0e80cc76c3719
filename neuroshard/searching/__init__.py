"""The interfaces of search methods and of verifiers, and a search for several possible times of the dense network."""
