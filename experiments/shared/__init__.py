"""What several experiments use: nothing here is an experiment."""
