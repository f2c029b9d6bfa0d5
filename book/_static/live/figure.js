"use strict";
/* A live figure: its settings, their place in the address, and the figure's place on the page.
   The figure's file says what there is to set, computes, and draws; all else is here. */
(() => {
const Live = (globalThis.Live = globalThis.Live || {});
const MODELS = { shakespeare: ["Shakespeare model", "4.4 MB"], numbers: ["number translator", "2.0 MB"] };
const SLOW_MS = 150; // a figure that runs a model waits until the reader has stopped typing
const HINT = "Guess what will change, then press one. What is faint afterwards is the start.";
const HINT_MODEL = "Guess what you will see, then press one."; // its line, or its model, may be another
const SAID_MS = 6000; // how long the words stay for screen readers

Live.figures = {};
Live.define = (figure) => (Live.figures[figure.name] = figure);

// Settings ----

/* The nearest value between the ends that the control can show. */
Live.nearest = ({ min, max, step }, value) =>
  Number(Math.min(max, Math.max(min, min + Math.round((value - min) / step) * step)).toFixed(6));

/* `steps`: where a slider stops. With `between`, the figure itself may set any whole number there. */
const onGrid = (spec, value) => {
  if (!Number.isFinite(value)) return undefined;
  if (spec.steps?.includes(value)) return value;
  if (spec.steps && !spec.between) return undefined;
  if (spec.steps) return Number.isInteger(value) && value >= spec.steps[0] && value <= spec.steps.at(-1) ? value : undefined;
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
    place.setAttribute("data-settled", ""); // absent while something moves: see motion.js
    this.show();
    this.was = this.shown;
  }

  /* The picture first, what can be done to it below, and then what is looked up (`rest`). The words come
     last: they may grow without moving anything. */
  build() {
    const { html, control } = Live.part;
    const drawn = this.figure.build(Live.part, this);
    this.drawn = drawn;
    this.controls = Object.entries(this.figure.state)
      .filter(([, spec]) => !spec.hidden && spec.kind !== "point")
      .map(([name, spec]) => ({ ...control(this, name, spec), when: spec.when })); // some mean nothing at times
    this.words = drawn.words || html("p", { class: "live-words" }); // a figure may place them itself
    this.status = html("p", { class: "live-status", role: "status" });
    this.ask = html("div", { class: "live-ask" });
    this.stage = html("div", { class: "live-stage" }, ...drawn.nodes);
    this.rest = drawn.rest ? html("div", { class: "live-rest" }, ...drawn.rest) : null;
    this.body = html(
      "div",
      { class: "live-body" },
      html("p", { class: "live-question", text: this.figure.question }),
      this.figure.intro ? html("p", { text: this.figure.intro }) : null, // what must be known before the picture is read
      this.ask, this.stage, this.tries(),
      this.controls.length ? html("div", { class: "live-controls" }, ...this.controls.map((c) => c.node)) : null,
      this.rest, drawn.words ? null : this.words, this.status,
    );
    if (this.figure.more) this.fold(...(drawn.more || this.figure.more)); // a phone may fold more
    this.place.setAttribute("role", "group");
    this.place.setAttribute("aria-label", `Live figure: ${this.figure.title}`);
    this.place.tabIndex = -1; // where the focus goes when the button that had it has done its work
    if (this.figure.needs) this.keepHeight();
    this.place.classList.toggle("live-asks", Boolean(this.figure.needs && !drawn.wait));
    this.place.prepend(this.body); // the question first, also while the picture waits for a model
  }

  /* What a model gives is longer or shorter from text to text: the figure grows, but does not shrink. */
  keepHeight() {
    let seen = { width: 0, height: 0 };
    new ResizeObserver(() => {
      const { offsetWidth: width, offsetHeight: height } = this.place;
      const isOther = width !== seen.width;
      if (!isOther && height <= seen.height) return;
      seen = { width, height: isOther ? 0 : height };
      this.place.style.minHeight = isOther ? "" : `${height}px`;
    }).observe(this.place);
  }

  /* So many tries and controls stand before it. */
  fold(text, tries, controls) {
    const { html } = Live.part;
    const rest = [...this.buttons.slice(tries), ...this.controls.slice(controls)].map((one) => one.node);
    this.more = html("details", {}, html("summary", { text }), html("div", { class: "live-controls" }, ...rest));
    this.body.querySelector(".live-controls").after(this.more);
  }

  /* What makes two states the same try: all settings, or those that the figure names (`same`). */
  addressOf(state) {
    const { same = Object.keys(state) } = this.figure;
    return Live.write(this.figure, { ...this.first, ...Object.fromEntries(same.map((name) => [name, state[name]])) });
  }

  /* What to see stands below the buttons. The longest of these texts keeps the room for all. */
  tries() {
    const { html } = Live.part;
    const button = (text, onclick, more) => html("button", { type: "button", text, onclick, ...more });
    this.see = html("span");
    this.hint = html("span", { class: "live-hint", text: this.figure.needs ? HINT_MODEL : HINT });
    this.buttons = this.figure.tries.map(({ do: text, set, see, next }) => {
      const state = { ...this.first, ...set };
      const node = button(text, () => (next ? this.goOn(next) : this.attempt(state)));
      return { node, see, address: this.addressOf(state) };
    });
    const nodes = this.buttons.map(({ node }) => node);
    const room = this.buttons.map(({ see }) => html("span", { class: "live-room", "aria-hidden": "true", "data-text": see }));
    const reset = button("Reset", () => this.reset(), { class: "live-reset" });
    return html(
      "div", { class: "live-tries" }, html("p", {}, html("strong", { text: "Try" }), ...nodes, reset),
      html("p", { class: "live-see" }, this.see, this.hint, ...room));
  }

  /* What a try shows is said when its picture is there. A figure that waits for a press asks the reader to guess. */
  mark(missing) {
    const now = this.addressOf(this.state);
    const one = this.buttons.find(({ address }) => address === now);
    this.isTry = Boolean(one);
    for (const each of this.buttons) each.node.setAttribute("aria-pressed", each === one);
    const text = !one || (missing && this.drawn.wait) ? "" : missing ? `This needs the ${MODELS[missing][0]}.` : one.see;
    if (this.see.textContent !== text) this.see.textContent = text;
    this.hint.hidden = Boolean(text);
  }

  /* Settings that fit each other: where one limits another, the figure says so (`settled`). */
  settled(state, before) {
    return this.figure.settled?.(state, before) ?? state;
  }

  set(changes, how = Live.STILL) {
    Object.assign(this.state, this.settled({ ...this.state, ...changes }, this.state));
    const isTyped = Object.keys(changes).some((name) => this.figure.state[name].kind === "text");
    if (!this.figure.slow || !isTyped) return this.draw(how);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.show(), SLOW_MS);
  }

  /* From a button or an address: all at once, and said. */
  replace(state, how) {
    this.state = this.settled({ ...this.first, ...state }, this.first);
    this.draw(how);
    this.released();
  }

  /* From the start to this state, step by step, whatever stood here before: the ghost is the start, with
     which the words of a Try compare. What needs a model asks for it. */
  attempt(state) {
    if (!this.figure.needs && Live.write(this.figure, this.state) !== Live.write(this.figure, this.first)) {
      this.state = { ...this.first };
      this.draw(Live.STILL);
      Live.acted();
    }
    this.replace(state, Live.STEPS);
    this.loadIfAsked();
  }

  /* What the reader chose needs a model: that is asking for it. An address does not ask. */
  loadIfAsked() {
    if (this.isWaiting && !this.drawn.wait) this.load();
  }

  /* A Try that can be pressed again: this setting goes on by a step, and begins anew after its last. */
  goOn(name) {
    const { min, max, step } = this.figure.state[name];
    this.set({ [name]: this.state[name] < max ? this.state[name] + step : min }, Live.STEPS);
    this.released();
  }

  reset() {
    this.was = null;
    this.replace(this.first, Live.BACK);
    if (!Live.embedded) history.replaceState(null, "", location.pathname + location.search);
  }

  draw(how) {
    Live.moving(how, () => this.show(how));
  }

  show(how = Live.STILL) {
    clearTimeout(this.timer);
    this.timer = 0;
    this.work = null; // what was prepared for another state
    this.place.classList.remove("live-at-work");
    for (const control of this.controls) {
      control.show(this.state);
      if (control.when) control.node.style.display = control.when(this.state) ? "" : "none";
    }
    const needed = this.figure.needs ? this.figure.needs(this.state) : null;
    const model = needed && Live.model.read(needed);
    this.mark(model ? null : needed);
    const now = Live.write(this.figure, this.state), isFirst = now === Live.write(this.figure, this.first);
    this.isWaiting = Boolean(needed && !model);
    const stored = this.isWaiting && !now ? this.figure.stored?.() : null; // the start may be known without its model
    this.place.classList.toggle("live-waiting", this.isWaiting && !stored);
    this.place.classList.toggle("live-stored", Boolean(stored));
    if (!isFirst || stored) this.place.classList.remove("live-untouched"); // the static picture shows the start
    if (this.isWaiting) this.offer(needed);
    if (stored) this.present(stored);
    if (this.isWaiting) return;
    this.ask.replaceChildren();
    this.place.classList.remove("live-untouched");
    const work = this.figure.prepare?.(this.state, model);
    if (work && !work.next().done) return this.inPieces(work, how);
    this.present(this.figure.values(this.state, model));
  }

  /* What is no Try may have words of its own beside the picture (`aside`), which can name what `was` before. */
  present(values) {
    this.shown = { state: { ...this.state }, values };
    const aside = !this.isTry && this.was && this.figure.aside?.(this.state, values, this.was);
    if (aside) [this.see.textContent, this.hint.hidden] = [aside, true];
    this.place.classList.add("live-drawn");
    this.drawn.update(this.state, values);
    const words = this.figure.say(this.state, values);
    if (this.drawn.tell) this.drawn.tell(words);
    else this.words.textContent = words;
  }

  /* What a model takes long for is done in pieces (`prepare` yields before each), so that what was pressed is
     painted at once, and an input in between is heard: it ends this work and begins its own. */
  async inPieces(work, how) {
    this.work = work;
    Live.busy(this.place, 1);
    this.place.classList.add("live-at-work");
    await new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)));
    while (this.work === work && !work.next().done) await new Promise((heard) => setTimeout(heard));
    Live.busy(this.place, -1);
    if (this.work !== work) return;
    this.place.classList.remove("live-at-work");
    this.draw(how);
    if (this.isUnsaid) this.tell();
  }

  /* Nothing is loaded before the reader asks. What was drawn keeps its room, so that nothing collapses.
     A figure may ask in its own way (`wait`), have scripts that come with the model (`later`), and do
     something when all is there (`arrived`). */
  offer(needed) {
    const { html } = Live.part;
    const [title, size] = MODELS[needed];
    const say = (role, text) => news.replaceChildren(html("span", { role, text }));
    const news = html("p");
    const load = async () => {
      if (this.loading) return;
      this.loading = true;
      if (!news.isConnected) this.ask.replaceChildren(...(button ? [button] : []), news);
      const come = html("progress", { max: 1, value: 0, "aria-label": `Loading the ${title}` });
      say("status", `Loading the ${title} …`);
      news.append(come);
      try {
        if (Live.embedded) throw new Error("In a notebook, ask for it with live.figure(..., weights=True).");
        await Promise.all([
          Live.model.load(needed, (share) => (come.value = share)), ...(this.figure.later || []).map((file) => Live.model.include(file)),
        ]);
        if (this.figure.needs(this.state) === needed) // one waits anyway: no pieces
          for (const _ of this.figure.prepare?.(this.state, Live.model.read(needed)) ?? []);
        const hadFocus = this.ask.contains(document.activeElement);
        this.show();
        if (hadFocus) this.place.focus({ preventScroll: true });
        this.released();
        if (this.drawn.arrived) this.drawn.arrived();
      } catch (error) {
        say("alert", error.message);
      }
      this.loading = false;
      if (this.load !== load && this.isWaiting) this.load(); // another Try was pressed meanwhile
    };
    this.load = load;
    const text = `Run the ${title} here (loads ${size})`;
    const button = this.drawn.wait ? null : html("p", {}, html("button", { type: "button", text, onclick: load }));
    if (!this.loading) this.ask.replaceChildren(...(button ? [button] : []), news);
    this.words.textContent = "";
    if (this.drawn.wait) this.drawn.wait(load, size);
  }

  /* A control was let go: say the result, and keep it in the address. */
  released() {
    if (this.timer) this.show();
    const settings = Live.write(this.figure, this.state);
    if (!Live.embedded) history.replaceState(null, "", `#live:${this.figure.name}:${settings}`);
    this.isUnsaid = Boolean(this.work);
    if (!this.work) this.tell();
  }

  tell() {
    this.isUnsaid = false;
    this.was = this.shown;
    Live.acted();
    clearTimeout(this.silence);
    this.status.textContent = `${this.see.textContent} ${this.words.textContent}`;
    this.silence = setTimeout(() => (this.status.textContent = ""), SAID_MS);
  }
}

function followAddress(mounted, how) {
  const asked = Live.fromAddress(location.hash);
  const one = asked && mounted.find((each) => each.figure.name === asked.name);
  if (!one) return;
  one.replace({ ...one.first, ...asked.settings }, how);
  if (one.more) one.more.open = true;
  one.place.scrollIntoView({ block: "center" });
}

Live.mountAll = () => {
  const places = [...document.querySelectorAll("[data-live]")].filter((p) => Live.figures[p.dataset.live]);
  const mounted = places.map((place) => new Mounted(place, Live.figures[place.dataset.live]));
  followAddress(mounted, Live.STILL);
  addEventListener("hashchange", () => followAddress(mounted, Live.STEPS));
};

if (globalThis.document) {
  const root = document.documentElement.dataset.content_root || "./";
  if (!Live.embedded) Live.here = new URL(`${root}_static/live/`, document.baseURI).href;
  if (document.readyState === "complete") Live.mountAll();
  else document.addEventListener("DOMContentLoaded", Live.mountAll);
}
})();
