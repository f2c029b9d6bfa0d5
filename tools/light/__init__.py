"""Make the built pages light: no icon font, no scripts and styles that a page does not use.

The theme sends every page with an icon font and the script that replaces it (1.6 MB), with the
index of the search (0.6 MB, needed where somebody searches only), and with style sheets of which a
book uses a third. After Sphinx is done, this draws the few icons in place, takes out what is not
used, and joins what is left, so that a page needs few requests and stands at once.
"""

from tools.light.pages import lighten

__all__ = ["lighten"]
