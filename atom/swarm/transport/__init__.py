"""All connections of a peer: whom it reaches and how, who may ask, who is shut out."""
