"""Commands that observe a swarm without joining it: status, watch, contributions, dashboard."""
