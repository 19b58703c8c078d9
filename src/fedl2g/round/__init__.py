"""The policies of a round: sampling, availability, checks, aggregation, the privacy budget."""
