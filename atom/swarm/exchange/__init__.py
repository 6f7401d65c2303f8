"""All-reduce among the members of a round: plans, codecs, sums, and which peer a failure names."""
