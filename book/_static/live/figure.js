"use strict";
/* A live figure: its settings, their place in the address, and the figure's place on the page.
   The figure's file says what there is to set, computes, and draws; all else is here. */
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const MODELS = { shakespeare: ["Shakespeare model", "4.4 MB"], numbers: ["number translator", "2.0 MB"] };
const SLOW_MS = 150; // a figure that runs a model waits until the reader has stopped typing
const SAID_MS = 6000; // how long the words stay for screen readers

Live.figures = {};
Live.define = (figure) => (Live.figures[figure.name] = figure);

// Settings ----

/* The nearest value between the ends that the control can show. */
Live.nearest = ({ min, max, step }, value) =>
  Number(Math.min(max, Math.max(min, min + Math.round((value - min) / step) * step)).toFixed(6));

const onGrid = (spec, value) => {
  if (!Number.isFinite(value)) return undefined;
  if (spec.steps) return spec.steps.includes(value) ? value : undefined;
  return value < spec.min || value > spec.max ? undefined : Live.nearest(spec, value);
};

/* For each kind of setting: the value that is taken, or undefined. */
const fits = (Live.fits = {
  number: onGrid,
  choice: (spec, value) => (Object.hasOwn(spec.of, value) ? value : undefined),
  toggle: (spec, value) => (typeof value === "boolean" ? value : undefined),
  text: (spec, value) => {
    const matches = new RegExp(`^(?:${spec.pattern || "[^]*"})$`, "u").test(value);
    return [...value].length <= spec.max && matches ? value : undefined;
  },
  point: (spec, value) => {
    const point = value.map((each) => onGrid(spec, each));
    return point.length === 2 && !point.includes(undefined) ? point : undefined;
  },
});

const parsers = {
  number: (text) => (text.trim() ? Number(text) : NaN),
  choice: (text) => text,
  toggle: (text) => ({ yes: true, no: false })[text],
  text: (text) => text,
  point: (text) => text.split(",").map((each) => (each.trim() ? Number(each) : NaN)),
};

const writers = { toggle: (value) => (value ? "yes" : "no"), point: (value) => value.join(",") };
const written = (spec, value) => (writers[spec.kind] || String)(value);

Live.start = (figure) =>
  Object.fromEntries(Object.entries(figure.state).map(([name, spec]) => [name, spec.start]));

/* "query=1.2,0.4;by=none" -> settings, or null if any part of it cannot be. */
Live.parse = (figure, text) => {
  const found = {};
  for (const part of text.split(";").filter(Boolean)) {
    const [name, ...rest] = part.split("=");
    const spec = Object.hasOwn(figure.state, name) ? figure.state[name] : null;
    if (!spec || !rest.length) return null;
    let value;
    try {
      value = fits[spec.kind](spec, parsers[spec.kind](decodeURIComponent(rest.join("="))));
    } catch {
      return null; // a broken %-escape
    }
    if (value === undefined) return null;
    found[name] = value;
  }
  return found;
};

/* The settings that differ from the start, as text for an address. */
Live.write = (figure, state) =>
  Object.entries(figure.state)
    .filter(([name, spec]) => written(spec, state[name]) !== written(spec, spec.start))
    .map(([name, spec]) => {
      const text = written(spec, state[name]);
      return `${name}=${encodeURIComponent(text.toWellFormed ? text.toWellFormed() : text).replace(/%2C/g, ",")}`;
    })
    .join(";");

Live.fromAddress = (hash) => {
  const match = /^#live:([a-z-]+):([^]*)$/.exec(hash);
  const figure = match && Object.hasOwn(Live.figures, match[1]) ? Live.figures[match[1]] : null;
  const settings = figure && Live.parse(figure, match[2]);
  return settings && { name: figure.name, settings };
};

// On the page ----

/* A figure on its page. */
class Mounted {
  constructor(place, figure) {
    Object.assign(this, { place, figure, model: null, timer: 0 });
    this.first = { ...Live.start(figure), ...(Live.parse(figure, place.dataset.settings || "") || {}) };
    this.state = { ...this.first };
    this.build();
    place.classList.add("live-on", "live-untouched");
    this.show();
  }

  build() {
    const { html, control } = Live.part;
    const drawn = this.figure.build(Live.part, this);
    this.drawn = drawn;
    this.controls = Object.entries(this.figure.state)
      .filter(([, spec]) => !spec.hidden && spec.kind !== "point")
      .map(([name, spec]) => control(this, name, spec));
    this.words = html("p", { class: "live-words" });
    this.status = html("p", { class: "live-status", role: "status" });
    this.ask = html("p", { class: "live-ask" });
    this.stage = html("div", { class: "live-stage" }, ...drawn.nodes);
    this.body = html(
      "div",
      { class: "live-body" },
      html("p", { class: "live-question", text: this.figure.question }),
      this.tries(),
      this.controls.length ? html("div", { class: "live-controls" }, ...this.controls.map((c) => c.node)) : null,
      this.ask, this.stage, this.words, this.status,
    );
    if (this.figure.more) this.fold(...this.figure.more);
    this.place.setAttribute("role", "group");
    this.place.setAttribute("aria-label", `Live figure: ${this.figure.title}`);
    this.place.prepend(this.body); // the question first, also while the picture waits for a model
  }

  /* So many tries and controls stand before it. */
  fold(text, tries, controls) {
    const { html } = Live.part;
    const rest = [...this.buttons.slice(tries), ...this.controls.slice(controls)].map((one) => one.node);
    this.more = html("details", {}, html("summary", { text }), html("div", { class: "live-controls" }, ...rest));
    this.ask.before(this.more);
  }

  /* What to see stands below the buttons. */
  tries() {
    const { html } = Live.part;
    const button = (text, onclick, more) => html("button", { type: "button", text, onclick, ...more });
    this.see = html("p", { class: "live-see" });
    this.buttons = this.figure.tries.map(({ do: text, set, see }) => {
      const state = { ...this.first, ...set };
      return { node: button(text, () => this.replace(state)), see, address: Live.write(this.figure, state) };
    });
    const nodes = this.buttons.map(({ node }) => node);
    const reset = button("Reset", () => this.reset(), { class: "live-reset" });
    return html(
      "div", { class: "live-tries" }, html("p", {}, html("strong", { text: "Try" }), ...nodes, reset), this.see);
  }

  mark() {
    const now = Live.write(this.figure, this.state);
    const one = this.buttons.find(({ address }) => address === now);
    for (const each of this.buttons) each.node.setAttribute("aria-pressed", each === one);
    this.see.textContent = one ? one.see : "";
  }

  set(changes) {
    Object.assign(this.state, changes);
    const isTyped = Object.keys(changes).some((name) => this.figure.state[name].kind === "text");
    if (!this.figure.slow || !isTyped) return this.show();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.show(), SLOW_MS);
  }

  /* From a button or an address: all at once, and said. */
  replace(state) {
    this.state = { ...this.first, ...state };
    this.show();
    this.released();
  }

  reset() {
    this.replace(this.first);
    if (!Live.embedded) history.replaceState(null, "", location.pathname + location.search);
  }

  show() {
    clearTimeout(this.timer);
    this.timer = 0;
    for (const control of this.controls) control.show(this.state);
    this.mark();
    const needed = this.figure.needs ? this.figure.needs(this.state) : null;
    const model = needed && Live.model.read(needed);
    this.place.classList.toggle("live-waiting", Boolean(needed && !model));
    if (needed && !model) return this.offer(needed);
    this.ask.replaceChildren();
    this.place.classList.remove("live-untouched");
    const values = this.figure.values(this.state, model);
    this.drawn.update(this.state, values);
    this.words.textContent = this.figure.say(this.state, values);
  }

  /* Nothing is loaded before the reader asks. */
  offer(needed) {
    const { html } = Live.part;
    const [title, size] = MODELS[needed];
    const load = async () => {
      this.ask.replaceChildren(html("span", { role: "status", text: `Loading the ${title} …` }));
      try {
        if (Live.embedded) throw new Error("In a notebook, ask for it with live.figure(..., weights=True).");
        await Live.model.load(needed);
        this.show();
        this.released();
      } catch (error) {
        this.ask.replaceChildren(html("span", { role: "alert", text: error.message }));
      }
    };
    this.ask.replaceChildren(
      html("button", { type: "button", text: `Run the ${title} here (loads ${size})`, onclick: load }));
    this.words.textContent = "";
  }

  /* A control was let go: say the result, and keep it in the address. */
  released() {
    if (this.timer) this.show();
    clearTimeout(this.silence);
    const settings = Live.write(this.figure, this.state);
    this.status.textContent = `${this.see.textContent} ${this.words.textContent}`;
    this.silence = setTimeout(() => (this.status.textContent = ""), SAID_MS);
    if (!Live.embedded) history.replaceState(null, "", `#live:${this.figure.name}:${settings}`);
  }
}

function followAddress(mounted) {
  const asked = Live.fromAddress(location.hash);
  const one = asked && mounted.find((each) => each.figure.name === asked.name);
  if (!one) return;
  one.replace({ ...one.first, ...asked.settings });
  if (one.more) one.more.open = true;
  one.place.scrollIntoView({ block: "center" });
}

Live.mountAll = () => {
  const places = [...document.querySelectorAll("[data-live]")].filter((p) => Live.figures[p.dataset.live]);
  const mounted = places.map((place) => new Mounted(place, Live.figures[place.dataset.live]));
  followAddress(mounted);
  addEventListener("hashchange", () => followAddress(mounted));
};

if (globalThis.document) {
  const root = document.documentElement.dataset.content_root || "./";
  if (!Live.embedded) Live.here = new URL(`${root}_static/live/`, document.baseURI).href;
  if (document.readyState === "complete") Live.mountAll();
  else document.addEventListener("DOMContentLoaded", Live.mountAll);
}
})();
