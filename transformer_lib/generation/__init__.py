"""One token after another: the loop, the decoding step, sampling, stopping, beam search."""
