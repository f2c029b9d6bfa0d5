"""Checks that diagnose an answer instead of refusing it.

Each exercise has a reference answer, a few inputs, and a list of mistakes that people really make.
An answer that is wrong is compared with each mistake; if it makes the same numbers, the reader is
told which one it is. :func:`hint` helps step by step.
"""

import difflib
from collections import Counter
from collections.abc import Mapping

from transformer_book.exercises import (
    attention,
    attention_backward,
    costs,
    counting,
    decoder,
    encoder,
    families,
    feedforward,
    generation,
    hardware,
    heads,
    interpretation,
    lab1,
    lab2,
    lab3,
    lab4,
    lab5,
    masks,
    modern,
    norms,
    positions,
    pretrained,
    reading,
    recurrence,
    residuals,
    scaling,
    tokens,
    training,
    transformer,
    your_file,
    your_models,
)
from transformer_book.exercises.grading.checking import Answer, Exercise, Verdict, judge

EXERCISES: dict[str, Exercise] = {
    "reading.reach": reading.REACH,
    "reading.score_shape": reading.SCORE_SHAPE,
    "reading.running_mean": reading.RUNNING_MEAN,
    "reading.directions": reading.DIRECTIONS,
    "tokens.bits_per_byte": tokens.BITS_PER_BYTE,
    "tokens.pair_of": tokens.PAIR_OF,
    "tokens.stream": tokens.STREAM,
    "tokens.ways_to_cut": tokens.WAYS_TO_CUT,
    "tokens.pad": tokens.PAD,
    "tokens.table_gradient": tokens.TABLE_GRADIENT,
    "tokens.equal_std": tokens.EQUAL_STD,
    "tokens.analogy": tokens.ANALOGY,
    "recurrence.steps_until": recurrence.STEPS_UNTIL,
    "recurrence.largest_input": recurrence.LARGEST_INPUT,
    "recurrence.forget_bias": recurrence.FORGET_BIAS,
    "attention.three_tokens": attention.THREE_TOKENS,
    "attention.query_length": attention.QUERY_LENGTH,
    "attention.head": attention.HEAD,
    "attention.by_distance": attention.BY_DISTANCE,
    "attention.temperature": attention_backward.TEMPERATURE,
    "attention.second_token": attention_backward.SECOND_TOKEN,
    "attention.head_backward": attention_backward.HEAD_BACKWARD,
    "scaling.slope": scaling.SLOPE,
    "scaling.divisors": scaling.DIVISORS,
    "scaling.needle": scaling.NEEDLE,
    "scaling.sink": scaling.SINK,
    "scaling.online": scaling.ONLINE,
    "scaling.first_std": scaling.FIRST_STD,
    "scaling.split_fold": scaling.SPLIT_FOLD,
    "masks.sinks": masks.SINKS,
    "masks.floor": masks.FLOOR,
    "masks.starts": masks.STARTS,
    "masks.shift": masks.SHIFT,
    "masks.softmax": masks.SOFTMAX,
    "masks.cached": masks.CACHED,
    "masks.translate": masks.TRANSLATE,
    "heads.split": heads.SPLIT,
    "heads.merge": heads.MERGE,
    "heads.parameters": heads.PARAMETERS,
    "heads.ov": heads.OV,
    "heads.distance": heads.DISTANCE,
    "heads.prune": heads.PRUNE,
    "positions.shift": positions.SHIFT,
    "positions.alibi": positions.ALIBI,
    "positions.buckets": positions.BUCKETS,
    "positions.ntk_base": positions.NTK_BASE,
    "encoder.sublayer": encoder.SUBLAYER,
    "encoder.layer": encoder.LAYER,
    "encoder.parameters": encoder.PARAMETERS,
    "encoder.pool": encoder.POOL,
    "encoder.share": encoder.SHARE,
    "encoder.cosines": encoder.COSINES,
    "transformer.count": transformer.COUNT,
    "transformer.table_start": transformer.TABLE_START,
    "transformer.logit_gradient": transformer.LOGIT_GRADIENT,
    "transformer.tied_gradient": transformer.TIED_GRADIENT,
    "transformer.adam": transformer.ADAM,
    "training.perplexity": training.PERPLEXITY,
    "training.floor": training.FLOOR,
    "training.adamw": training.ADAMW,
    "training.accumulated": training.ACCUMULATED,
    "training.trapezoid": training.TRAPEZOID,
    "training.clip": training.CLIP,
    "residuals.branch_scale": residuals.BRANCH_SCALE,
    "residuals.without_write": residuals.WITHOUT_WRITE,
    "residuals.convex_share": residuals.CONVEX_SHARE,
    "residuals.stochastic_depth": residuals.STOCHASTIC_DEPTH,
    "residuals.penalty": residuals.PENALTY,
    "residuals.all_kept": residuals.ALL_KEPT,
    "decoder.open_cells": decoder.OPEN_CELLS,
    "decoder.cross_attention": decoder.CROSS_ATTENTION,
    "decoder.future_links": decoder.FUTURE_LINKS,
    "decoder.shift": decoder.SHIFT,
    "decoder.exact_match": decoder.EXACT_MATCH,
    "feedforward.swiglu": feedforward.SWIGLU,
    "feedforward.gated_width": feedforward.GATED_WIDTH,
    "feedforward.share": feedforward.SHARE,
    "feedforward.unit": feedforward.UNIT,
    "feedforward.mixture": feedforward.MIXTURE,
    "norms.fold": norms.FOLD,
    "norms.centre": norms.CENTRE,
    "norms.orders": norms.ORDERS,
    "norms.backward": norms.BACKWARD,
    "norms.stream_size": norms.STREAM_SIZE,
    "generation.top_p": generation.TOP_P,
    "generation.beam_step": generation.BEAM_STEP,
    "generation.length_score": generation.LENGTH_SCORE,
    "generation.cache_bytes": generation.CACHE_BYTES,
    "generation.instead": generation.INSTEAD,
    "generation.tokens_per_pass": generation.TOKENS_PER_PASS,
    "families.pairs": families.PAIRS,
    "families.answer_targets": families.ANSWER_TARGETS,
    "families.masked": families.MASKED,
    "families.span_target": families.SPAN_TARGET,
    "families.last": families.LAST,
    "modern.sublayer": modern.SUBLAYER,
    "modern.equal_width": modern.EQUAL_WIDTH,
    "modern.route": modern.ROUTE,
    "modern.cut": modern.CUT,
    "modern.tokens": modern.TOKENS,
    "modern.set_vector": modern.SET_VECTOR,
    "costs.merge": costs.MERGE,
    "costs.crossing": costs.CROSSING,
    "costs.traffic": costs.TRAFFIC,
    "costs.grouped": costs.GROUPED,
    "costs.linear_step": costs.LINEAR_STEP,
    "costs.fixed": costs.FIXED,
    "hardware.intensity": hardware.INTENSITY,
    "hardware.loss_scale": hardware.LOSS_SCALE,
    "hardware.average": hardware.AVERAGE,
    "hardware.shard": hardware.SHARD,
    "pretrained.pieces": pretrained.PIECES,
    "pretrained.pool": pretrained.POOL,
    "pretrained.unfuse": pretrained.UNFUSE,
    "pretrained.search": pretrained.SEARCH,
    "counting.block": counting.BLOCK,
    "counting.flops_per_token": counting.FLOPS_PER_TOKEN,
    "counting.training_bytes": counting.TRAINING_BYTES,
    "counting.exponent": counting.EXPONENT,
    "counting.best_size": counting.BEST_SIZE,
    "interpretation.even": interpretation.EVEN,
    "interpretation.continue": interpretation.CONTINUE,
    "interpretation.lens": interpretation.LENS,
    "interpretation.carry": interpretation.CARRY,
    "lab2.width": lab2.WIDTH,
    "lab2.one_row": lab2.ONE_ROW,
    "lab2.slots": lab2.SLOTS,
    "lab2.two_rows": lab2.TWO_ROWS,
    "lab2.masks": lab2.MASKS,
    "lab2.at_once": lab2.AT_ONCE,
    "lab2.places": lab2.PLACES,
    "lab2.valid": lab2.VALID,
    "lab2.margin": lab2.MARGIN,
    "lab3.moved": lab3.MOVED,
    "lab3.tasks": lab3.TASKS,
    "lab3.arrow": lab3.ARROW,
    "lab3.probe": lab3.PROBE,
    "lab3.spans": lab3.SPANS,
    "lab4.batch": lab4.BATCH,
    "lab4.head": lab4.HEAD,
    "lab4.attention": lab4.ATTENTION,
    "lab4.block": lab4.BLOCK,
    "lab4.gpt": lab4.GPT,
    "lab4.leak": lab4.LEAK,
    "lab4.choose": lab4.CHOOSE,
    "lab4.write": lab4.WRITE,
    "lab4.renamed": lab4.RENAMED,
    "lab5.cost": lab5.COST,
    "lab5.width": lab5.WIDTH,
    "lab5.plan": lab5.PLAN,
    "lab5.gap": lab5.GAP,
    "lab5.fit": lab5.FIT,
    "lab5.leave_out": lab5.LEAVE_OUT,
    "lab1.listen": lab1.LISTEN,
    "lab1.weights": lab1.WEIGHTS,
    "lab1.scores": lab1.SCORES,
    "lab1.pattern": lab1.PATTERN,
    "lab1.silence": lab1.SILENCE,
    "lab1.chance": lab1.CHANCE,
    "file.merge": your_file.MERGE,
    "file.BytePairs": your_file.BYTE_PAIRS,
    "file.attention": your_file.ATTENTION,
    "file.attention.5": your_file.ATTENTION_5,
    "file.causal_mask": your_file.CAUSAL_MASK,
    "file.padding_mask": your_file.PADDING_MASK,
    "file.MultiHeadAttention": your_file.MULTI_HEAD_ATTENTION,
    "file.rotate": your_file.ROTATE,
    "file.MultiHeadAttention.7": your_file.MULTI_HEAD_ATTENTION_7,
    "file.sinusoids": your_file.SINUSOIDS,
    "file.FeedForward": your_file.FEED_FORWARD,
    "file.RMSNorm": your_file.RMS_NORM,
    "file.Block": your_file.BLOCK,
    "file.Encoder": your_models.ENCODER,
    "file.DecoderBlock": your_models.DECODER_BLOCK,
    "file.Transformer": your_models.TRANSFORMER,
    "file.translate": your_models.TRANSLATE,
}


_LATEST: dict[str, Verdict] = {}  # of each exercise that this notebook has checked


def check(name: str, answer: Answer) -> None:
    """Say whether an answer is right and, if it is not, what probably went wrong.

    Args:
        name: the exercise, such as ``"attention.by_distance"``.
        answer: the reader's function; one that returns nothing counts as not begun.

    Raises:
        ValueError: if there is no exercise of this name.

    Example:
        >>> check("attention.by_distance", lambda query, keys, values: ...)
        attention.by_distance: not attempted yet (nothing was returned).
        >>> mean = lambda query, keys, values: values.mean(dim=0)
        >>> check("attention.by_distance", mean)  # doctest: +ELLIPSIS
        attention.by_distance: not yet. This is the plain mean: ...
        >>> every = lambda query, keys, values: values
        >>> check("attention.by_distance", every)  # doctest: +ELLIPSIS
        attention.by_distance: not yet. The shape is (3, 2); expected (2,).
        Stuck? from transformer_book.exercises import hint; hint(...)
    """
    _tell(name, judge(_exercise(name), answer))


def hint(name: str, step: int = 1) -> None:
    """Help with an exercise, in steps from a nudge to the call to use.

    Args:
        name: the exercise, such as ``"attention.by_distance"``.
        step: which step; the first if left out.

    Raises:
        ValueError: if there is no exercise of this name, or no such step.

    Example:
        >>> hint("attention.by_distance")  # doctest: +ELLIPSIS
        attention.by_distance, hint 1 of 3: ...
    """
    hints = _exercise(name).hints
    if step not in range(1, len(hints) + 1):
        raise ValueError(f"step={step!r} must be a whole number from 1 to {len(hints)} for {name}")
    print(f"{name}, hint {step} of {len(hints)}: {hints[step - 1]}")
    if step < len(hints):
        print(f'More: hint("{name}", {step + 1})')


def summary() -> None:
    """Count what was checked since the notebook was started; the latest answer counts.

    A last cell with this call makes a notebook that is handed in say how far it came.

    Example:
        >>> check("masks.shift", lambda *_: ...)
        masks.shift: not attempted yet (nothing was returned).
        >>> summary()  # doctest: +ELLIPSIS
        Checked: ... right, ... not right, ... not attempted...
    """
    states: dict[str, str] = {}
    for name, verdict in _LATEST.items():
        attempted = not verdict.text.startswith("not attempted")
        states[name] = "right" if verdict.right else "not right" if attempted else "not attempted"
    counts = Counter(states.values())
    kinds = ("right", "not right", "not attempted")
    print("Checked: " + ", ".join(f"{counts[kind]} {kind}" for kind in kinds))
    for kind in kinds[1:]:
        names = [name for name, state in states.items() if state == kind]
        if names:
            print(f"{kind}: {', '.join(names)}")


def pick(name: str, yours: Answer, **parts: Answer) -> Answer:
    """Go on with the reader's answer if it is right, and with the book's if it is not.

    The steps of a lab build on each other; nobody should be stuck at the first.

    Args:
        name: the exercise, such as ``"attention.by_distance"``.
        yours: the reader's function or class.
        parts: for a class that is made of earlier parts, those that the lab goes on with, by the
            name of the attribute: the book's class is then made of them, too.

    Returns:
        The reader's answer or the book's.

    Raises:
        ValueError: if there is no exercise of this name, or its answer is not made of such parts.

    Example:
        >>> chosen = pick(
        ...     "attention.by_distance", lambda query, keys, values: ...
        ... )
        attention.by_distance: not attempted yet (nothing was returned).
        Going on with the book's answer.
        >>> chosen is EXERCISES["attention.by_distance"].reference
        True
    """
    verdict = judge(_exercise(name), yours)
    _tell(name, verdict)
    print("Going on with your answer." if verdict.right else "Going on with the book's answer.")
    ours = _made_of(name, parts)
    return yours if verdict.right else ours


def _made_of(name: str, parts: Mapping[str, Answer]) -> Answer:
    """The book's answer; a class is made of the given parts in place of its own."""
    reference = _exercise(name).reference
    if not parts:
        return reference
    if not isinstance(reference, type) or not all(hasattr(reference, part) for part in parts):
        raise ValueError(
            f"parts={sorted(parts)} are not what the book's answer to {name} is made of"
        )
    own = {part: staticmethod(value) for part, value in parts.items()}
    return type(reference.__name__, (reference,), own)


def _tell(name: str, verdict: Verdict) -> None:
    """Note and print a verdict and, where it names no known mistake, the way to the hints."""
    _LATEST[name] = verdict
    print(f"{name}: {verdict.text}")
    is_known = any(sentence in verdict.text for sentence in _exercise(name).mistakes)
    if verdict.text.startswith("not yet") and not is_known:
        print(f'Stuck? from transformer_book.exercises import hint; hint("{name}")')


def _exercise(name: str) -> Exercise:
    if name not in EXERCISES:
        near = difflib.get_close_matches(name, EXERCISES, n=5) or sorted(EXERCISES)[:5]
        raise ValueError(
            f"name={name!r} is not an exercise; expected a name such as {', '.join(near)} "
            "(all of them are in EXERCISES, transformer_book/exercises/__init__.py)"
        )
    return EXERCISES[name]
