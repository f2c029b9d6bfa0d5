"""files: a crash leaves the old or the new, never a mixture; a folder has one writer."""

import errno
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from tiny_models import LLAMA, tiny

from transformer_lib.core import files
from transformer_lib.core.files import lock_folder, whole_files, write_file
from transformer_lib.hugging_face.pretrained import load_pretrained, save_pretrained
from transformer_lib.models.language_models import CausalLM
from transformer_lib.models.saving import load_model, save_model
from transformer_lib.text.tokenizers import CharTokenizer, Tokenizer
from transformer_lib.training.data import TextWindows
from transformer_lib.training.loop import train
from transformer_lib.training.recipes import Recipe

# --- whole, or not at all -------------------------------------------------------------------------

OLD, NEW = "old", "new"
TOKENIZERS = {OLD: CharTokenizer.train(["äöü"]), NEW: CharTokenizer.train(["æøå"])}
# The same shapes with other choices: only the set as a whole says what the weights mean.
MODELS = {
    OLD: CausalLM(tiny(**LLAMA, scale_embeddings=False)),
    NEW: CausalLM(tiny(**LLAMA, scale_embeddings=False, rope_theta=7.0)),
}


def write_tokenizer(folder, age):
    TOKENIZERS[age].save(folder / "tokenizer.json")


def read_tokenizer(folder):
    return {Tokenizer.load(folder / "tokenizer.json").tokens == TOKENIZERS[NEW].tokens}


def write_model(folder, age):
    save_model(MODELS[age], folder, tokenizer=TOKENIZERS[age], card=age)


def parts_are_new(model, folder):
    """Whether settings, weights, tokenizer and card are the new ones: a set of the answers."""
    weight = model.decoder.embedding.tokens.weight
    found = {
        model.config.rope_theta == 7.0,
        torch.equal(weight, MODELS[NEW].decoder.embedding.tokens.weight),
    }
    if (folder / "README.md").exists():
        found |= read_tokenizer(folder) | {(folder / "README.md").read_text() == NEW}
    return found


def read_model(folder):
    return parts_are_new(load_model(folder), folder)


def write_hugging_face(folder, age):
    save_pretrained(MODELS[age], folder)


def read_hugging_face(folder):
    return parts_are_new(load_pretrained(folder).model, folder)


WRITERS = {
    "tokenizer": (write_tokenizer, read_tokenizer),
    "model": (write_model, read_model),
    "hugging face": (write_hugging_face, read_hugging_face),
}


class DiskFull:
    """Lets the n-th call that changes the disk fail, and all after it."""

    def __init__(self, patch, moment):
        self.calls, self.moment, self.failed = [], moment, None
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, self.failing(name, getattr(os, name)))

    def failing(self, name, real):
        def call(*arguments, **options):
            self.calls.append(name)
            if len(self.calls) >= self.moment:
                self.failed = self.failed or name
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_old_or_the_new_or_an_error(kind, tmp_path, monkeypatch):
    """Whichever call fails, nobody can read a mixture of old and new files."""
    write, read = WRITERS[kind]
    failures = []
    for moment in range(1, 30):
        folder = tmp_path / str(moment)
        folder.mkdir()
        write(folder, OLD)
        assert read(folder) == {False}
        with monkeypatch.context() as patch:
            disk = DiskFull(patch, moment)
            try:
                write(folder, NEW)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
        if disk.failed is None:
            break
        failures.append(disk.failed)
        try:
            assert len(read(folder)) == 1
        except ValueError as error:
            assert "was being written when its writer stopped" in str(error)  # noqa: PT017
            write(folder, NEW)
            assert read(folder) == {True}
        if set(disk.calls[: disk.moment - 1]) <= {"fsync"}:  # before the first file has its name
            assert read(folder) == {False}
    assert read(folder) == {True}
    assert {"fsync", "replace"} <= set(failures)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_crash_while_writing_leaves_nothing_but_what_was_there(kind, tmp_path, monkeypatch):
    write, read = WRITERS[kind]
    write(tmp_path, OLD)
    before = sorted(path.name for path in tmp_path.iterdir())
    with monkeypatch.context() as patch:
        DiskFull(patch, moment=1)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path, NEW)
        patch.undo()
        assert read(tmp_path) == {False}
    assert read(tmp_path) == {False}
    assert set(before) <= {path.name for path in tmp_path.iterdir()}


def test_half_a_file_is_removed_when_its_writer_fails(tmp_path):
    def fail():
        with whole_files(tmp_path, "a", "b") as (first, _):
            first.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_last_file_comes_last_and_is_away_before(tmp_path, monkeypatch):
    """Who reads it finds the others as they belong to it."""
    for name in "ab":
        write_file(tmp_path / name, b"old")
    seen, real = [], os.replace

    def replace(source, target):
        seen.append({name: (tmp_path / name).exists() for name in "ab"})
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with whole_files(tmp_path, "a", "b") as parts:
        for part in parts:
            part.write_bytes(b"new")
    assert seen == [{"a": True, "b": False}, {"a": True, "b": False}]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a": b"new",
        "b": b"new",
    }


# --- one writer at a time -------------------------------------------------------------------------

HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from test_whole_files import train_here

def wait(row):
    print("training", flush=True)
    time.sleep(600)

train_here(sys.argv[1], on_step=wait)
"""


def train_here(folder, **options):
    """A run of 4 steps with a checkpoint at each of them."""
    torch.manual_seed(0)
    batches = TextWindows(torch.arange(100) % 5, length=8, batch_size=4)
    recipe = Recipe(steps=4, learning_rate=0.01, log_every=1, checkpoint_every=1)
    options = {"progress": False, "device": "cpu"} | options
    return train(CausalLM(tiny()), batches, recipe, folder=folder, **options)


def test_a_second_process_cannot_train_in_the_same_folder(tmp_path):
    """Two processes would remove each other's checkpoints; a killed one leaves no lock."""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLDER, str(folder), str(pathlib.Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "training\n"
            message = rf"folder='{folder}' is in use by process {holder.pid} on "
            with pytest.raises(BlockingIOError, match=message):
                train_here(folder)
        finally:
            holder.kill()
    assert [row["step"] for row in train_here(folder)] == [1, 2, 3, 4]
    assert not (folder / files.LOCK).exists()


def test_a_run_that_fails_gives_the_folder_back(tmp_path):
    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_here(tmp_path, on_step=stop)
    assert len(train_here(tmp_path)) == 4


def test_the_same_process_cannot_lock_a_folder_twice(tmp_path):
    message = f"folder='{tmp_path}' is in use by process {os.getpid()} on "
    with lock_folder(tmp_path):
        with pytest.raises(BlockingIOError, match=message), lock_folder(tmp_path):
            pass
        with lock_folder(tmp_path / "another"):
            pass
    with lock_folder(tmp_path):
        pass


def test_a_lock_that_was_removed_since_it_was_opened_counts_for_nothing(tmp_path, monkeypatch):
    """The last holder removes the file; who opened it before would hold a lock that nobody sees."""
    opened, real = [], os.open

    def open_late(path, *arguments):
        handle = real(path, *arguments)
        opened.append(handle)
        if len(opened) == 1:
            os.unlink(path)
        return handle

    monkeypatch.setattr(os, "open", open_late)
    with lock_folder(tmp_path):
        assert len(opened) == 2
        with pytest.raises(BlockingIOError), lock_folder(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_drive_without_locks_is_said(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked: .*No locks"), lock_folder(tmp_path):
        pass


def test_no_folder_needs_no_lock():
    with lock_folder(None):
        pass
