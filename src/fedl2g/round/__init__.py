"""The policies of a round: sampling, availability, checks of replies, aggregation, privacy budget, evaluation."""
