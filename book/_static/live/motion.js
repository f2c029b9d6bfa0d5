"use strict";
/* Motion: a drawing goes to its new state in 300 ms. Values, words and the address never wait for it.

     Live.tween(owner, to, draw, { step, from, ms })

   owner  a node inside the figure; one motion at a time belongs to it, and a new one takes over from
          where the drawing stands at that moment.
   to     where to go: a number, or arrays and objects of them, nested as you like. What is no number,
          and a list that changes its length, changes at once.
   draw   draw(now, before) sets nodes that exist already: `now` is shaped like `to`. `before` is where
          the drawing stood before the reader's last action, or null: draw it faintly, it is the ghost.
   step   in a Try, steps follow each other: 0 is the cause, 1 what it does, 2 what that does, ...
   from   where to begin, if that is not where the drawing stands.
   Gives a promise: true when it has arrived, false when another motion took over.

   How a change is shown is said around it, Live.moving(how, change): STILL at once, QUICK in 300 ms,
   STEPS step by step (a Try), BACK quick and without a ghost (Reset). The frame of the figures does
   that for controls, tries and addresses; a figure that plays by itself does it around its own motion.

   Live.isStill() says whether a change that is being drawn is drawn at once: then nothing needs to be
   measured for its motion.

   The first call for an owner draws at once. So does every call while a reader drags or slides (the
   drawing is under the finger), and every call for a reader who prefers reduced motion. Such a reader
   sees the end state, its ghost included.

   While anything in a figure moves, its frame (`.live`) lacks the attribute data-settled. It goes with
   the change itself, so a test may wait for `.live[data-settled]` right after a click. */
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const MS = 300;
const [STILL, QUICK, STEPS, BACK] = [0, 1, 2, 3];
const owners = new WeakMap(); // node -> { now, to, before, action, stop }
const running = new WeakMap(); // frame -> how many of its motions run
let mode = STILL; // how the change that is being drawn shall be shown
let action = 0; // a drag is one action, from press to release

Object.assign(Live, { STILL, QUICK, STEPS, BACK });

/* Draw a change in this mode. */
Live.moving = (how, change) => {
  const outer = mode;
  mode = how;
  try {
    return change();
  } finally {
    mode = outer;
  }
};

/* A control was let go: what is shown now is the ghost of what comes next. */
Live.acted = () => (action += 1);

/* Asked once and kept: a question to the style sheet may lay out the whole page. */
let isCalm = false;
const calm = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");
const ask = () => (isCalm = Boolean(calm?.matches));
calm?.addEventListener("change", ask);
ask();
Live.prefersCalm = () => isCalm;

const isStill = (Live.isStill = () => mode === STILL || isCalm);
const ease = (share) => (share < 0.5 ? 4 * share ** 3 : 1 - (2 - 2 * share) ** 3 / 2);

Live.between = (from, to, share) => {
  if (typeof from === "number" && typeof to === "number") return from + (to - from) * share;
  if (!from || !to || typeof from !== "object" || typeof to !== "object") return to;
  if (Array.isArray(to) || ArrayBuffer.isView(to)) {
    return from.length === to.length ? Array.from(to, (each, at) => Live.between(from[at], each, share)) : to;
  }
  return Object.fromEntries(Object.entries(to).map(([key, each]) => [key, Live.between(from[key], each, share)]));
};

function same(one, other) {
  if (one === other) return true;
  if (!one || !other || typeof one !== "object" || typeof other !== "object") return false;
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => same(one[key], other[key]));
}

/* So many motions more, or less, in a frame; work that is not yet done counts like a motion. */
const busy = (Live.busy = (frame, change) => {
  if (!frame) return;
  running.set(frame, (running.get(frame) || 0) + change);
  frame.toggleAttribute("data-settled", !running.get(frame));
});

Live.tween = (owner, to, draw, { step = 0, from: first, ms = MS } = {}) => {
  const one = owners.get(owner) || { now: to, to, before: null, action: null, stop: null };
  if (one.stop) one.stop();
  if (owners.has(owner) && one.action !== action) Object.assign(one, { before: one.to, action });
  owners.set(owner, one);
  if (mode === BACK || same(one.before, to)) one.before = null; // it came back: no ghost
  one.to = to;
  if (first) one.now = first;
  const show = (now) => draw((one.now = now), one.before);
  if (isStill() || same(one.now, to)) {
    show(to);
    return Promise.resolve(true);
  }
  const [from, frame] = [one.now, owner.closest(".live")];
  const wait = mode === STEPS ? step * (ms + 50) : 0;
  busy(frame, 1);
  show(Live.between(from, to, 0)); // the ghost comes at once
  return new Promise((arrived) => {
    let [request, start] = [0, null];
    const end = (whole) => {
      cancelAnimationFrame(request);
      one.stop = null;
      busy(frame, -1);
      arrived(whole);
    };
    const next = (time) => {
      start ??= time;
      const share = Math.min(1, Math.max(0, time - start - wait) / ms);
      if (share > 0) show(share < 1 ? Live.between(from, to, ease(share)) : to);
      if (share < 1) request = requestAnimationFrame(next);
      else end(true);
    };
    one.stop = () => end(false);
    request = requestAnimationFrame(next);
  });
};

/* Forget where an owner's drawing stood: the next call draws at once, without a ghost. */
Live.forget = (owner) => {
  owners.get(owner)?.stop?.();
  owners.delete(owner);
};
})();
