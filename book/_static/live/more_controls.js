"use strict";
/* Controls of which the front page has none: a menu, a switch, a box for text. */
(() => {
const { html, isNarrow, pick, makers } = Live.part;

function menu(figure, name, spec) {
  const options = Object.entries(spec.of).map(([key, text]) => html("option", { value: key, text }));
  const select = html("select", { onchange: () => pick(figure, name, select.value) }, ...options);
  return {
    node: html("label", { class: "live-control" }, html("span", { text: spec.label }), select),
    show(state) {
      for (const option of options) option.disabled = Boolean(spec.applies && !spec.applies(option.value, state));
      select.value = state[name];
    },
  };
}

function toggle(figure, name, spec) {
  const input = html("input", { type: "checkbox", onchange: () => pick(figure, name, input.checked) });
  return {
    node: html("label", { class: "live-toggle" }, input, html("span", { text: spec.label })),
    show: (state) => (input.checked = state[name]),
  };
}

function textBox(figure, name, spec) {
  const whole = (text) => (text.toWellFormed ? text.toWellFormed() : text); // no half of an emoji
  const isLong = spec.max > 40; // on a phone it takes two lines
  const input = html(isLong ? "textarea" : "input", {
    type: isLong ? null : "text", rows: isLong ? (isNarrow() ? 2 : 1) : null, spellcheck: "false", autocomplete: "off",
    onkeydown: (event) => isLong && event.key === "Enter" && event.preventDefault(),
    oninput: () => {
      const letters = [...whole(input.value)];
      const text = letters.slice(0, spec.max).join("");
      const kept = spec.max > 1 ? `the first ${spec.max} characters are` : "one character is";
      cut.textContent = letters.length > spec.max ? `Only ${kept} kept.` : "";
      if (Live.fits.text(spec, text) !== undefined) figure.set({ [name]: text });
    },
    onchange: () => {
      figure.released();
      figure.loadIfAsked();
    },
  });
  const cut = html("small", { class: "live-cut", role: "status" });
  const remark = html("small", { class: "live-remark", role: "status" }); // what the figure says of this text
  return {
    node: html("div", { class: "live-text" }, html("label", { class: "live-control" }, html("span", { text: spec.label }), input), cut, remark),
    show(state) {
      const said = spec.remark?.(state[name]) || "";
      if (remark.textContent !== said) remark.textContent = said;
      if (input.value === state[name]) return;
      if (![...input.value].slice(0, spec.max).join("").startsWith(state[name])) cut.textContent = ""; // another text
      input.value = state[name];
    },
  };
}

Object.assign(makers, { menu, toggle, text: textBox });
})();
