"""Before and at the start of training: plans, bootstrap nodes, daemons."""
