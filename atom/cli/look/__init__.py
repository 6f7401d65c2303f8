"""A swarm from outside: status, watch, contributions, the dashboard."""
