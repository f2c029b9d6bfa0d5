"""The trained models of the live figures, as scripts that a page can load.

A browser that shows a page from a folder may fetch nothing but scripts, so the weights are text in
a script: ``Live.register(name, header, base64)``. They are made when the site is built, from
``book/results``, and are in no repository.
"""

from __future__ import annotations

from pathlib import Path

from transformer_book.live.one_byte import RESULTS, weights_script

MODELS = ("shakespeare", "numbers")


def write_weights(folder: str | Path, results: Path = RESULTS) -> list[Path]:
    """Write the scripts of all models beside the live figures' other scripts.

    Args:
        folder: of the built site's live scripts, such as ``_build/html/_static/live``.
        results: where trained models are.

    Returns:
        The files, in ``weights`` of that folder.

    Raises:
        FileNotFoundError: if a model is not there.
    """
    target = Path(folder) / "weights"
    scripts = {target / f"{model}.js": weights_script(model, results) for model in MODELS}
    target.mkdir(parents=True, exist_ok=True)
    for path, script in scripts.items():
        path.write_text(script, encoding="utf-8")
    return list(scripts)
