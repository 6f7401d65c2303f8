"""Before and at the start of training: plans, charts, bootstrap nodes, daemons."""
