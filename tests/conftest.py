"""Turn on the run-time shape checks before the library is imported, and the network off."""

import gc
import os

import pytest
import torch
from jaxtyping import config
from untraced import leave_out, pytest_addoption, pytest_ignore_collect  # noqa: F401
from windows import skip_on_windows

os.environ["HF_HUB_OFFLINE"] = "1"  # before anybody imports transformers
gc.disable()  # what is imported and collected stays: to look through it takes 5 s in each process

# Without the checks, as the quick check and the tests on a GPU run, imports take a fifth of that.
if not os.environ.get("JAXTYPING_DISABLE"):
    from shape_checks import check_shapes_of

    check_shapes_of("transformer_lib", "transformer_book")


def pytest_collection_modifyitems(config, items):
    """Leave out what another run has; mark what cannot run here."""
    leave_out(config, items)
    skip_on_windows(items)


def pytest_collection_finish():
    """Collect garbage again, from now on, without looking through what was imported each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def unchecked_shapes():
    """Let wrong shapes through to the library's own error messages."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def fresh_compiler(unchecked_shapes):
    """Compile the library without its type checks, as if nothing had been compiled before.

    PyTorch gives up on a function that it has compiled in too many ways, for other tests too.
    """
    torch.compiler.reset()
