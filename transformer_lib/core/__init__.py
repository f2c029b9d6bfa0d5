"""What all rests on: configuration, checks of shapes, precision, files, fingerprints of modules."""
