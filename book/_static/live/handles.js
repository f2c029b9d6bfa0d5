"use strict";
/* Points that can be dragged, or moved with keys, and room for their names. Figures that have some load this
   file: they name it in `scripts`. */
(() => {
const { svg, number, colour, arrows: ARROWS } = Live.part;
const JUMPS = { Home: [-Infinity, 0], End: [Infinity, 0], PageUp: [0, 4], PageDown: [0, -4] }; // of a point in the plane

/* Points that lie on each other are drawn apart, each in its own direction, so that every one can be
   seen and taken. Points far enough from all others stay where they are. No name stands on a point, on another
   name, or on what else takes room (`rooms`): where no side of its point is free, it stands farther away (`RINGS`),
   at the end of a line. */
const TIED = 16; // px: a name farther away than that hangs on a line
const RINGS = [1, 1.4, 1.8, 2.3, 2.9, 3.6, 4.5];
const AROUND = [[0, -1], [0, 1], ...[1, 2].flatMap((up) => [[0.8, up], [-0.8, up], [0.8, -up], [-0.8, -up]])]; // for names
const NEAR = 26; // px: two handles nearer than this begin to make room
const LEAST = 15.5; // px between two handles
function spread(handles, state, rooms = []) {
  const { px } = handles[0];
  const places = handles.map(({ name, at }) => at(state[name]));
  handles[0].node.ownerSVGElement.again = () => spread(handles, state, rooms); // when its size on the screen is known
  const asides = handles.map(({ towards }, i) => {
    const crowd = places.map(([x, y], j) =>
      i === j ? 0 : Math.max(0, 1 - Math.hypot(x - places[i][0], y - places[i][1]) / (NEAR * px())));
    const away = (NEAR - 10) * Math.max(...crowd) * px();
    return towards.map((each) => each * away);
  });
  const spotOf = (one, i) => one.spotAt(places[i], asides[i]);
  for (let [round, isMore] = [0, true]; isMore && round < 40; round++) { // those that came to lie on each other push each other away
    isMore = false;
    handles.forEach((one, i) => handles.slice(0, i).forEach((other, j) => {
      const [[x, y], [u, v]] = [spotOf(one, i), spotOf(other, j)], far = Math.hypot(x - u, y - v);
      if (far >= (LEAST - 0.5) * px()) return;
      isMore = true;
      const by = [[x - u, one.towards[0]], [y - v, one.towards[1]]].map(([gap, way]) => ((LEAST * px() - far) / 2) * (far > 0.1 ? gap / far : way));
      by.forEach((each, axis) => { asides[i][axis] += each; asides[j][axis] -= each; });
    }));
  }
  const spots = handles.map(spotOf);
  const taken = [...ticksOn(handles[0].node.ownerSVGElement), ...rooms];
  const crosses = places.filter((_, i) => asides[i].some(Boolean));
  for (const one of handles) one.room = null;
  for (let round = 0; round < 3; round++) // a name may give way to one that came later
    handles.forEach((one, i) => {
      const points = [...spots.filter((_, j) => j !== i), ...crosses].map((spot) => around(spot, px()));
      const names = handles.filter((other) => other !== one && other.room).map(({ room }) => room);
      one.putName(places[i], spots[i], [...taken, ...points, ...names]);
    });
  handles.forEach((one, i) => one.show(state, places[i], asides[i]));
  return spots;
}

/* The room that a text takes, [left, top, right, bottom]: estimated, for to measure it would lay out the page. */
function roomOf(x, y, text, anchor, px) {
  const wide = (7.6 * text.length + 3) * px, left = x - wide * ({ middle: 0.5, end: 1 }[anchor] || 0);
  return [left, y - 12 * px, left + wide, y + 4 * px];
}

const ticksOn = (drawing) => [...drawing.querySelectorAll(":scope > .live-tick")].map((one) =>
  roomOf(Number(one.getAttribute("x")), Number(one.getAttribute("y")), one.textContent, one.getAttribute("text-anchor"), drawing.px || 1));

const around = ([x, y], px) => [x - 9 * px, y - 9 * px, x + 9 * px, y + 9 * px]; // the room of a point
const shared = ([a, b, c, d], [e, f, g, h]) => Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, h) - Math.max(b, f));
/* Of places, of which each takes some rooms: the first that lies on nothing, or else on as little as can be. `more`
   says what else speaks against a place. */
const freest = (places, taken, more = () => 0) => {
  let [best, least] = [0, Infinity];
  for (let n = 0; n < places.length && least > 0; n++) {
    const cost = places[n].reduce((sum, room) => taken.reduce((part, other) => part + shared(room, other), sum), more(places[n]));
    if (cost < least) [best, least] = [n, cost];
  }
  return best;
};

/* The line from a point to a name that stands farther away than `most`: it begins at the point, or at `from`. */
const tieOf = ([x, y], [left, top, right, foot]) => [Math.min(Math.max(x, left), right) - x, Math.min(Math.max(y, top), foot) - y];
function tieTo(tie, spot, room, most, from = [0, 0]) {
  const to = tieOf(spot, room);
  tie.setAttribute("d", Math.hypot(...to) > most ? `M${from}L${to.map((each, axis) => (each + from[axis]).toFixed(1))}` : "");
}

/* What each key of a slider asks for: `move(by)`, with the keys Home and End by ±Infinity. */
const sliderKeys = (figure, [far, page], move) => {
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page, Home: -Infinity, End: Infinity };
  return {
    onkeydown: (event) => {
      const by = steps[event.key];
      if (!by) return;
      event.preventDefault();
      move(by * (event.shiftKey ? far : 1));
    },
    onkeyup: (event) => steps[event.key] && figure.released(),
  };
};

/* A point of a drawing that can be dragged, or moved with keys. `towards` is its direction
   when others lie on it; `label` stands on that side, or at the tip of an arrow from the middle (`isTip`). The drawing listens for all its handles: the
   nearest one is taken, and `touch-action: none` works there and not on a part of it. */
function handle({ drawing, name, role, figure, at, value, shape, label, towards = [0, -1], isTip = false }) {
  const spec = figure.figure.state[name];
  const px = () => drawing.px || 1;
  const move = (point) => figure.set({ [name]: point.map((each) => Live.nearest(spec, each)) });
  const [lead, tie] = [svg("path", { class: "live-lead" }), svg("path", { class: "live-lead live-tie" })];
  const words = svg("text", { class: "live-halo", text: label });
  const mark = svg(
    "g", { class: "live-mark" }, svg("circle", { class: "live-ring", r: 15 }),
    shape || svg("circle", { r: 8, fill: colour(role), stroke: "var(--fig-paper)", "stroke-width": 2 }));
  const node = svg(
    "g", {
      class: "live-handle", tabindex: "0", role: "slider", "aria-label": spec.label,
      "aria-valuemin": spec.min, "aria-valuemax": spec.max, "aria-roledescription": "point in the plane",
      onkeydown: (event) => {
        const way = ARROWS[event.key] || JUMPS[event.key];
        if (!way) return;
        event.preventDefault();
        const step = spec.step * (event.shiftKey ? 20 : 5);
        move(figure.state[name].map((each, axis) => each + step * way[axis]));
      },
      onkeyup: (event) => (ARROWS[event.key] || JUMPS[event.key]) && figure.released(),
    }, lead, tie, svg("circle", { class: "live-grip", r: 17, fill: "transparent" }), mark, words);
  drawing.append(node);
  const drawn = { x: 0, y: 0 };
  const { width, height } = drawing.viewBox.baseVal;
  const within = (value, side) => Math.min(Math.max(value, 12 * px()), side - 12 * px());
  const place = ([x, y, aside, up]) => {
    const [dx, dy] = [within(x + aside, width) - x, within(y + up, height) - y];
    Object.assign(drawn, { x: x + dx, y: y + dy });
    node.setAttribute("transform", `translate(${drawn.x} ${drawn.y})`);
    const arm = 3.5 * px();
    lead.setAttribute("d", dx || dy ? `M0 0L${-dx} ${-dy}m${-arm} ${-arm}l${2 * arm} ${2 * arm}m0 ${-2 * arm}l${-2 * arm} ${2 * arm}` : "");
  };
  const one = {
    node, name, at, towards, px, drawn,
    spotAt: ([x, y], [dx, dy]) => [within(x + dx, width), within(y + dy, height)],
    /* On which side its name stands: of a point in the plane, drawn at a spot, where the rooms of others are taken. */
    putName([x, y], [hx, hy], taken) {
      if (!label) return;
      const anchorOf = ([tx]) => (tx > 0.3 ? "start" : tx < -0.3 ? "end" : "middle");
      const roomAt = (side) => roomOf(hx + side[0] * 14 * px(), hy + (side[1] * 15 + 5) * px(), label, anchorOf(side), px());
      const isInside = ([left, top, right, foot]) => left > 0 && right < width && top > 3 * px() && foot < height - px();
      const [outX, outY] = [x - width / 2, y - height / 2];
      const far = Math.hypot(outX, outY);
      const [sx, sy] = isTip && far > 40 ? [outX / far, outY / far] : towards;
      const near = [[sx, sy], [-sx, sy], [sx, -sy], [-sx, -sy], [sx > 0 ? 1 : -1, 0], [sx > 0 ? -1 : 1, 0], ...AROUND];
      const isOn = Math.hypot(sx, sy) < 0.5; // a number on its point stays there
      const all = isOn ? [[sx, sy]] : RINGS.flatMap((ring) => near.map((side) => side.map((each) => ring * each)));
      const inside = all.filter((side) => isInside(roomAt(side)));
      const sides = inside.length ? inside : all.slice(0, 1);
      const away = ([room]) => Math.max(0, Math.hypot(...tieOf([hx, hy], room)) - TIED * px()) * px() / 2; // better near, on a little, than far away
      const side = sides[freest(sides.map((each) => [roomAt(each)]), taken, away)], [tx, ty] = side;
      one.room = roomAt(side);
      tieTo(tie, [hx, hy], one.room, TIED * px());
      words.setAttribute("text-anchor", anchorOf(side));
      words.setAttribute("x", tx * 14 * px());
      words.setAttribute("y", (ty * 15 + 5) * px());
    },
    /* Where it is in the plane, and how far beside that it is drawn. */
    show(state, [x, y], [dx, dy]) {
      node.setAttribute("aria-valuenow", state[name][0]);
      node.setAttribute("aria-valuetext", state[name].map((each) => number(each)).join(", "));
      Live.tween(node, [x, y, dx, dy], place);
    },
    dragTo: ([x, y]) => move(value(x, y)),
  };
  draggable(drawing, figure, one);
  return one;
}

/* A handle of any kind: where it stands (`drawn`, `px`), where a drag begins (`at`) and goes (`dragTo`).
   One that is `wide` or `tall` is taken from so many times as far to its sides, or above and below it. */
const draggable = (drawing, figure, one) => (drawing.handles ??= listen(drawing, figure)).push(one);

function listen(drawing, figure) {
  const handles = [];
  const inside = (event) => {
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    return [x, y];
  };
  let held = null; // { pointer, handle, from: where the pointer was, start: where the point was }
  const drop = (event) => {
    if (held?.pointer !== event.pointerId) return;
    held.handle.node.classList.remove("live-held");
    held = null;
    figure.released();
  };
  const listeners = {
    pointerdown: (event) => {
      if (held || event.button) return;
      const [x, y] = inside(event);
      const far = ({ drawn, wide = 1, tall = 1 }) => Math.hypot((drawn.x - x) / wide, (drawn.y - y) / tall);
      const handle = handles.reduce((best, one) => (far(one) < far(best) ? one : best));
      if (far(handle) > (event.pointerType === "mouse" ? 20 : 32) * handle.px()) return;
      held = { pointer: event.pointerId, handle, from: [x, y], start: handle.at(figure.state[handle.name]) };
      drawing.setPointerCapture(event.pointerId);
      event.preventDefault();
      handle.node.classList.add("live-held");
      handle.node.focus({ preventScroll: true });
    },
    pointermove: (event) => {
      if (held?.pointer !== event.pointerId) return;
      const now = inside(event);
      held.handle.dragTo([0, 1].map((axis) => held.start[axis] + now[axis] - held.from[axis]));
    },
    pointerup: drop,
    pointercancel: drop, // the system took the finger: what was reached stays
  };
  for (const [name, listener] of Object.entries(listeners)) drawing.addEventListener(name, listener);
  drawing.classList.add("live-draggable");
  return handles;
}

Object.assign(Live.part, {
  around, tieTo, ticksOn, shared, roomOf, freest, handle, draggable, sliderKeys, spread,
});
})();
