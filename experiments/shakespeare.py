"""A small GPT with modern parts that writes Shakespeare, letter by letter.

    python -m experiments.shakespeare

Trained on eight plays, measured on a ninth, *Macbeth*. The weights with the best validation loss
are kept.
"""

import argparse
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from experiments.shared.common import (
    Options,
    intervals,
    modern_config,
    read_options,
    watch,
    write_results,
)
from transformer_book import datasets
from transformer_book.tasks import answer_batch
from transformer_lib import (
    Batches,
    CausalLM,
    CharTokenizer,
    TextWindows,
    Tokenizer,
    bits_per_byte,
    evaluate,
    generate,
    modern_recipe,
    train,
)

CHAPTER = "14b_recipes"
NANOGPT = 1.4697  # validation loss in the README of github.com/karpathy/nanoGPT
TEMPERATURE, TOP_P = 0.8, 0.95
ABOUT = {
    "Task": "The text so far in, the probabilities of its next character out.",
    "Choices": """A decoder with the parts of today: RoPE, RMSNorm before each sublayer, SwiGLU, no
        biases, one table for embeddings and output; AdamW with a cosine, gradients clipped,
        bfloat16 on the GPU. The weights with the lowest validation loss are kept, so this loss is a
        little flattered by the choice.""",
    "How to read the loss": f"""`validation_loss` is the mean over all characters of the validation
        part, read in windows that do not overlap: a window's first characters are guessed with
        little to go by. It is the number to hold beside nanoGPT's published {NANOGPT} nats per
        character, which is an estimate from random windows of 256 characters. The two differ in
        the text (nanoGPT: the tiny-shakespeare file; here: whole plays, with stage directions and
        headings), in the split (nanoGPT: its last tenth, in the middle of the plays; here: a ninth
        play of which no line was seen, with its own names) and in the size (nanoGPT: 10.65 million
        parameters), so neither is better for being smaller. `sliding_loss` lets every character be
        guessed from at least three quarters of a window before it.""",
    "Intended use": "Teaching: watching a language model learn, and sampling from it.",
    "Limits": """It has learned how eight plays look, no more: verse, names, half of the grammar.
        What it writes means nothing. It was trained on windows of 256 characters and accepts no
        longer ones; longer texts are written by going on from the last characters.""",
}


def build(options: Options, vocab_size: int, length: int) -> CausalLM:
    """Make the model with new weights."""
    config = modern_config(
        vocab_size=vocab_size,
        max_len=length,
        d_model=options.pick(256, 16),
        n_heads=options.pick(8, 2),
        n_layers=options.pick(4, 1),
        d_ff=options.pick(688, 32),  # 8/3 of the width: three matrices cost what two did
        dropout=options.given.dropout,
    )
    return CausalLM(config)


def sliding_windows(ids: Tensor, length: int, batch_size: int) -> Batches:
    """Make windows that overlap by three quarters, in which only what is new is to be predicted."""
    step = length // 4
    pairs = [(ids[:1], ids[1 : length + 1])]
    for start in range(step, len(ids) - length + step - 1, step):
        known = start + length - step + 1
        pairs.append((ids[start:known], ids[known : start + length + 1]))
    return Batches(pairs, answer_batch, batch_size=batch_size, shuffle=False)


def write_text(model: CausalLM, tokenizer: Tokenizer, start: str, n: int, seed: int) -> str:
    """Let the model write, half a window at a time, each time from the last half it has."""
    device = next(model.parameters()).device
    half = model.config.max_len // 2
    generator = torch.Generator(device).manual_seed(seed)
    ids = torch.tensor([tokenizer.encode(start)], device=device)  # (1, T)
    while ids.shape[1] < n:
        new = generate(
            model,
            ids[:, -half:],
            max_new_tokens=half,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            generator=generator,
        )
        ids = torch.cat((ids[:, :-half], new), dim=1)
    return tokenizer.decode(ids[0, :n].tolist())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the model, measure it on the whole validation part and write the results."""
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--dropout", type=float, default=0.3, help="of the model (default: 0.3)")
    options = read_options("shakespeare", __doc__, arguments, own)
    text = datasets.shakespeare()
    tokenizer = CharTokenizer.train([text.train])
    length = options.pick(256, 32)
    train_text, validation_text = (part[: options.pick(10**9, 999)] for part in text)
    ids = [torch.tensor(tokenizer.encode(part)) for part in (train_text, validation_text)]
    # All of the validation part as one batch: a compiled model meets only one more shape.
    n_windows = math.ceil((len(ids[1]) - 1) / length)
    validation = TextWindows(ids[1], length, batch_size=n_windows)
    model = build(options, tokenizer.vocab_size, length)
    steps = options.n_steps(5_000)
    on_gpu = options.device.startswith("cuda")
    recipe = modern_recipe(
        steps,
        2e-3,
        precision="bfloat16" if on_gpu else "float32",
        compile=on_gpu and not options.eager,
        patience=steps,  # never stop early, but put the best weights back
        seed=options.seed,
        **intervals(steps, n_validations=40),
    )
    windows = TextWindows(ids[0], length, options.pick(64, 8), options.seed)
    rows = train(
        model, windows, recipe, validation=validation, device=options.device, progress=False,
        on_step=watch,
    )  # fmt: skip
    found = evaluate(model, validation)  # in float32, which counts
    sliding = evaluate(model, sliding_windows(ids[1], length, batch_size=128))
    n_bytes = len(validation_text[1:].encode())  # nobody predicts the first character
    losses = {row["validation_loss"]: row["step"] for row in rows if row["validation_loss"]}
    metrics = {
        "validation_loss": found["loss"],
        "sliding_loss": sliding["loss"],
        "bits_per_byte": bits_per_byte(found["loss"], int(found["tokens"]), n_bytes),
        "perplexity": found["perplexity"],
        "characters_predicted": found["tokens"],
        "best_step": losses[min(losses)],
        "nanogpt_published_loss": NANOGPT,
    }
    sample = write_text(model, tokenizer, "\n", options.pick(500, 50), seed=options.seed)
    (options.folder / "sample.txt").write_bytes(f"{sample}\n".encode())
    write_results(
        options, "shakespeare.txt", ABOUT, metrics, recipe, model=model, tokenizer=tokenizer,
        rows=rows, more={"sample": sample},
    )  # fmt: skip


if __name__ == "__main__":
    main()
