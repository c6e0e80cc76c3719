"""The interfaces of search methods and of verifiers, and a search at several times of the dense network."""
