"""The parts of a published ``tokenizer.json``, each read and done as it says."""
