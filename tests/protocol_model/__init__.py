"""The round protocol as one small model, searched exhaustively within bounds.

Run `python -m tests.protocol_model`.

`cast` names the peers, `ledger` the values and heads, `state` what is true at one moment, `rules`
asks the real code what may happen, `moves` says what can happen next, `properties` what must not,
`outlook` whether a commit is still within reach, `search` walks through all of it and tells the way
to a failure, `bounds` says how far to look, `mutants` breaks one rule at a time.
"""
