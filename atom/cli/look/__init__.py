"""A swarm from outside: status, watch, plots, contributions, the dashboard."""
