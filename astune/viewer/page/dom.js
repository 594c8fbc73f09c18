// Elements. Text of a run only ever becomes a text node or an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** el("button", {class: "x", on: {click: f}}, "text", child); null children are skipped. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function $(id) {
  return document.getElementById(id);
}

const plain = (label) => label.replaceAll("_", " ");
const thousands = new Intl.NumberFormat("en-US");
const count = (number) => thousands.format(number);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const signed = (value) => (value === 0 ? "0" : `${value < 0 ? "−" : "+"}${figure(Math.abs(value))}`);
const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const isNumber = (value) => typeof value === "number";

/** A number in at most four characters that matter. */
function figure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000 || Number.isInteger(value)) return count(Math.round(value)).replace("-", "−");
  return (size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)))).replace("-", "−");
}

/** Shows `lines` beside the pointer, or beside the middle of an element; hides with null. */
function tip(lines, place) {
  const box = $("tip");
  box.hidden = lines === null;
  if (lines === null) return;
  box.replaceChildren(...lines.map((line) => (typeof line === "string" ? el("div", {}, line) : line)));
  const { x, y } = place;
  box.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.offsetWidth - 8))}px`;
  box.style.top = `${y + 20 + box.offsetHeight > innerHeight ? Math.max(6, y - box.offsetHeight - 10) : y + 18}px`;
}

function middle(element) {
  const box = element.getBoundingClientRect();
  return { x: box.left + box.width / 2, y: box.bottom - 12 };
}
