"""The trained models of the live figures, as scripts that a page can load.

A browser that shows a page from a folder may fetch nothing but scripts, so the weights are text in
scripts: ``Live.register(name, part, base64, header)``. They are made when the site is built, from
``book/results``, and are in no repository.
"""

from __future__ import annotations

from pathlib import Path

from transformer_book.live.one_byte import RESULTS, weights_scripts

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
    scripts = {
        target / f"{model}-{part}.js": script
        for model in MODELS
        for part, script in enumerate(weights_scripts(model, results))
    }
    target.mkdir(parents=True, exist_ok=True)
    for path, script in scripts.items():
        path.write_text(script, encoding="utf-8")
    return list(scripts)
