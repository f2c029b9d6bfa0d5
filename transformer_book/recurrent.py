"""RNN, GRU, LSTM, and attention over an RNN: the baselines.

A recurrent network carries a state of fixed size from step to step. ``D`` is the width of its
input here and ``Dh`` the width of its state. Equations and parameters are those of PyTorch's
modules, so weights can be copied one to one: ``weight_ih`` acts on the input, ``weight_hh`` on
the hidden state, and the rows of both are stacked gate by gate.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (the name everyone uses)
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformer_lib import (
    Batch,
    attention,
    check_choice,
    check_ids,
    check_whole,
    expect_shape,
    padding_mask,
)

Kind = Literal["rnn", "gru", "lstm"]


class State(NamedTuple):
    """All that a recurrent network remembers of what it has read.

    Args:
        hidden: the hidden state h, ``(B, Dh)``; also the output of each step.
        cell: the cell state c of an LSTM, ``(B, Dh)``; ``None`` for the others.

    Example:
        >>> state = State(hidden=torch.zeros(2, 8))
        >>> state.hidden.shape, state.cell
        (torch.Size([2, 8]), None)
    """

    hidden: Float[Tensor, "B Dh"]
    cell: Float[Tensor, "B Dh"] | None = None


class _Cell(nn.Module, ABC):
    """What the three cells share: two affine maps, one of the input and one of the state."""

    n_gates: ClassVar[int]  # blocks of Dh rows in each weight
    has_cell_state: ClassVar[bool] = False

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__()
        _check_sizes(d_input=d_input, d_hidden=d_hidden)
        self.d_input, self.d_hidden = d_input, d_hidden
        rows = self.n_gates * d_hidden
        self.weight_ih = nn.Parameter(torch.empty(rows, d_input))
        self.weight_hh = nn.Parameter(torch.empty(rows, d_hidden))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))  # one would do; PyTorch has two
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(d_hidden**-0.5), d_hidden**-0.5)

    def forward(self, x: Float[Tensor, "B D"], state: State | None = None) -> State:
        """Read one vector of each sequence and return the new state.

        Args:
            x: the input of this step, ``(B, D)``.
            state: the state after the step before; zeros if left out.

        Returns:
            The state after this step.

        Raises:
            TypeError: if ``state`` is not a :class:`State`.
            ValueError: if the shapes do not fit together.
        """
        state = self.check(x, "B D", state)
        return self.step(self.project(x), state)

    def project(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch G"]:
        """Map the input to the gates; no step has to wait for another one here.

        Args:
            x: inputs, ``(..., D)``.

        Returns:
            The input's share in each gate, ``(..., n_gates * Dh)``.
        """
        return F.linear(x, self.weight_ih, self.bias_ih)

    @abstractmethod
    def step(self, from_x: Float[Tensor, "B G"], state: State) -> State:
        """Combine the projected input with the state before it; this is the serial part.

        Args:
            from_x: what :meth:`project` gives for this step, ``(B, n_gates * Dh)``.
            state: the state after the step before.

        Returns:
            The state after this step.
        """

    def check(self, x: Tensor, letters: str, state: State | None) -> State:
        """Raise an error that names what does not fit; return the state to start from.

        Args:
            x: the input.
            letters: the letters of its dimensions, ``"B D"`` or ``"B T D"``.
            state: what the caller passed.

        Returns:
            ``state``, or zeros if it is ``None``.
        """
        sizes = {"D": self.d_input, "Dh": self.d_hidden}
        expect_shape("x", x, letters, sizes)
        if state is None:
            zeros = x.new_zeros(sizes["B"], self.d_hidden)
            return State(zeros, zeros if self.has_cell_state else None)
        if not isinstance(state, State):
            raise TypeError(f"state has type {type(state).__name__}; expected State(hidden, cell)")
        expect_shape("state.hidden", state.hidden, "B Dh", sizes)
        if (state.cell is not None) != self.has_cell_state:
            wanted = "a tensor (B, Dh)" if self.has_cell_state else "None"
            got = "None" if state.cell is None else "a tensor"
            raise ValueError(f"state.cell is {got}; {type(self).__name__} expects {wanted}")
        if state.cell is not None:
            expect_shape("state.cell", state.cell, "B Dh", sizes)
        return state


class RNNCell(_Cell):
    r"""One step of the plain recurrent network, equal to ``nn.RNNCell``.

    .. math:: h_t = \tanh(W_{ih} x_t + b_{ih} + W_{hh} h_{t-1} + b_{hh})

    Args:
        d_input: D, the width of the input.
        d_hidden: Dh, the width of the state.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> cell = RNNCell(d_input=4, d_hidden=8)
        >>> state = cell(torch.zeros(2, 4))
        >>> cell(torch.ones(2, 4), state).hidden.shape
        torch.Size([2, 8])
    """

    n_gates = 1

    def step(self, from_x: Float[Tensor, "B G"], state: State) -> State:
        """Rewrite the whole state."""
        from_h = F.linear(state.hidden, self.weight_hh, self.bias_hh)  # (B, Dh)
        return State(torch.tanh(from_x + from_h))


class GRUCell(_Cell):
    r"""One step of the gated recurrent unit (Cho et al., 2014), equal to ``nn.GRUCell``.

    .. math::
        r &= \sigma(W_{ir} x_t + b_{ir} + W_{hr} h_{t-1} + b_{hr}) \\
        z &= \sigma(W_{iz} x_t + b_{iz} + W_{hz} h_{t-1} + b_{hz}) \\
        n &= \tanh(W_{in} x_t + b_{in} + r \odot (W_{hn} h_{t-1} + b_{hn})) \\
        h_t &= (1 - z) \odot n + z \odot h_{t-1}

    Args:
        d_input: D, the width of the input.
        d_hidden: Dh, the width of the state.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> cell = GRUCell(d_input=4, d_hidden=8)
        >>> cell.weight_hh.shape  # the rows of r, z and n
        torch.Size([24, 8])
        >>> cell(torch.zeros(2, 4)).hidden.shape
        torch.Size([2, 8])
    """

    n_gates = 3

    def step(self, from_x: Float[Tensor, "B G"], state: State) -> State:
        """Mix the old state with a new candidate, feature by feature."""
        from_h = F.linear(state.hidden, self.weight_hh, self.bias_hh)  # (B, 3 Dh)
        x_r, x_z, x_n = from_x.chunk(3, dim=-1)  # each (B, Dh)
        h_r, h_z, h_n = from_h.chunk(3, dim=-1)
        reset = torch.sigmoid(x_r + h_r)
        keep = torch.sigmoid(x_z + h_z)
        # The paper of 2014 resets the state before the matrix, W (r * h). PyTorch and cuDNN do it
        # after: then all three products with the state are a single one.
        candidate = torch.tanh(x_n + reset * h_n)
        return State((1 - keep) * candidate + keep * state.hidden)


class LSTMCell(_Cell):
    r"""One step of long short-term memory with a forget gate, equal to ``nn.LSTMCell``.

    .. math::
        i, f, o &= \sigma(W_{i\cdot} x_t + b_{i\cdot} + W_{h\cdot} h_{t-1} + b_{h\cdot}) \\
        g &= \tanh(W_{ig} x_t + b_{ig} + W_{hg} h_{t-1} + b_{hg}) \\
        c_t &= f \odot c_{t-1} + i \odot g \\
        h_t &= o \odot \tanh(c_t)

    Args:
        d_input: D, the width of the input.
        d_hidden: Dh, the width of the hidden state and of the cell state.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> state = LSTMCell(d_input=4, d_hidden=8)(torch.zeros(2, 4))
        >>> state.hidden.shape, state.cell.shape
        (torch.Size([2, 8]), torch.Size([2, 8]))
    """

    n_gates = 4
    has_cell_state = True

    def step(self, from_x: Float[Tensor, "B G"], state: State) -> State:
        """Erase, write and show parts of the cell state."""
        assert state.cell is not None  # check() has made sure of it
        gates = from_x + F.linear(state.hidden, self.weight_hh, self.bias_hh)  # (B, 4 Dh)
        write, keep, content, show = gates.chunk(4, dim=-1)  # i, f, g, o: each (B, Dh)
        # The cell state passes by sums and products with f alone: no matrix, no tanh.
        cell = torch.sigmoid(keep) * state.cell + torch.sigmoid(write) * torch.tanh(content)
        return State(torch.sigmoid(show) * torch.tanh(cell), cell)


CELLS: dict[str, type[_Cell]] = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}


class Recurrent(nn.Module):
    """Run one cell over a batch of sequences, step by step.

    It is serial by nature: step t needs the state after step t-1, so T steps take T turns however
    many processors there are. Only the projection of the inputs is done for all steps at once.

    Args:
        kind: ``"rnn"``, ``"gru"`` or ``"lstm"``.
        d_input: D, the width of the input.
        d_hidden: Dh, the width of the state.
        reverse: read from the last position to the first.

    Raises:
        ValueError: if the kind is unknown or a width is not positive.

    Example:
        >>> lstm = Recurrent("lstm", d_input=4, d_hidden=8)
        >>> hidden, final = lstm(
        ...     torch.zeros(2, 5, 4), lengths=torch.tensor([5, 3])
        ... )
        >>> hidden.shape, final.hidden.shape, final.cell.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 8]), torch.Size([2, 8]))
        >>> (
        ...     bool((hidden[1, 3:] == 0).all()),
        ...     torch.equal(hidden[1, 2], final.hidden[1]),
        ... )
        (True, True)
    """

    def __init__(self, kind: Kind, d_input: int, d_hidden: int, *, reverse: bool = False) -> None:
        super().__init__()
        check_choice("kind", kind, tuple(CELLS))
        self.cell = CELLS[kind](d_input, d_hidden)
        self.reverse = reverse

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        lengths: Int[Tensor, " B"] | None = None,
        state: State | None = None,
    ) -> tuple[Float[Tensor, "B T Dh"], State]:
        """Read the sequences and return the hidden state at each position and the final state.

        Args:
            x: the inputs, ``(B, T, D)``.
            lengths: how many real positions each sequence has, ``(B,)``; the padding after them
                leaves the state as it is. All of them are real if left out.
            state: the state to start from; zeros if left out.

        Returns:
            The hidden states ``(B, T, Dh)``, zeros at the padding, and the state after the last
            real position that was read.

        Raises:
            TypeError: if ``lengths`` are not whole numbers or ``state`` is not a :class:`State`.
            ValueError: if the shapes do not fit together or a length is out of range.
        """
        state = self.cell.check(x, "B T D", state)
        real = _real_positions(lengths, x)  # (B, T)
        if real is not None:
            x = x.masked_fill(~real[..., None], 0.0)  # 0 * NaN is NaN in the backward pass
        # Unbound once, not sliced at each step, so that the way back costs T and not its square.
        from_x = self.cell.project(x).unbind(dim=1)  # T times (B, n_gates * Dh)
        hidden = [state.hidden] * x.shape[1]  # filled in below
        for t in reversed(range(x.shape[1])) if self.reverse else range(x.shape[1]):
            new = self.cell.step(from_x[t], state)
            state = new if real is None else _where(real[:, t, None], new, state)
            hidden[t] = state.hidden
        states = torch.stack(hidden, dim=1)  # (B, T, Dh)
        return states if real is None else states.masked_fill(~real[..., None], 0.0), state


class AdditiveAttention(nn.Module):
    r"""Attention scored by a small network (Bahdanau et al., 2015), before dot products took over.

    .. math:: \operatorname{score}(q, k) = v^\top \tanh(W q + U k)

    Args:
        d_query: the width of the queries.
        d_key: the width of the keys, which are the values too.
        d_attention: the inner width of the scoring network.

    Raises:
        ValueError: if a width is not positive.

    Example:
        >>> attend = AdditiveAttention(d_query=8, d_key=6, d_attention=4)
        >>> context, weights = attend(
        ...     torch.zeros(2, 3, 8), torch.zeros(2, 5, 6)
        ... )
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 6]), torch.Size([2, 3, 5]))
        >>> weights[0, 0].detach()
        tensor([0.2000, 0.2000, 0.2000, 0.2000, 0.2000])
    """

    def __init__(self, d_query: int, d_key: int, d_attention: int) -> None:
        super().__init__()
        _check_sizes(d_query=d_query, d_key=d_key, d_attention=d_attention)
        self.query = nn.Linear(d_query, d_attention, bias=False)
        self.key = nn.Linear(d_key, d_attention, bias=False)
        self.score = nn.Linear(d_attention, 1, bias=False)

    def forward(
        self,
        queries: Float[Tensor, "B T Dq"],
        keys: Float[Tensor, "B S Dk"],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> tuple[Float[Tensor, "B T Dk"], Float[Tensor, "B T S"]]:
        """Return for each query the weighted mean of the keys, and the weights.

        Args:
            queries: ``(B, T, Dq)``; in a decoder, its state before the step.
            keys: ``(B, S, Dk)``; in a decoder, the encoder's states.
            mask: boolean, ``True`` = may attend, broadcastable to ``(B, T, S)``. A query that may
                attend to nothing gets zero weights and a zero context.

        Returns:
            The contexts ``(B, T, Dk)`` and the weights ``(B, T, S)``.

        Raises:
            TypeError: if the mask is not boolean.
            ValueError: if the shapes do not fit together.
        """
        sizes = {"Dq": self.query.in_features, "Dk": self.key.in_features}
        expect_shape("queries", queries, "B T Dq", sizes)
        expect_shape("keys", keys, "B S Dk", sizes)
        # Each query meets each key: (B, T, 1, Da) + (B, 1, S, Da) -> (B, T, S, Da)
        pairs = torch.tanh(self.query(queries)[:, :, None] + self.key(keys)[:, None])
        scores = self.score(pairs).squeeze(-1)  # (B, T, S)
        # From here on all attention is the same: dot products of nothing, with our scores added.
        no_q, no_k = keys.new_zeros(sizes["T"], 1), keys.new_zeros(sizes["S"], 1)
        return attention(no_q, no_k, keys, mask, bias=scores)  # (B, T, Dk), (B, T, S)


class Seq2SeqOutput(NamedTuple):
    """What :class:`RecurrentSeq2Seq` returns.

    Args:
        logits: scores of the next token at each target position, ``(B, T, V)``.
        alignment: how much each target position looked at each source position, ``(B, T, S)``;
            ``None`` without attention.

    Example:
        >>> Seq2SeqOutput(logits=torch.zeros(2, 4, 9)).alignment is None
        True
    """

    logits: Float[Tensor, "B T V"]
    alignment: Float[Tensor, "B T S"] | None = None


class RecurrentSeq2Seq(nn.Module):
    """Translate with GRUs, through one fixed vector or with attention (Bahdanau et al., 2015).

    The encoder reads the source in both directions. At each step the decoder reads the token
    before, a context vector and its own state. With attention, the context is a mean of all
    encoder states, weighted anew at each step; without, it is the encoder's last states at every
    step, so that a source of any length has to fit into 2 D numbers. Nothing else differs.

    The paper has a maxout layer before the output and resets the GRU's state in another place
    (see :class:`GRUCell`); here the output is one linear layer, and all widths are ``d_model``.

    Args:
        vocab_size: V, the number of different tokens of source and target together.
        d_model: D, the width of the embeddings, of each direction's state and of the decoder's.
        attention: whether the decoder may look back at every encoder state.

    Raises:
        ValueError: if a size is not positive.

    Example:
        >>> model = RecurrentSeq2Seq(vocab_size=12, d_model=8)
        >>> source, target = (
        ...     torch.tensor([[3, 11, 5], [4, 2, 0]]),
        ...     torch.tensor([[1, 7], [1, 8]]),
        ... )
        >>> output = model(source, target, source_lengths=torch.tensor([3, 2]))
        >>> output.logits.shape, output.alignment.shape
        (torch.Size([2, 2, 12]), torch.Size([2, 2, 3]))
    """

    def __init__(self, vocab_size: int, d_model: int, *, attention: bool = True) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model)
        self.source_embedding = nn.Embedding(vocab_size, d_model)
        self.target_embedding = nn.Embedding(vocab_size, d_model)
        self.forwards = Recurrent("gru", d_model, d_model)
        self.backwards = Recurrent("gru", d_model, d_model, reverse=True)
        self.first_state = nn.Linear(d_model, d_model)
        self.attention = AdditiveAttention(d_model, 2 * d_model, d_model) if attention else None
        self.decoder = GRUCell(3 * d_model, d_model)
        self.output = nn.Linear(3 * d_model, vocab_size)

    def forward(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        source_lengths: Int[Tensor, " B"] | None = None,
    ) -> Seq2SeqOutput:
        """Score every next target token, given the true ones before it (teacher forcing).

        Args:
            source: source ids, ``(B, S)``.
            target: what the decoder reads, ``(B, T)``: a start token and then the target. The
                logits at t are scores of the token that follows ``target[:, t]``.
            source_lengths: how many real tokens each source has, ``(B,)``; all if left out.

        Returns:
            The logits ``(B, T, V)`` and, with attention, the alignment ``(B, T, S)``.

        Raises:
            TypeError: if ids or lengths are not whole numbers.
            ValueError: if the shapes do not fit together, an id is outside the vocabulary or a
                length is out of range.
        """
        annotations, last = self.encode(source, source_lengths)
        check_ids("target", target, self.target_embedding.num_embeddings)
        expect_shape("target", target, "B T", {"B": len(source)})
        inputs = self.target_embedding(target)  # (B, T, D)
        real = _real_positions(source_lengths, annotations)
        mask = None if real is None else real[:, None]  # (B, 1, S): for every target position
        _, back = last.chunk(2, dim=-1)
        state = State(torch.tanh(self.first_state(back)))  # (B, D), as in the paper
        readouts, alignment = [], []
        for t in range(target.shape[1]):
            context = last  # (B, 2 D)
            if self.attention is not None:
                found, weights = self.attention(state.hidden[:, None], annotations, mask)
                context = found[:, 0]
                alignment.append(weights[:, 0])  # (B, S)
            state = self.decoder(torch.cat([inputs[:, t], context], dim=-1), state)
            readouts.append(torch.cat([state.hidden, context], dim=-1))  # (B, 3 D)
        logits = self.output(torch.stack(readouts, dim=1))  # (B, T, V)
        return Seq2SeqOutput(logits, torch.stack(alignment, dim=1) if alignment else None)

    def encode(
        self, source: Int[Tensor, "B S"], lengths: Int[Tensor, " B"] | None = None
    ) -> tuple[Float[Tensor, "B S D2"], Float[Tensor, "B D2"]]:
        """Read the source in both directions, like ``nn.GRU(bidirectional=True)``.

        Args:
            source: source ids, ``(B, S)``.
            lengths: how many real tokens each source has, ``(B,)``; all if left out.

        Returns:
            The states of both directions at each position, ``(B, S, 2 D)``, and the last state of
            each direction, ``(B, 2 D)``: forwards at the source's end, backwards at its start.

        Raises:
            TypeError: if ids or lengths are not whole numbers.
            ValueError: if an id is outside the vocabulary or a length is out of range.
        """
        check_ids("source", source, self.source_embedding.num_embeddings)
        x = self.source_embedding(source)  # (B, S, D)
        ahead, ahead_final = self.forwards(x, lengths)
        back, back_final = self.backwards(x, lengths)
        finals = torch.cat([ahead_final.hidden, back_final.hidden], dim=-1)
        return torch.cat([ahead, back], dim=-1), finals


class RecurrentClassifier(nn.Module):
    """Classify a sequence of ids from the last hidden state: all that is left of it by then.

    Args:
        kind: ``"rnn"``, ``"gru"`` or ``"lstm"``.
        vocab_size: V, the number of different tokens.
        d_model: D, the width of the embeddings and of the state.
        n_classes: C, the number of classes.

    Raises:
        ValueError: if the kind is unknown or a size is not positive.

    Example:
        >>> model = RecurrentClassifier(
        ...     "gru", vocab_size=10, d_model=8, n_classes=3
        ... )
        >>> model(
        ...     torch.tensor([[1, 2, 3], [4, 5, 0]]),
        ...     lengths=torch.tensor([3, 2]),
        ... ).shape
        torch.Size([2, 3])
    """

    def __init__(self, kind: Kind, vocab_size: int, d_model: int, n_classes: int) -> None:
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model, n_classes=n_classes)
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.recurrent = Recurrent(kind, d_model, d_model)
        self.head = nn.Linear(d_model, n_classes)

    def forward(
        self, ids: Int[Tensor, "B T"], lengths: Int[Tensor, " B"] | None = None
    ) -> Float[Tensor, "B C"]:
        """Read the ids and return a score for each class.

        Args:
            ids: ``(B, T)``.
            lengths: how many real tokens each sequence has, ``(B,)``; all if left out.

        Returns:
            The logits ``(B, C)``.

        Raises:
            TypeError: if ids or lengths are not whole numbers.
            ValueError: if an id is outside the vocabulary or a length is out of range.
        """
        check_ids("ids", ids, self.embedding.num_embeddings)
        _, final = self.recurrent(self.embedding(ids), lengths)
        return self.head(final.hidden)  # type: ignore[no-any-return]


@torch.no_grad()
def open_forget_gate(network: Recurrent, bias: float) -> None:
    """Set the bias with which the forget gate of an LSTM starts; 0 is a gate of one half.

    Args:
        network: an LSTM; changed in place.
        bias: of every feature. PyTorch adds two biases, so the other one becomes 0.

    Raises:
        ValueError: if the network is no LSTM.

    Example:
        >>> lstm = Recurrent("lstm", d_input=4, d_hidden=8)
        >>> open_forget_gate(lstm, 3.0)
        >>> lstm.cell.bias_ih.view(4, 8)[
        ...     1
        ... ].detach()  # the gates are stacked i, f, g, o
        tensor([3., 3., 3., 3., 3., 3., 3., 3.])
    """
    if not network.cell.has_cell_state:
        kind = type(network.cell).__name__
        raise ValueError(f"network has a {kind}; expected an LSTM, which has a forget gate")
    network.cell.bias_ih.view(4, -1)[1] = bias
    network.cell.bias_hh.view(4, -1)[1] = 0.0


def with_lengths(batch: Batch) -> Batch:
    """Replace padding masks by lengths, which is what recurrent networks take.

    Args:
        batch: a batch padded at the end, with ``mask`` or ``source_mask``.

    Returns:
        The same with ``lengths`` or ``source_lengths``, ``(B,)``.

    Example:
        >>> from transformer_lib import classification_batch
        >>> with_lengths(classification_batch([([5, 6, 7], 1), ([8], 0)]))[
        ...     "lengths"
        ... ]
        tensor([3, 1])
    """
    return {
        name.replace("mask", "lengths"): tensor.sum(dim=(1, 2, 3)) if "mask" in name else tensor
        for name, tensor in batch.items()
    }


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        check_whole(name, size)


def _where(active: Bool[Tensor, "B 1"], new: State, old: State) -> State:
    """Take the new state of the active sequences and leave the others as they are."""
    hidden = torch.where(active, new.hidden, old.hidden)
    if new.cell is None or old.cell is None:
        return State(hidden)
    return State(hidden, torch.where(active, new.cell, old.cell))


def _real_positions(
    lengths: Tensor | None, x: Float[Tensor, "B T D"]
) -> Bool[Tensor, "B T"] | None:
    """Mark the positions of ``x`` that are not padding; without lengths there is none."""
    if lengths is None:
        return None
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths has dtype {lengths.dtype}; expected whole numbers")
    expect_shape("lengths", lengths, "B", {"B": len(x)})
    return padding_mask(lengths, x.shape[1])[:, 0, 0].to(x.device)
