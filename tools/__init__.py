"""The commands behind the Makefile: the notebooks and the site."""
