"""The runs of the commands search, evaluate, explain, report, train-policy and compile."""
