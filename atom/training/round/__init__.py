"""Round of the swarm as a pure state machine, from events and the time to actions.

- `machine`: entry point, `RoundMachine`
- `events`: events and actions
- `round_state`: state that the parts share, with the promises that bind this process
- `electorate`: peers that may decide a round now
- `participant`, `coordinator`: the two roles of a replica
- `election`, `faults`: when to begin an attempt, and with which peers
"""
